"""Faults that are planted in the device source, to see that the gates find them."""

import tomllib
from functools import lru_cache
from typing import NamedTuple

from kvproof.kernels.source import FOLDER, read_source


class Fault(NamedTuple):
    """A change of one place in the source, or a mistaken launch, and the gate that must find it."""

    name: str
    gate: str
    why: str
    before: str = ""
    after: str = ""
    finding: str = ""
    """What the gates `checked` and `launch` call it."""
    torn: bool = False
    """Whether contents of several writers must really be seen, with some seed."""
    corpus: tuple[str, ...] = ()
    """Published bugs that have its root cause."""

    def plant(self) -> str:
        """The source with the fault. Raises `ValueError` where its place is gone, or isn't one."""
        source = read_source()
        if source.count(self.before) != 1 or self.before == self.after:
            raise ValueError(f"fault {self.name} has {source.count(self.before)} places in the source.")
        return source.replace(self.before, self.after)


@lru_cache(maxsize=1)
def all_faults() -> tuple[Fault, ...]:
    """Every fault, in the file's order."""
    text = (FOLDER / "faults.toml").read_text(encoding="utf-8")
    entries = tomllib.loads(text)["fault"]
    return tuple(Fault(**{**entry, "corpus": tuple(entry.get("corpus", ()))}) for entry in entries)


def of_gate(gate: str) -> tuple[Fault, ...]:
    """The faults that a gate must find. Raises `ValueError` for one that has none to find."""
    found = tuple(fault for fault in all_faults() if fault.gate == gate)
    if not found:
        raise ValueError(f"gate {gate!r} has no fault to find.")
    return found
