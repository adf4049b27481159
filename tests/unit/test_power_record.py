"""What a budget can be expected to find, from recorded trials."""

import pytest

from kvproof.fuzz.engines.power import Power, Trial
from kvproof.fuzz.engines.power_record import Detected, detects, recorded
from kvproof.fuzz.faults import seeded


def row(fault: str, engine: str, *found: int | None, budget: int = 1_000) -> Power:
    trials = tuple(
        Trial(seed, spent is not None, budget if spent is None else spent, spent)
        for seed, spent in enumerate(found)
    )
    return Power(fault, "KV-I2-key", engine, budget, trials)


ROWS = (row("a", "soak", 10, 20, 500, None), row("a", "hypothesis", 100, None), row("b", "soak", 5, 5, 5, 5))


@pytest.mark.parametrize(
    ("operations", "expected"),
    [
        ({"soak": 1_000}, {"a": 0.75, "b": 1.0}),
        ({"soak": 20}, {"a": 0.5, "b": 1.0}),
        ({"soak": 20, "hypothesis": 100}, {"a": 0.75, "b": 1.0}),
        ({"soak": 4}, {"a": 0.0, "b": 0.0}),
        ({"soak": 10**9, "hypothesis": 10**9}, {"a": 0.875, "b": 1.0}),
    ],
)
def test_a_budget_detects_what_trials_of_either_engine_found_within_it(
    operations: dict[str, int], expected: dict[str, float]
) -> None:
    assert {each.fault: each.probability for each in detects(operations, ROWS)} == expected


def test_the_least_likely_comes_first() -> None:
    assert detects({"soak": 1_000}, ROWS)[0] == Detected("a", 0.75)


def test_the_record_that_ships_has_every_seeded_fault_in_both_engines() -> None:
    names = {(each.fault, each.engine) for each in recorded()}
    assert names == {(fault.id, engine) for fault in seeded() for engine in ("soak", "hypothesis")}


def test_the_budget_of_ci_detects_every_seeded_fault_with_95_percent() -> None:
    weak = [each for each in detects({"soak": 100_000, "hypothesis": 20_000}) if each.probability < 0.95]
    assert weak == []
