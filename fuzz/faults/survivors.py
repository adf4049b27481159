"""Mutants that nothing kills, and why: data. Whoever has no entry is still to be explained."""

import tomllib
from collections.abc import Sequence
from importlib import resources
from typing import Final

import msgspec

NAME: Final = "survivors.toml"

KINDS: Final = ("equivalent", "efficiency", "misuse", "wording", "rare", "blind", "missing")
"""No difference at all; only in speed; only for calls that the contract forbids; only in a text; one that a
longer soak finds; one that the generator doesn't meet; one that no clause judges."""


class SurvivorError(ValueError):
    """A table of survivors that cannot be read. The message is one sentence."""


class Survivor(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Mutants by their function and the lines before and after; an empty text stands for any."""

    target: str
    kind: str
    reason: str
    before: str = ""
    after: str = ""

    def explains(self, target: str, before: str, after: str) -> bool:
        """Whether a mutant is one of these."""
        return (
            self.target == target
            and (not self.before or self.before == before)
            and (not self.after or self.after == after)
        )


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    survivor: tuple[Survivor, ...]


def parse(text: str) -> tuple[Survivor, ...]:
    """The entries of a TOML text of `[[survivor]]` tables. Raises `SurvivorError`."""
    try:
        read = msgspec.convert(tomllib.loads(text), _File).survivor
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise SurvivorError(f"the survivors cannot be read: {error}.") from None
    for entry in read:
        if entry.kind not in KINDS:
            raise SurvivorError(f"a survivor in {entry.target} is {entry.kind!r}, which is no kind.")
    return read


def survivors() -> tuple[Survivor, ...]:
    """Those that ship with kvproof."""
    return parse(resources.files("kvproof.fuzz.faults").joinpath(NAME).read_text(encoding="utf-8"))


def explanation(known: Sequence[Survivor], target: str, before: str, after: str) -> Survivor | None:
    """Why a mutant survives: the entry that says most about it."""
    found = [entry for entry in known if entry.explains(target, before, after)]
    return max(found, key=lambda entry: bool(entry.before) + 2 * bool(entry.after), default=None)
