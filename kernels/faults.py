"""Faults that are planted in the device source, to see that the gates find them."""

import tomllib
from functools import lru_cache
from typing import NamedTuple

from kvproof.kernels.source import SOURCE, read_source


class Fault(NamedTuple):
    """A change of one place in the source, and the gate that must find it."""

    name: str
    gate: str
    why: str
    before: str
    after: str
    finding: str = ""
    """What the gate `checked` calls it."""

    def plant(self) -> str:
        """The source with the fault. Raises `ValueError` where its place is gone, or isn't one."""
        source = read_source()
        if source.count(self.before) != 1 or self.before == self.after:
            raise ValueError(f"fault {self.name} has {source.count(self.before)} places in the source.")
        return source.replace(self.before, self.after)


@lru_cache(maxsize=1)
def all_faults() -> tuple[Fault, ...]:
    """Every fault, in the file's order."""
    text = SOURCE.with_name("faults.toml").read_text(encoding="utf-8")
    return tuple(Fault(**entry) for entry in tomllib.loads(text)["fault"])
