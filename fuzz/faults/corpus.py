"""What became of each bug of the corpus of real bugs: planted, not expressible yet, or not to be seen."""

import tomllib
from importlib import resources
from typing import Final

import msgspec

NAME: Final = "corpus.toml"


class Corpus(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Each bug, by its id, has one place.

    `seeded`: the faults that have its root cause. `later`: what is missing before it can be
    planted. `unseen`: why nothing that can be observed depends on it.
    """

    seeded: dict[str, tuple[str, ...]]
    later: dict[str, str]
    unseen: dict[str, str]

    @property
    def bugs(self) -> tuple[str, ...]:
        """All ids, in order; one with two places occurs twice."""
        return tuple(sorted([*self.seeded, *self.later, *self.unseen]))


def corpus() -> Corpus:
    """The table that ships with kvproof."""
    text = resources.files("kvproof.fuzz.faults").joinpath(NAME).read_text(encoding="utf-8")
    return msgspec.convert(tomllib.loads(text), Corpus)
