"""Detection power: with what probability, and how fast, an engine finds a seeded fault.

A trial is a hunt from a seed of its own with the budget of the `ci` profile. The interval of
the probability is Wilson's, that of the median is by order statistics; both are at 95 %.
"""

import statistics
from collections.abc import Sequence
from math import comb, sqrt
from typing import Final, NamedTuple

import msgspec

from kvproof.fuzz.engines.hunt import Find, runs
from kvproof.fuzz.faults import Fault

BUDGET: Final = {"soak": 100_000, "hypothesis": 20_000}
"""Operations of each engine in the `ci` profile."""

NEEDED: Final = 0.95
"""The least share of trials that must find a fault."""

Z: Final = 1.959964
"""Of the normal distribution, at 95 % on both sides."""


class Trial(NamedTuple):
    """A hunt from one seed: whether the fault's own clause fell, and after how many operations.

    `first` is the number of operations until any clause fell, none if nothing did.
    """

    seed: int
    killed: bool
    operations: int
    first: int | None


class Median(msgspec.Struct, frozen=True):
    """A median and its interval. `least` and `most` are None where some trials did not get that far."""

    value: float
    least: float | None
    most: float | None


class Power(msgspec.Struct, frozen=True):
    """What an engine's trials of a fault say: medians to a find, where a trial without one is endless."""

    fault: str
    clause: str
    engine: str
    budget: int
    trials: tuple[Trial, ...]
    corpus: tuple[str, ...] = ()
    operations: Median | None = None
    seconds: Median | None = None

    @property
    def killed(self) -> int:
        """Trials in which the fault's own clause fell."""
        return self.within(self.budget)

    @property
    def seen(self) -> int:
        """Trials in which any clause fell."""
        return sum(trial.first is not None for trial in self.trials)

    @property
    def probability(self) -> float:
        """The share of trials that found it."""
        return self.killed / len(self.trials)

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's interval of the probability."""
        return wilson(self.killed, len(self.trials))

    def within(self, operations: int) -> int:
        """Trials that found it within so many operations; the last run of a hunt ends as it may."""
        whole = operations >= self.budget
        return sum(trial.killed and (whole or trial.operations <= operations) for trial in self.trials)


def trial(fault: Fault, engine: str, seed: int, budget: int) -> tuple[Trial, float]:
    """One hunt, until the fault's own clause falls or the budget is spent, and its seconds."""
    last: Find | None = None
    first: int | None = None
    for last in runs(fault, engine, budget, seed):
        if last.case is not None and first is None:
            first = last.operations
        if last.clause == fault.clause:
            break
    assert last is not None, "a hunt judges something"
    return Trial(seed, last.clause == fault.clause, last.operations, first), last.seconds


def measure(fault: Fault, engine: str, seeds: Sequence[int], budget: int) -> Power:
    """The trials of one fault with one engine."""
    hunts = [trial(fault, engine, seed, budget) for seed in seeds]
    return Power(
        fault.id,
        fault.clause,
        engine,
        budget,
        tuple(each for each, _ in hunts),
        fault.corpus,
        median([each.operations if each.killed else None for each, _ in hunts]),
        median([round(seconds, 4) if each.killed else None for each, seconds in hunts]),
    )


def wilson(hits: int, count: int) -> tuple[float, float]:
    """The 95 % interval of a probability of which `hits` of `count` trials are a sample.

    Wilson, Probable inference, the law of succession, and statistical inference (1927).
    """
    assert 0 <= hits <= count and count > 0, "a share of something"
    share, square = hits / count, Z * Z
    middle = (share + square / (2 * count)) / (1 + square / count)
    half = Z / (1 + square / count) * sqrt(share * (1 - share) / count + square / (4 * count * count))
    # At the ends rounding could leave the truth outside.
    least = 0.0 if hits == 0 else max(0.0, middle - half)
    return least, 1.0 if hits == count else min(1.0, middle + half)


def median_rank(count: int) -> int:
    """The rank from either end, from 1, between which the median lies with at least 95 %; 0 if none does."""
    below, rank = 0.0, 0
    while rank < (count + 1) // 2:
        below += comb(count, rank) / 2**count
        if 2 * below > 0.05:
            break
        rank += 1
    return rank


def median(values: Sequence[float | None]) -> Median | None:
    """The median of some values and its interval; None among them stands for endless."""
    ordered = sorted(float("inf") if value is None else value for value in values)
    rank = median_rank(len(ordered))
    middle = statistics.median(ordered)
    if middle == float("inf"):
        return None
    ends = (ordered[rank - 1], ordered[-rank]) if rank else (float("-inf"), float("inf"))
    least, most = (None if abs(end) == float("inf") else end for end in ends)
    return Median(middle, least, most)
