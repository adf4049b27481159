"""Situations: a run is silent about what it never met."""

import pytest
from msgspec.structs import replace

from kvproof.fuzz.adapters.reference import ReferenceAdapter
from kvproof.fuzz.engines.soak import soak
from kvproof.fuzz.session import Session
from kvproof.spec import operations as op
from kvproof.spec.oracle import CLAUSES
from kvproof.spec.situations import SITUATIONS, WHERE
from kvproof.spec.vocabulary import CacheConfig, Capabilities

CONFIG = CacheConfig(blocks=4, block_size=2, depth=2, max_requests=3, max_len=8)


def met(*operations: op.AnyOperation, config: CacheConfig = CONFIG) -> tuple[str, ...]:
    session = Session(ReferenceAdapter(level=2), config, execute=False)
    verdict = session.run(operations)
    assert verdict.result == "holds"
    return verdict.situations


def step(number: int, *entries: op.Entry) -> op.Dispatch:
    return op.Dispatch(number, entries)


FIRST = (op.Submit("a", (1, 2, 3, 4, 5)), op.Admit("a", 5))
RAN = (*FIRST, step(1, op.Entry("a", 5)), op.Retire(1, (op.Output("a", (6,)),)))

STORIES: dict[str, tuple[tuple[op.AnyOperation, ...], tuple[op.AnyOperation, ...]]] = {
    # name: (operations that do not meet it, operations behind them that do)
    "hit": (RAN, (op.Submit("b", (1, 2, 3)), op.Admit("b", 3))),
    "hit-on-held-block": (
        (*RAN, op.Finish("a")),
        (op.Submit("b", (1, 2, 3)), op.Admit("b", 3), *(op.Submit("c", (1, 2, 4)), op.Admit("c", 3))),
    ),
    "hit-on-free-block": (RAN, (op.Finish("a"), op.Submit("b", (1, 2, 3)), op.Admit("b", 3))),
    "same-step-hit": (FIRST, (op.Submit("b", (1, 2, 3)), op.Admit("b", 3))),
    "hit-on-step-in-flight": (RAN[:3], (op.Submit("b", (1, 2, 3)), op.Admit("b", 3))),
    "full-hit-cut-back": (RAN, (op.Submit("b", (1, 2, 3, 4)), op.Admit("b", 4))),
    "opt-out-of-a-hit": (
        RAN,
        (op.Submit("b", (1, 2, 3), options=op.Options(read_cache=False)), op.Finish("a"), op.Admit("b", 3)),
    ),
    "resumed-with-a-hit": (RAN, (op.Preempt("a"), op.Admit("a", 6))),
    "eviction": ((*RAN, op.Finish("a")), (op.Submit("b", (7,) * 7), op.Admit("b", 7))),
    "eviction-of-shared-block": (
        (*RAN, op.Submit("b", (1, 2, 9)), op.Admit("b", 3)),
        (
            step(2, op.Entry("b", 1)),
            op.Retire(2, (op.Output("b", (1,)),)),
            op.Finish("a"),
            op.Finish("b"),
            op.Submit("c", (7,) * 8),
            op.Admit("c", 8),
        ),
    ),
    "full-pool": (FIRST, (op.Submit("b", (9,)), op.Admit("b", 1))),
    "refusal": (FIRST, (op.Submit("b", (9, 9, 9)), op.Admit("b", 3))),
    "refusal-with-evictable-hits": (
        (*RAN, op.Finish("a"), op.Submit("b", (9,) * 5), op.Admit("b", 5)),
        (op.Submit("c", (1, 2, 8, 8)), op.Admit("c", 4)),
    ),
    "refusal-to-go-on": (
        (*FIRST, op.Submit("b", (9,)), op.Admit("b", 1), step(1, op.Entry("a", 5), op.Entry("b", 1))),
        (
            op.Retire(1, (op.Output("a", (6,)), op.Output("b", (9,)))),
            op.Extend("a", 1),
            step(2, op.Entry("a", 1)),
            op.Retire(2, (op.Output("a", (7,)),)),
            op.Extend("a", 1),
        ),
    ),
    "two-steps-in-flight": (RAN[:3], (op.Extend("a", 1), step(2, op.Entry("a", 1)))),
    "allocation-in-flight": (RAN[:3], (op.Submit("b", (9,)), op.Admit("b", 1))),
    "end-in-flight": (RAN[:3], (op.Finish("a"),)),
    "id-reused-in-flight": ((*RAN[:3], op.Finish("a")), (op.Submit("a", (9,)),)),
    "promise-withdrawn": (FIRST, (op.Finish("a"),)),
    "drafts-in-flight": (
        (op.Submit("a", (1, 2)), op.Admit("a", 2, 2)),
        (step(1, op.Entry("a", 2, (5,))),),
    ),
    "padding": (FIRST, (op.Dispatch(1, (op.Entry("a", 5),), 1),)),
    "block-filled-by-sampling": (RAN[:3], (RAN[3],)),
    "two-tenants": (FIRST, (op.Submit("b", (1,), op.Extras(salt="x")), op.Admit("b", 1))),
    "reset-with-keys": ((*RAN, op.Finish("a")), (op.Reset(),)),
    "reset-refused": (FIRST, (op.Reset(),)),
    "evicted-by-name": (RAN, (op.Evict("a", 2),)),
    "drained": (RAN, (op.Finish("a"),)),
}


@pytest.mark.parametrize("name", STORIES)
def test_a_situation_is_met_by_its_own_story_and_not_before(name: str) -> None:
    before, behind = STORIES[name]
    assert name not in met(*before)
    assert name in met(*before, *behind)


def test_duplicates_and_the_eviction_of_one_of_them() -> None:
    """Two requests whose prompt is one full block compute it both, since a last token is always computed."""
    both: list[op.AnyOperation] = []
    for name in ("a", "b"):
        both += [op.Submit(name, (1, 2)), op.Admit(name, 2)]
    both += [
        step(1, op.Entry("a", 2), op.Entry("b", 2)),
        op.Retire(1, (op.Output("a", (3,)), op.Output("b", (4,)))),
    ]
    assert "duplicate-keys" in met(*both)
    assert "eviction-of-one-duplicate" not in met(*both)
    behind: list[op.AnyOperation] = [op.Finish("a"), op.Submit("c", (9,) * 6), op.Admit("c", 6)]
    assert "eviction-of-one-duplicate" in met(*both, *behind)


def test_rows_are_rearranged_by_the_worker_alone() -> None:
    session = Session(ReferenceAdapter(), CONFIG)
    verdict = session.run([*RAN, op.Table("move", "a")])
    assert "rows-rearranged" in verdict.situations
    assert "rows-rearranged" not in met(*RAN)


def test_every_situation_has_a_story() -> None:
    told = {*STORIES, "duplicate-keys", "eviction-of-one-duplicate", "rows-rearranged"}
    assert told == {each.name for each in SITUATIONS}


def test_a_soak_of_ten_thousand_operations_meets_every_situation() -> None:
    result = soak(10_000, 5)
    assert [each.name for each in SITUATIONS if not result.situations[each.name]] == []


def test_a_clause_counts_as_exercised_only_where_it_could_have_fallen() -> None:
    codes = {clause.code for clause in CLAUSES}
    assert set(WHERE) <= codes
    session = Session(ReferenceAdapter(level=2), CONFIG, execute=False)
    quiet = session.run(RAN)
    assert quiet.exercised["KV-I2-hit"] == 0
    assert quiet.exercised["KV-I1-refcount"] == len(RAN)
    hit: list[op.AnyOperation] = [op.Submit("b", (1, 2, 3)), op.Admit("b", 3)]
    assert session.run(hit).exercised["KV-I2-hit"] == 2


def test_an_allocator_is_not_blamed_for_a_situation_that_it_cannot_be_in() -> None:
    plain = Capabilities(1)
    impossible = {each.name for each in SITUATIONS if not each.possible(plain)}
    assert {"opt-out-of-a-hit", "eviction", "reset-refused", "rows-rearranged"} <= impossible
    assert "two-steps-in-flight" in impossible
    assert not impossible & {"hit", "same-step-hit", "hit-on-step-in-flight"}
    late = {each.name for each in SITUATIONS if not each.possible(replace(plain, publish="retire"))}
    assert late - impossible == {"same-step-hit", "hit-on-step-in-flight"}
