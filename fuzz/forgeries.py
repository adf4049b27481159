"""Forgeries of a record: what an allocator could have answered or shown."""

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from kvproof.spec import operations as op

Forge = Callable[[op.Record, list[op.Record]], op.Record]
"""What becomes of a record, given the true ones around it."""


def answer(**changes: Any) -> Forge:
    """Other fields of the answer."""
    return lambda record, _: replace(record, answer=replace(record.answer, **changes))


def seen(**changes: Any) -> Forge:
    """Other fields of what is shown."""

    def forge(record: op.Record, _: list[op.Record]) -> op.Record:
        assert record.observation is not None
        return replace(record, observation=replace(record.observation, **changes))

    return forge


def block(number: int, **changes: Any) -> Forge:
    """Other fields of a block that is shown."""

    def forge(record: op.Record, _: list[op.Record]) -> op.Record:
        assert record.observation is not None
        blocks = dict(record.observation.blocks)
        blocks[number] = replace(blocks[number], **changes)
        return replace(record, observation=replace(record.observation, blocks=blocks))

    return forge


def crashed(record: op.Record, records: list[op.Record]) -> op.Record:
    """An error instead of the answer."""
    return replace(record, answer=op.Crashed("Boom", "it broke"))


def refused(record: op.Record, records: list[op.Record]) -> op.Record:
    """A refusal, after which all is shown as before."""
    return replace(record, answer=op.Refused(), observation=records[record.index - 1].observation)


def free(change: Callable[[tuple[int, ...]], tuple[int, ...]]) -> Forge:
    """Another free queue, and the count that belongs to it."""

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
    """A key that stands for nothing yet lists a block."""

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
    """A partial sight of a pool with a block missing."""
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
    """Other rows of the worker in a field of the answer."""

    def forge(record: op.Record, _: list[op.Record]) -> op.Record:
        return replace(
            record, answer=replace(record.answer, **{field: change(getattr(record.answer, field))})
        )

    return forge


def first_row(**changes: Any) -> Callable[[tuple[op.WorkerRow, ...]], tuple[op.WorkerRow, ...]]:
    """Other fields of the first row."""
    return lambda found: (replace(found[0], **changes), *found[1:])


def same(record: op.Record, records: list[op.Record]) -> op.Record:
    """No forgery: what is true must hold."""
    return record


def as_before(record: op.Record, records: list[op.Record]) -> op.Record:
    """All is shown as it was, and no event is told."""
    before = records[record.index - 1].observation
    assert before is not None
    return replace(record, observation=replace(before, events=()))


def unseen(record: op.Record, records: list[op.Record]) -> op.Record:
    """Nothing is shown for once."""
    return replace(record, observation=None)


def unkeyed(number: int, **changes: Any) -> Forge:
    """A block without its key, in the index as well."""

    def forge(record: op.Record, _: list[op.Record]) -> op.Record:
        now = record.observation
        assert now is not None
        blocks = {**now.blocks, number: op.BlockView(now.blocks[number].ref_cnt)}
        index = tuple(entry for entry in now.index if number not in entry.blocks)
        return replace(record, observation=replace(now, blocks=blocks, index=index, **changes))

    return forge


def told_after(*before: op.AnyEvent, after: tuple[op.AnyEvent, ...] = ()) -> Forge:
    """Events around one that tells other tokens than its keys stand for."""

    def forge(record: op.Record, records: list[op.Record]) -> op.Record:
        told = other_tokens(record, records).observation
        assert told is not None
        return replace(record, observation=replace(told, events=(*before, *told.events, *after)))

    return forge


def both(first: Forge, second: Forge) -> Forge:
    """One forgery upon another."""
    return lambda record, records: second(first(record, records), records)


def younger_alone(record: op.Record, records: list[op.Record]) -> op.Record:
    """Of the two copies under a key only the younger is shown, and has no key of its own."""
    now = record.observation
    assert now is not None
    (entry,) = now.index
    younger = entry.blocks[1]
    view = op.BlockView(now.blocks[younger].ref_cnt)
    return replace(record, observation=replace(now, free=None, rows=None, blocks={younger: view}))


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
