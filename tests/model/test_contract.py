"""The engine's contract: what it must not do is refused before it reaches the allocator."""

import msgspec
import pytest

from kvproof.fuzz.adapters.reference import ReferenceAdapter
from kvproof.fuzz.session import IllegalOperation, Session
from kvproof.spec import operations as op
from kvproof.spec.contract import preempted_first, reason_against
from kvproof.spec.vocabulary import CacheConfig

CONFIG = CacheConfig(blocks=8, block_size=2, depth=2, max_requests=3, max_len=12)
PROMPT = (1, 2, 3, 4, 5)


def session(*operations: op.AnyOperation) -> Session:
    made = Session(ReferenceAdapter(), CONFIG)
    for operation in operations:
        made.apply(operation)
    assert made.violation is None
    return made


ADMITTED = (op.Submit("a", PROMPT), op.Admit("a", 5))
FLYING = (*ADMITTED, op.Dispatch(1, (op.Entry("a", 5),)))

ILLEGAL = [
    ((), op.Submit("", (1,)), "needs an id"),
    ((), op.Submit("a", ()), "0 tokens"),
    ((), op.Submit("a", ((0, 13),)), "13 tokens"),
    (ADMITTED, op.Submit("a", (1,)), "in use"),
    ((), op.Submit("a", (1, 2), op.Extras(items=(op.Item("x", 1, 2),))), "leaves the prompt"),
    ((), op.Submit("a", (1, 2), op.Extras(embeddings=(op.Embedding(1, 0), op.Embedding(0, 0)))), "rise"),
    ((), op.Submit("a", (1,), op.Extras(None, "", (op.Item("x", 0, 1),), (op.Embedding(0, 0),))), "inside"),
    ((), op.Admit("a", 1), "does not wait"),
    (ADMITTED, op.Admit("a", 1), "does not wait"),
    ((op.Submit("a", (1,)),), op.Admit("a", 0), "n ≥ 1"),
    ((op.Submit("a", (1,)),), op.Extend("a", 1), "not admitted"),
    (ADMITTED, op.Extend("a", 1), "undispatched grant"),
    ((*FLYING, op.Extend("a", 1), op.Dispatch(2, (op.Entry("a", 1),))), op.Dispatch(3, ()), "in flight"),
    (ADMITTED, op.Dispatch(2, (op.Entry("a", 5),)), "next step is 1"),
    (ADMITTED, op.Dispatch(1, (op.Entry("a", 4),)), "next grant is 5"),
    (ADMITTED, op.Dispatch(1, (op.Entry("a", 5, (7,)),)), "lookahead slots"),
    (ADMITTED, op.Dispatch(1, (op.Entry("a", 5),), padding=3), "at most 3 rows"),
    (FLYING, op.Retire(2), "not the oldest"),
    (FLYING, op.Retire(1), "living lives"),
    (FLYING, op.Retire(1, (op.Output("a"),)), "samples 1"),
    (FLYING, op.Retire(1, (op.Output("a", (1,), accepted=1),)), "samples 1"),
    ((), op.Finish("a"), "not admitted"),
    ((), op.Abort("a"), "not admitted"),
    (ADMITTED, op.Evict("a", 3), "ends at 3"),
    (ADMITTED, op.Evict("a", 8), "ends at 8"),
    (ADMITTED, op.Table("move", "a"), "no row"),
    (FLYING, op.Table("turn", "a"), "move or swap"),
]


@pytest.mark.parametrize(("before", "operation", "reason"), ILLEGAL)
def test_an_illegal_operation_is_refused_with_its_reason_and_reaches_nobody(
    before, operation, reason
) -> None:
    made = session(*before)
    seen = made.adapter.observe(None)
    with pytest.raises(IllegalOperation, match=reason):
        made.apply(operation)
    assert made.operations == list(before)
    later = made.adapter.observe(None)
    assert seen is not None and later is not None
    assert later == msgspec.structs.replace(seen, events=())


def test_lives_on_undispatched_writes_are_preempted_first_deepest_first() -> None:
    chain = session(
        *ADMITTED,
        op.Submit("b", (1, 2, 3, 4, 6, 7, 8)),
        op.Admit("b", 7),
        op.Submit("c", (1, 2, 3, 4, 6, 7, 9)),
        op.Admit("c", 7),
    )
    assert preempted_first(chain.state, op.Finish("a")) == [op.Preempt("c"), op.Preempt("b")]
    assert preempted_first(chain.state, op.Finish("c")) == []
    chain.apply(op.Finish("a"))
    assert chain.violation is None
    assert chain.operations[-3:] == [op.Preempt("c"), op.Preempt("b"), op.Finish("a")]


def test_after_the_dispatch_nobody_rests_on_a_mere_grant() -> None:
    made = session(*FLYING, op.Submit("b", (1, 2, 3, 4, 6)), op.Admit("b", 5))
    assert preempted_first(made.state, op.Finish("a")) == []
    assert reason_against(made.state, op.Finish("a")) is None


def test_an_id_may_be_used_again_while_its_old_life_is_in_flight() -> None:
    made = session(*FLYING, op.Finish("a"), op.Submit("a", PROMPT), op.Admit("a", 5))
    lives = [life.request for life in made.state.lives.values()]
    assert lives == ["a", "a"] and made.state.deferred[0].ended
    made.apply(op.Retire(1))
    assert made.violation is None and not made.state.deferred


def test_outputs_of_an_ended_life_are_dropped() -> None:
    made = session(*FLYING, op.Preempt("a"), op.Retire(1))
    assert made.state.requests["a"].paths[0].length == len(PROMPT)
    assert made.state.waiting() == ["a"]
