"""The recorded detection power, and what a budget of operations can be expected to find by it."""

from collections.abc import Mapping
from functools import cache
from importlib import resources

import msgspec

from kvproof.fuzz.engines.power import Median


class Recorded(msgspec.Struct, frozen=True):
    """An engine's trials of a fault: `(seed, killed, operations, operations until any clause fell)`."""

    fault: str
    clause: str
    engine: str
    budget: int
    trials: tuple[tuple[int, bool, int, int | None], ...]
    operations: Median | None = None
    seconds: Median | None = None

    @property
    def killed(self) -> int:
        """Trials in which the fault's own clause fell."""
        return self.within(self.budget)

    @property
    def probability(self) -> float:
        """The share of trials that found it."""
        return self.killed / len(self.trials)

    def within(self, operations: int) -> int:
        """Trials that found it within so many operations."""
        return sum(killed and spent <= operations for _, killed, spent, _ in self.trials)


class Detected(msgspec.Struct, frozen=True):
    """A fault and the probability that a run of some budget finds it."""

    fault: str
    probability: float


class _Document(msgspec.Struct):
    rows: tuple[Recorded, ...]


@cache
def recorded() -> tuple[Recorded, ...]:
    """The record that ships; empty where none was made."""
    file = resources.files("kvproof.fuzz.faults") / "power.json"
    return msgspec.json.decode(file.read_bytes(), type=_Document).rows if file.is_file() else ()


def detects(operations: Mapping[str, int], rows: tuple[Recorded, ...] | None = None) -> list[Detected]:
    """What engines with so many operations each find together, fault by fault, the least likely first.

    The engines draw independently, so a fault is missed where each of them misses it. A budget
    beyond the recorded one counts as that.
    """
    missed: dict[str, float] = {}
    for row in recorded() if rows is None else rows:
        budget = operations.get(row.engine, 0)
        share = row.within(min(budget, row.budget)) / len(row.trials)
        missed[row.fault] = missed.get(row.fault, 1.0) * (1 - share)
    found = [Detected(fault, round(1 - each, 4)) for fault, each in missed.items()]
    return sorted(found, key=lambda each: (each.probability, each.fault))
