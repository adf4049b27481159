"""Each clause has a control: a true history with one lie in it, by which exactly that clause falls.

The oracle is pure, so the records of a correct run can be forged before they are judged.
"""

from collections.abc import Callable

import msgspec
import pytest

from kvproof.fuzz.adapters.reference import ReferenceAdapter
from kvproof.fuzz.session import Session
from kvproof.spec import operations as op
from kvproof.spec.oracle import BY_CODE, CLAUSES, Oracle, Violation
from kvproof.spec.policy import Policy
from kvproof.spec.properties.refinement import against_policy
from kvproof.spec.vocabulary import CacheConfig, Capabilities

replace = msgspec.structs.replace
CONFIG = CacheConfig(blocks=6, block_size=2, depth=2, max_requests=4, max_len=12)


def dispatch(step: int, name: str, n: int, padding: int = 0) -> op.Dispatch:
    return op.Dispatch(step, (op.Entry(name, n),), padding)


def retire(step: int, name: str, *sampled: int) -> op.Retire:
    return op.Retire(step, (op.Output(name, sampled),))


HISTORY: tuple[op.AnyOperation, ...] = (
    op.Submit("a", (1, 2, 3, 4, 5)),
    op.Admit("a", 5),
    dispatch(1, "a", 5, padding=1),
    op.Submit("b", (1, 2, 3, 4, 9)),
    op.Lookup("b"),
    op.Admit("b", 5),
    dispatch(2, "b", 1),
    retire(1, "a", 6),
    retire(2, "b", 7),
    op.Extend("a", 1),
    op.Row("a"),
    dispatch(3, "a", 1),
    op.Finish("a"),
    op.Retire(3),
    op.Finish("b"),
    op.Submit("c", (8, 8, 8), options=op.Options(read_cache=False)),
    op.Admit("c", 3),
    dispatch(4, "c", 3),
    retire(4, "c", 1),
    op.Finish("c"),
    op.Reset(),
    op.Observe(),
)
UNREAD = tuple(operation for operation in HISTORY if not isinstance(operation, op.Row))
WITHDRAWN: tuple[op.AnyOperation, ...] = (
    op.Submit("a", (1, 2, 3, 4, 5)),
    op.Admit("a", 5),
    op.Preempt("a"),
    op.Submit("b", (1, 2, 3, 4, 9)),
    op.Admit("b", 5),
)
TWINS: tuple[op.AnyOperation, ...] = (
    op.Submit("a", (1, 2, 3)),
    op.Admit("a", 3),
    op.Submit("b", (1, 2, 3), options=op.Options(read_cache=False)),
    op.Admit("b", 3),
)
TENANTS: tuple[op.AnyOperation, ...] = (
    op.Submit("a", (1, 2, 3)),
    op.Admit("a", 3),
    op.Submit("b", (1, 2, 3), op.Extras(salt="t")),
    op.Admit("b", 3),
)
TOO_LARGE: tuple[op.AnyOperation, ...] = (op.Submit("a", tuple(range(12))), op.Admit("a", 12))

Forge = Callable[[op.Record, list[op.Record]], op.Record]


def records_of(history: tuple[op.AnyOperation, ...], config: CacheConfig = CONFIG) -> list[op.Record]:
    records: list[op.Record] = []
    session = Session(ReferenceAdapter(), config, watch=records.append)
    assert session.run(history).result == "holds", session.violation
    return records


def judge(
    records: list[op.Record], config: CacheConfig, capabilities: Capabilities, policy: bool = False
) -> Violation | None:
    oracle = Oracle(config, capabilities, compare_policy=policy)
    for record in records:
        seen = record.observation if capabilities.level >= 2 else None
        if oracle.judge(record.operation, record.answer, seen, record.memory):
            break
    return oracle.violation


def answer(**changes: object) -> Forge:
    return lambda record, _: replace(record, answer=replace(record.answer, **changes))


def seen(**changes: object) -> Forge:
    def forge(record: op.Record, _: list[op.Record]) -> op.Record:
        assert record.observation is not None
        return replace(record, observation=replace(record.observation, **changes))

    return forge


def block(number: int, **changes: object) -> Forge:
    def forge(record: op.Record, _: list[op.Record]) -> op.Record:
        assert record.observation is not None
        blocks = dict(record.observation.blocks)
        blocks[number] = replace(blocks[number], **changes)
        return replace(record, observation=replace(record.observation, blocks=blocks))

    return forge


def crashed(record: op.Record, records: list[op.Record]) -> op.Record:
    return replace(record, answer=op.Crashed("Boom", "it broke"))


def refused(record: op.Record, records: list[op.Record]) -> op.Record:
    return replace(record, answer=op.Refused(), observation=records[record.index - 1].observation)


def free(change: Callable[[tuple[int, ...]], tuple[int, ...]]) -> Forge:
    def forge(record: op.Record, _: list[op.Record]) -> op.Record:
        assert record.observation is not None and record.observation.free is not None
        queue = change(record.observation.free)
        return replace(record, observation=replace(record.observation, free=queue, free_count=len(queue)))

    return forge


def keyed(block_number: int, like: int) -> Forge:
    """Also list a block under the key of another one."""

    def forge(record: op.Record, records: list[op.Record]) -> op.Record:
        assert record.observation is not None
        index = tuple(
            replace(entry, blocks=(*entry.blocks, block_number)) if like in entry.blocks else entry
            for entry in record.observation.index
        )
        return replace(record, observation=replace(record.observation, index=index))

    return forge


def new_key(block_number: int) -> Forge:
    def forge(record: op.Record, records: list[op.Record]) -> op.Record:
        assert record.observation is not None
        index = (*record.observation.index, op.IndexEntry(b"new", 0, (block_number,)))
        return replace(record, observation=replace(record.observation, index=index))

    return forge


def other_key(record: op.Record, records: list[op.Record]) -> op.Record:
    """The second copy of a prefix is listed under a key of its own."""
    assert record.observation is not None
    (entry,) = record.observation.index
    index = (replace(entry, blocks=entry.blocks[:1]), op.IndexEntry(b"other", 0, entry.blocks[1:]))
    blocks = dict(record.observation.blocks)
    blocks[entry.blocks[1]] = replace(blocks[entry.blocks[1]], key=b"other")
    return replace(record, observation=replace(record.observation, index=index, blocks=blocks))


def kept_keys(record: op.Record, records: list[op.Record]) -> op.Record:
    """The index and the blocks' keys stay as they were one record before."""
    before, now = records[record.index - 1].observation, record.observation
    assert before is not None and now is not None
    blocks = {n: replace(view, ref_cnt=now.blocks[n].ref_cnt) for n, view in before.blocks.items()}
    return replace(record, observation=replace(now, blocks=blocks, index=before.index))


def handed_keyed(record: op.Record, records: list[op.Record]) -> op.Record:
    """A keyed block is handed out, and keeps its key."""
    now = record.observation
    assert now is not None and now.free is not None and isinstance(record.answer, op.Granted)
    mine, taken = 1, record.answer.rows[0][1]
    rows = ((record.answer.rows[0][0], mine),)
    blocks = dict(now.blocks)
    blocks[mine], blocks[taken] = replace(blocks[mine], ref_cnt=1), replace(blocks[taken], ref_cnt=0)
    queue = tuple(taken if each == mine else each for each in now.free)
    return replace(
        record,
        answer=op.Granted(rows),
        observation=replace(now, blocks=blocks, free=queue, rows={"c": rows}),
    )


def lost_count(record: op.Record, records: list[op.Record]) -> op.Record:
    assert record.observation is not None
    partial = replace(record.observation, free=None, rows=None, free_count=5, usage=1 / 6)
    return replace(record, observation=partial)


def other_tokens(record: op.Record, records: list[op.Record]) -> op.Record:
    """The stored event tells other tokens than the keys stand for."""
    assert record.observation is not None
    (event,) = record.observation.events
    assert isinstance(event, op.Stored)
    events = (replace(event, tokens=event.tokens[::-1]),)
    return replace(record, observation=replace(record.observation, events=events))


def rows(field: str, change: Callable[[tuple[op.WorkerRow, ...]], tuple[op.WorkerRow, ...]]) -> Forge:
    def forge(record: op.Record, _: list[op.Record]) -> op.Record:
        return replace(
            record, answer=replace(record.answer, **{field: change(getattr(record.answer, field))})
        )

    return forge


def first_row(**changes: object) -> Callable[[tuple[op.WorkerRow, ...]], tuple[op.WorkerRow, ...]]:
    return lambda found: (replace(found[0], **changes), *found[1:])


MISMATCH = op.Mismatch(1, 0, 0, 4, 5)
STALE_PADDING = rows("host", lambda found: (found[0], replace(found[1], rows=((5, 0, 0, 0, 0, 0),))))
POLICY = Capabilities(3, policy=True)
L1, SWAPS, L3 = Capabilities(1), Capabilities(1, swap=True), Capabilities(3, features=("events",))

LIES: dict[str, tuple[int, Forge, Capabilities, tuple[op.AnyOperation, ...]]] = {
    "KV-P-capacity": (1, crashed, L3, TOO_LARGE),
    "KV-P-crash": (10, crashed, L3, HISTORY),
    "KV-P-refusal": (1, refused, L3, HISTORY),
    "KV-I3-bound": (5, answer(hit=6), L3, HISTORY),
    "KV-I3-optout": (16, answer(hit=2), L3, HISTORY),
    "KV-I3-boundary": (5, answer(hit=3), L3, HISTORY),
    "KV-I3-cover": (5, answer(rows=((1, 2),)), L3, HISTORY),
    "KV-I3-stable": (10, answer(row=(1, 3, 2)), L3, HISTORY),
    "KV-I1-null": (1, answer(rows=((0, 2, 3),)), L3, HISTORY),
    "KV-I1-twice": (1, answer(rows=((1, 1, 3),)), L3, HISTORY),
    "KV-I4-handout": (5, answer(rows=((1, 2, 3),)), L3, HISTORY),
    "KV-I4-release": (12, free(lambda queue: (3, *queue)), L3, HISTORY),
    "KV-I1-exclusive": (9, answer(rows=((1, 2, 3, 4),)), L3, HISTORY),
    "KV-I1-queue": (1, free(lambda queue: (1, *queue)), L3, HISTORY),
    "KV-I1-refcount": (1, block(1, ref_cnt=2), L3, HISTORY),
    "KV-I1-lost": (1, free(lambda queue: queue[1:]), L3, HISTORY),
    "KV-I1-table": (1, seen(rows={}), L3, HISTORY),
    "KV-I6-draft": (1, new_key(3), L3, HISTORY),
    "KV-I6-withdraw": (2, kept_keys, L3, WITHDRAWN),
    "KV-I6-hit": (4, answer(hit=4, rows=((1, 2, 4),)), L1, WITHDRAWN),
    "KV-I4-key": (5, keyed(1, like=2), L3, HISTORY),
    "KV-I2-standing": (9, keyed(1, like=2), L3, HISTORY),
    "KV-I2-key": (16, handed_keyed, L3, HISTORY),
    "KV-I2-boundary": (1, block(1, tokens=1), L3, HISTORY),
    "KV-I2-hit": (5, answer(rows=((2, 1, 4),)), L1, HISTORY),
    "KV-I2-write": (9, answer(rows=((1, 2, 4),)), SWAPS, UNREAD),
    "KV-I2-read": (9, answer(rows=((2, 1, 3),)), SWAPS, UNREAD),
    "KV-I2-bytes": (7, lambda record, _: replace(record, memory=(MISMATCH,)), L3, HISTORY),
    "KV-I5-row": (2, rows("host", first_row(rows=((1, 3, 2, 0, 0, 0),))), L3, HISTORY),
    "KV-I5-device": (7, rows("device", first_row(rows=((1, 3, 2, 0, 0, 0),))), L3, HISTORY),
    "KV-I5-stale": (2, STALE_PADDING, L3, HISTORY),
    "KV-I5-slot": (7, rows("device", first_row(slots=((2, 3, 4, 5, 7),))), L3, HISTORY),
    "KV-P-accounting": (1, seen(metrics=op.Metrics(2, 5)), L3, HISTORY),
    "KV-P-usage": (1, seen(usage=0.9), POLICY, HISTORY),
    "KV-P-atomic": (4, free(lambda queue: queue[::-1]), L3, HISTORY),
    "KV-P-reset": (20, kept_keys, L3, HISTORY),
    "KV-P-isolation": (3, answer(hit=2, rows=((1, 3),)), L1, TENANTS),
    "KV-P-canonical": (3, other_key, L3, TWINS),
    "KV-P-leak": (14, lost_count, L3, HISTORY),
    "KV-P-events": (1, seen(events=()), L3, HISTORY),
    "KV-P-chain": (1, other_tokens, L3, HISTORY),
}


DRAFTED: tuple[op.AnyOperation, ...] = (
    op.Submit("a", (1, 2)),
    op.Admit("a", 2, 2),
    op.Dispatch(1, (op.Entry("a", 2, (7, 7)),)),
    op.Finish("a"),
    op.Submit("b", (5,)),
    op.Admit("b", 1),
)


def foreign_hit(record: op.Record, records: list[op.Record]) -> op.Record:
    """A hit across salts, in answer and structures alike."""
    now = record.observation
    assert now is not None and now.free is not None
    rows = ((1, 3),)
    blocks = {**now.blocks, 1: replace(now.blocks[1], ref_cnt=2), 3: now.blocks[4], 4: now.blocks[5]}
    queue = (4, *(block for block in now.free if block not in (3, 4)))
    assert now.rows is not None
    seen = replace(now, blocks=blocks, free=queue, free_count=len(queue), rows={**now.rows, "b": rows})
    return replace(record, answer=op.Granted(rows, 2), observation=seen)


def orphan(record: op.Record, records: list[op.Record]) -> op.Record:
    """A stored event that names no parent, though there is one."""
    assert record.observation is not None
    (event,) = record.observation.events
    return replace(record, observation=replace(record.observation, events=(replace(event, parent=None),)))


EVERYTHING = Capabilities(1, swap=True, idempotent=True)
PADDED = rows("device", lambda found: (found[0], replace(found[1], slots=((5,),))))

FURTHER: list[tuple[str, int, Forge, Capabilities, tuple[op.AnyOperation, ...]]] = [
    ("KV-I2-read", 9, answer(rows=((1, 2, 4),)), EVERYTHING, UNREAD),
    ("KV-I2-hit", 5, answer(rows=((1, 3, 4),)), L1, HISTORY),
    ("KV-I3-stable", 9, answer(rows=((2, 1, 3),)), L1, UNREAD),
    ("KV-I3-cover", 1, answer(rows=((1, 2, 3), (4, 5, 6))), L1, HISTORY),
    ("KV-I3-cover", 1, answer(rows=()), L1, HISTORY),
    ("KV-I5-slot", 7, PADDED, L3, HISTORY),
    ("KV-P-events", 20, seen(events=()), L3, HISTORY),
    ("KV-P-chain", 9, orphan, L3, HISTORY),
    ("KV-I4-handout", 5, answer(rows=((2,),)), L1, DRAFTED),
]
"""Other ways in which a clause must fall: a part of it that could be dropped unnoticed."""


@pytest.mark.parametrize(("code", "at", "forge", "capabilities", "history"), FURTHER)
def test_a_clause_falls_in_each_of_its_ways(code, at, forge, capabilities, history) -> None:
    records = records_of(history)
    assert judge(records, CONFIG, capabilities) is None
    violation = judge([*records[:at], forge(records[at], records), *records[at + 1 :]], CONFIG, capabilities)
    assert violation is not None and violation.code == code, violation


def test_a_hit_through_a_foreign_key_is_against_its_standing() -> None:
    records = records_of(TENANTS)
    forged = [*records[:3], foreign_hit(records[3], records)]
    violation = judge(forged, CONFIG, L3)
    assert violation is not None and "KV-I2-standing" in (violation.code, *violation.also), violation


@pytest.mark.parametrize("code", [clause.code for clause in CLAUSES])
def test_a_lie_brings_down_its_clause_and_the_true_history_does_not(code: str) -> None:
    at, forge, capabilities, history = LIES[code]
    config = CONFIG if history is not TOO_LARGE else replace(CONFIG, blocks=2)
    records = records_of(history, config)
    assert judge(records, config, capabilities) is None
    forged = [*records[:at], forge(records[at], records), *records[at + 1 :]]
    violation = judge(forged, config, capabilities)
    assert violation is not None, f"{code} did not fall"
    if (
        code == "KV-P-isolation"
    ):  # whoever shares across salts also hits foreign content, which is named first
        assert code in violation.also
    else:
        assert violation.code == code, (violation, violation.evidence)


def test_a_free_queue_in_another_order_is_not_the_policys() -> None:
    records = records_of(HISTORY)
    forged = [*records]
    forged[14] = free(lambda queue: queue[::-1])(records[14], records)
    violation = judge(forged, CONFIG, Capabilities(3, policy=True), policy=True)
    assert violation is not None and violation.code == "KV-P-order"


def test_other_blocks_than_the_policys_are_not_its_answer() -> None:
    records = records_of(HISTORY)
    forged = [*records]
    forged[4] = answer(hit=2, rows=((1,),))(records[4], records)
    violation = judge(forged, CONFIG, Capabilities(3, policy=True), policy=True)
    assert violation is not None and violation.code == "KV-P-answer"


@pytest.mark.parametrize(
    ("code", "forge"), [("KV-P-refs", block(1, ref_cnt=2)), ("KV-P-index", seen(index=()))]
)
def test_counts_and_index_are_compared_with_the_policy(code: str, forge: Forge) -> None:
    records = records_of(HISTORY[:2])
    oracle = Oracle(CONFIG, Capabilities(3, policy=True))
    for record in records:
        assert oracle.judge(record.operation, record.answer, record.observation) is None
    assert isinstance(oracle.policy, Policy)
    claims = oracle.keys.claim_of
    true, lie = records[1].observation, forge(records[1], records).observation
    assert against_policy(oracle.policy, None, op.Done(), true, claims) is None
    difference = against_policy(oracle.policy, None, op.Done(), lie, claims)
    assert difference is not None and difference[0].code == code


def test_every_code_has_a_sentence_and_every_lie_a_clause() -> None:
    assert set(LIES) == {clause.code for clause in CLAUSES}
    assert all(clause.sentence.endswith(".") for clause in BY_CODE.values())
