"""Every case that ships recurs: conformance cases hold, minimized failures fail as they did."""

from importlib import resources
from importlib.resources.abc import Traversable

import msgspec
import pytest

from kvproof.fuzz import cases
from kvproof.fuzz.cases import Case, Expected
from kvproof.fuzz.faults import seeded

FILES = [
    file
    for package in ("kvproof.spec.cases", "kvproof.fuzz.seeds")
    for file in sorted(resources.files(package).iterdir(), key=lambda file: file.name)
    if file.name.endswith(".json")
]
SEEDS = {file.name.removesuffix(".json"): file for file in FILES if "seeds" in str(file)}


def read(file: Traversable) -> Case:
    return cases.parse(file.read_bytes(), file.name)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_the_expected_verdict_recurs(file) -> None:
    case = read(file)
    outcome = cases.replay(case)
    assert outcome.recurs(case), (outcome.difference, outcome.verdict.violation)


@pytest.mark.parametrize("fault", seeded(), ids=lambda fault: fault.id)
def test_each_seeded_fault_has_a_case_of_at_most_twelve_operations(fault) -> None:
    case = read(SEEDS[fault.id])
    assert case.faults == (fault.id,) and case.expected == Expected("violated", fault.clause)
    assert len(case.operations) <= 12
    assert case.compare_policy == fault.against_policy


@pytest.mark.parametrize("name", sorted(SEEDS))
def test_without_its_fault_a_minimized_failure_holds(name: str) -> None:
    healthy = msgspec.structs.replace(read(SEEDS[name]), faults=(), expected=Expected())
    try:
        outcome = cases.replay(healthy)
    except cases.CaseError:  # a fault may have answered what the healthy manager refuses
        return
    assert outcome.verdict.result == "holds", outcome.verdict.violation


def test_a_timeline_with_one_wrong_expectation_does_not_recur() -> None:
    (file,) = [file for file in FILES if file.name == "timeline.json"]
    case = read(file)
    for i, expect in enumerate(case.expect):
        assert expect is not None
        changes = ({"free": (99,)}, {"refs": {1: 9}}, {"hit": 3}, {"owned": {"R9": ((1,),)}}, {"keys": ()})
        for change in changes:
            if all(getattr(expect, name) == value for name, value in change.items()):
                continue
            wrong = msgspec.structs.replace(expect, **change)
            forged = msgspec.structs.replace(case, expect=(*case.expect[:i], wrong, *case.expect[i + 1 :]))
            outcome = cases.replay(forged)
            assert outcome.difference.startswith(f"operation {i + 1}:") and not outcome.recurs(forged)
