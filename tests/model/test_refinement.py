"""What may be seen of an allocator decomposes into abstract transitions, and what may not doesn't."""

import random
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from itertools import pairwise

import pytest

from kvproof.spec.theorems.refinement import Abstract, NoDecomposition, Snapshot, Transition, decompose
from kvproof.spec.theorems.rules import RULES


def of(*names):
    return frozenset(names)


START = Snapshot.start(4)
ADMITTED = Snapshot({1: of("A1"), 2: of("A1")}, of(3, 4), keyed=of(1))
FLYING = replace(ADMITTED, touched={1: of(1, 2)})
SHARED = replace(FLYING, holders={1: of("A1", "B2"), 2: of("A1"), 3: of("B2")}, free=of(4))
DEFERRED = replace(SHARED, ended=of("A1"))
RETIRED = replace(SHARED, holders={1: of("B2"), 3: of("B2")}, free=of(2, 4), touched={})
FREED = replace(RETIRED, holders={}, free=of(1, 2, 3, 4))
STORY = [START, ADMITTED, FLYING, SHARED, DEFERRED, RETIRED, FREED]


def test_a_story_decomposes_into_transitions():
    told = [[each.rule for each in decompose(*pair)] for pair in pairwise(STORY)]
    assert told == [
        ["take", "take", "fill", "publish"],
        ["dispatch"],
        ["share", "take"],
        ["defer"],
        ["retire", "release_shared", "release_last"],
        ["release_last", "release_last"],
    ]


def test_cached_blocks_are_revived_evicted_or_reset():
    again = replace(FREED, holders={1: of("C3"), 4: of("C3")}, free=of(2, 3))
    revived = ["revive holder C3 block 1", "take holder C3 block 4"]
    assert [str(each) for each in decompose(FREED, again)] == revived
    evicted = replace(again, keyed=of())
    assert [each.rule for each in decompose(FREED, evicted)] == ["take", "take"]
    assert [each.rule for each in decompose(FREED, replace(FREED, keyed=of()))] == ["reset", "void"]
    assert [each.rule for each in decompose(SHARED, replace(SHARED, keyed=of()))] == ["withdraw", "void"]


def test_a_block_passes_from_one_life_to_the_next_in_one_operation():
    passed = replace(ADMITTED, holders={1: of("B2"), 2: of("B2")})
    assert [each.rule for each in decompose(ADMITTED, passed)] == [
        "share",
        "release_shared",
        "release_last",
        "take",
    ]


LATER = {
    "freed while a step touches it": (
        FLYING,
        replace(FLYING, holders={}, free=of(1, 2, 3, 4)),
        "release_last",
    ),
    "free and held": (FLYING, replace(FLYING, free=of(2, 3, 4)), "block 2 is in the free queue"),
    "leaked": (START, replace(ADMITTED, free=of(3)), "block 4 is not in the free queue"),
    "a free block keyed": (ADMITTED, replace(ADMITTED, keyed=of(1, 3)), "fill holder nobody block 3"),
    "an unkeyed block shared": (
        ADMITTED,
        replace(ADMITTED, holders={1: of("A1"), 2: of("A1", "B2")}),
        "share holder B2 block 2",
    ),
    "a free block touched": (ADMITTED, replace(ADMITTED, touched={1: of(3)}), "dispatch step 1 touching [3]"),
    "a step changes": (FLYING, replace(FLYING, touched={1: of(1)}), "touches other blocks"),
    "a life comes back": (DEFERRED, replace(DEFERRED, ended=of()), "came back after the end"),
    "an ended life runs": (DEFERRED, replace(DEFERRED, touched={1: of(1, 2), 2: of(2)}), "dispatch step 2"),
    "an ended life publishes": (DEFERRED, replace(DEFERRED, keyed=of(1, 2)), "fill holder nobody block 2"),
    "a shared block freed by one": (
        SHARED,
        replace(SHARED, holders={1: of("B2"), 2: of("A1"), 3: of("B2")}, free=of(1, 4)),
        "block 1 is in the free queue",
    ),
    "the null block held": (START, replace(START, holders={0: of("A1")}), "take holder A1"),
}


@pytest.mark.parametrize(("before", "after", "why"), LATER.values(), ids=LATER.keys())
def test_what_no_allocator_may_do_does_not_decompose(before, after, why):
    with pytest.raises(NoDecomposition) as raised:
        decompose(before, after)
    assert why in str(raised.value)


def test_a_broken_snapshot_is_named():
    assert [Abstract(each).broken() for each in STORY] == [[]] * len(STORY)
    assert Abstract(replace(SHARED, free=of(1, 4))).broken() == ["a held block is not in the free queue"]
    touched = replace(SHARED, touched={1: of(4)})
    assert Abstract(touched).broken() == ["a block that a step in flight touches is held"]


BEGINNINGS = (Snapshot({1: of("A", "B")}, of(2, 3), keyed=of(1, 2)), Snapshot({}, of(1, 2, 3), keyed=of(1)))
"""Something to share and to revive, and something to reset."""


def test_random_transitions_keep_the_invariant_and_decompose_one_by_one():
    draw, fired = random.Random(12), Counter[str]()
    names, blocks, steps = ("A", "B", "C"), (1, 2, 3), (1, 2)
    everything = Snapshot({1: of(*names)}, of(*blocks), touched={step: of() for step in steps})
    now = BEGINNINGS[0]
    for _ in range(6_000):
        rule = draw.choice(RULES).name
        reads = of(*(each for each in blocks if draw.random() < 0.5 and now.of(each)))
        made = Transition(rule, draw.choice(names), draw.choice(blocks), draw.choice(steps), reads)
        machine = Abstract(now, everything)
        try:
            machine.apply(made)
        except NoDecomposition:
            continue
        after = machine.snapshot()
        assert machine.broken() == []
        found = [each.rule for each in decompose(now, after)]
        # The last key of an idle pool may as well go by a reset.
        assert found in ([], [rule], ["reset"] if rule == "withdraw" else [rule])
        now, fired[rule] = after, fired[rule] + 1
        if fired.total() % 12 == 0:
            now = draw.choice(BEGINNINGS)
    assert min(fired[rule.name] for rule in RULES) >= 5, fired


def test_refinement_loads_no_prover():
    code = "import sys, kvproof.spec.theorems.refinement; assert 'z3' not in sys.modules"
    assert subprocess.run([sys.executable, "-P", "-c", code]).returncode == 0
