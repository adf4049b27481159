"""The proof's abstract machine and the real thing: each operation that fuzzing saw decomposes into it."""

from collections import Counter

import pytest

from kvproof.fuzz.adapters.reference import ReferenceAdapter
from kvproof.fuzz.choices import Choices
from kvproof.fuzz.configs import draw_config
from kvproof.fuzz.faults import by_id, planted
from kvproof.fuzz.prompts import World
from kvproof.fuzz.rules import weighted
from kvproof.fuzz.session import Session
from kvproof.spec import operations as op
from kvproof.spec.contract import preempted_first
from kvproof.spec.theorems.refinement import NoDecomposition, Snapshot, decompose
from kvproof.spec.theorems.rules import RULES


def snapshot(session: Session) -> Snapshot:
    """Holders and steps as `spec.transitions` has them, queue and keys as the manager shows them."""
    state = session.state
    seen = session.adapter.observe([])
    assert isinstance(session.adapter, ReferenceAdapter)
    full = session.adapter.manager.block_pool
    assert seen is not None
    names = {number: f"{life.request}#{number}" for number, life in state.lives.items()}
    return Snapshot(
        holders={block: frozenset(names[n] for n in numbers) for block, numbers in state.holders.items()},
        free=frozenset(full.free_queue.to_list()),
        keyed=frozenset(block for _, _, blocks in full.index_entries() for block in blocks),
        touched={step.number: step.touched for step in state.steps},
        ended=frozenset(names[life.number] for life in state.deferred),
    )


def walk(seed: int, rules: int) -> Counter[str]:
    """Run rules, decomposing each operation; which abstract transitions that took."""
    choices, adapter = Choices(seed), ReferenceAdapter(level=2)
    rules_of = weighted(adapter.capabilities)
    config = draw_config(choices, adapter.capabilities)
    session = Session(adapter, config)
    world = World(config, session.state)
    used: Counter[str] = Counter()
    before = snapshot(session)
    for _ in range(rules):
        for operation in choices.pick(rules_of)(world, choices):
            for each in (*preempted_first(session.state, operation), operation):
                session.apply(each)
                after = snapshot(session)
                used.update(transition.rule for transition in decompose(before, after))
                before = after
                assert session.violation is None, "what decomposes breaks no clause"
    return used


def test_every_operation_decomposes_and_every_transition_is_needed() -> None:
    used: Counter[str] = Counter()
    for seed in range(40):
        used += walk(seed, 40)
    assert {rule.name for rule in RULES} - set(used) == set(), "a transition that nothing real is"
    assert sum(used.values()) > 3000


@pytest.mark.parametrize("fault", ["fence-off-by-one", "released-a-step-early", "hit-left-in-queue"])
def test_a_faulty_release_does_not_decompose(fault: str) -> None:
    with planted([by_id(fault)]), pytest.raises(NoDecomposition):
        for seed in range(200):
            walk(seed, 60)


def test_a_block_taken_while_a_step_touches_it_does_not_decompose() -> None:
    before = Snapshot({1: frozenset({"a#1"})}, frozenset({2}), touched={1: frozenset({1})})
    after = Snapshot({}, frozenset({1, 2}), touched={1: frozenset({1})})
    with pytest.raises(NoDecomposition):
        decompose(before, after)


def test_looking_is_no_transition() -> None:
    adapter = ReferenceAdapter(level=2)
    session = Session(adapter, draw_config(Choices(1), adapter.capabilities))
    before = snapshot(session)
    session.apply(op.Observe())
    assert decompose(before, snapshot(session)) == []
