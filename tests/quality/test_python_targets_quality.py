"""Known-bad releases stay bad, and mistakes planted in a good one are seen from outside."""

from pathlib import Path
from statistics import median

import pytest

from kvproof import make_adapter, soak
from kvproof.fuzz import cases
from kvproof.fuzz.faults import load, planted
from kvproof.fuzz.targets import TargetSkipped

HERE = Path(__file__).parent
KNOWN_BAD = sorted((HERE / "known_bad").glob("*.json"))
MISTAKES = {fault.id: fault for fault in load(HERE / "transformers_mistakes.toml")}

AT_MOST = {
    "no-ref-taken": 150,
    "hash-kept-on-a-freed-block": 125,
    "stale-index-after-evict": 150,
    "claimed-block-still-evictable": 150,
    "row-off-by-one": 15,
    "match-rounds-up": 267,
    "double-release": 28,
    "dedup-without-row-update": 222,
}
"""Mistake → operations that a run may need in the median. Over 200 seeds the medians are lower."""


def needs(target):
    try:
        make_adapter(target)
    except TargetSkipped as reason:
        pytest.skip(str(reason))


@pytest.mark.parametrize("path", KNOWN_BAD, ids=lambda path: path.stem)
def test_a_known_bad_release_breaks_its_clause(path):
    case = cases.load(path)
    needs(case.target)
    assert case.expected.result == "violated"
    assert cases.replay(case).recurs(case)


def test_there_are_known_bad_releases_and_mistakes():
    assert len(KNOWN_BAD) >= 3
    assert AT_MOST.keys() == MISTAKES.keys()


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_in_transformers_is_seen_from_outside(name):
    needs("transformers")
    spent, fallen = [], set()
    with planted([MISTAKES[name]]):
        for seed in range(25):
            result = soak(20_000, seed, adapter=lambda: make_adapter("transformers"), compare_policy=False)
            assert result.case is not None
            spent.append(result.operations)
            fallen.add(result.case.expected.clause)
    assert MISTAKES[name].clause in fallen
    assert median(spent) <= AT_MOST[name]
