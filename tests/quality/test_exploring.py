"""Does exploration find what a scope can express, with a sequence that cannot be shorter?"""

import pytest
from msgspec.structs import replace

from kvproof.fuzz import cases
from kvproof.fuzz.engines.explore import explore
from kvproof.fuzz.engines.explore_moves import Preset, operations, preset
from kvproof.fuzz.engines.explore_snapshot import Freezer
from kvproof.fuzz.engines.explore_worker import adapter_of
from kvproof.fuzz.faults import by_id, planted
from kvproof.fuzz.session import Session

SHORTEST = [
    ("usage-counts-the-null-block", "tiny", "KV-P-usage", 1),
    ("lookahead-uncovered", "tiny", "KV-I3-cover", 2),
    ("counted-at-lookup", "tiny", "KV-P-accounting", 2),
    ("promise-not-withdrawn", "tiny", "KV-I6-withdraw", 3),
    ("shared-hit-not-counted", "tiny", "KV-I1-refcount", 4),
    ("fence-off-by-one", "tiny", "KV-I4-release", 4),
    ("row-trimmed", "tiny", "KV-I3-stable", 4),
    ("adapter-is-salt", "fields", "KV-I2-standing", 4),
    ("reclaimed-under-pressure", "tiny", "KV-I4-handout", 5),
    ("hit-left-in-queue", "tiny", "KV-I1-queue", 6),
    ("stale-hash", "tiny", "KV-I2-key", 7),
    ("dummy-rows-write", "rows", "KV-I5-slot", 4),
    ("commit-reads-the-host", "rows", "KV-I5-device", 5),
    ("first-column-cleared", "rows", "KV-I5-stale", 6),
]
"""Fault, preset, the clause that falls, and after how many operations it can fall at the earliest."""


def test_exploration_finds_nothing_in_the_reference() -> None:
    found = explore(replace(preset("small"), length=5, reaches=("hit", "full-pool", "drafts-in-flight")))
    assert found.verdict == "holds" and found.transitions > 2_000


@pytest.mark.parametrize(("fault", "name", "clause", "length"), SHORTEST)
def test_a_fault_falls_under_its_clause_after_as_few_operations_as_can_be(fault, name, clause, length):
    with planted([by_id(fault)]):
        found = explore(preset(name), compare_policy=False, faults=(fault,))
    assert found.case is not None and found.case.expected.clause == clause
    assert len(found.case.operations) == length
    assert cases.replay(found.case).recurs(found.case)


def first_to_fall(scope: Preset) -> int:
    """The length of a shortest violation, by every sequence one by one and nothing merged; 0 without any."""
    root = Session(adapter_of(scope), scope.config, compare_policy=False, execute=False)
    freezer = Freezer(root)
    sequences = [freezer.freeze(root)]
    for length in range(1, scope.length + 1):
        longer = []
        for data in sequences:
            for operation in list(operations(scope, freezer.thaw(data).state)):
                session = freezer.thaw(data)
                session.apply(operation)
                if session.over:
                    return length
                longer.append(freezer.freeze(session))
        sequences = longer
    return 0


TRIED = [row for row in SHORTEST if row[1] == "tiny"][:7] + [row for row in SHORTEST if row[1] == "rows"]


@pytest.mark.parametrize(("fault", "name", "length"), [(row[0], row[1], row[3]) for row in TRIED])
def test_without_merging_no_sequence_is_shorter(fault, name, length):
    with planted([by_id(fault)]):
        assert first_to_fall(replace(preset(name), length=length)) == length
    assert first_to_fall(replace(preset(name), length=min(length, 3))) == 0


@pytest.mark.parametrize("fault", ["stale-hash", "taken-from-the-end"])
def test_the_policy_sees_at_least_as_early(fault):
    with planted([by_id(fault)]):
        compared = explore(preset("tiny"))
        alone = explore(replace(preset("tiny"), length=7, reaches=()), compare_policy=False)
    assert compared.case is not None
    most = len(alone.case.operations) if alone.case is not None else 7
    assert len(compared.case.operations) <= most
