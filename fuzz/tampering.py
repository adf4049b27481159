"""Records tampered with at random, in every field that an allocator answers or shows.

Lies that nobody thought of: whether one is a lie, and against which clause, is for an oracle in
order to say; a mutated one must say the same. Histories are those of the conformance vectors and
some of the rule table's.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from kvproof.fuzz import vectors
from kvproof.fuzz.adapters.reference import ReferenceAdapter
from kvproof.fuzz.choices import Choices
from kvproof.fuzz.configs import draw_config
from kvproof.fuzz.prompts import World
from kvproof.fuzz.rules import weighted
from kvproof.fuzz.session import Session
from kvproof.spec import operations as op
from kvproof.spec.contract import reason_against
from kvproof.spec.oracle import CLAUSES, Oracle, Violation
from kvproof.spec.vocabulary import FEATURES, OPERATIONS, BlockIds, CacheConfig, Capabilities

Records = tuple[op.Record, ...]
Change = Callable[[Choices, op.Record, Records], op.Record | None]
"""A record tampered with; none where there is nothing of the kind in it."""


# --- answers ----------------------------------------------------------------------------


def _answer(c: Choices, record: op.Record, records: Records) -> op.Record | None:
    """A refusal, which was none, an error, or success where there was none."""
    if isinstance(record.answer, op.Refused):
        other: op.AnyAnswer = op.Granted(((1, 2),)) if isinstance(record.operation, _GRANTS) else op.Done()
    else:
        refusable = isinstance(record.operation, (*_GRANTS, op.Evict, op.Reset))
        other = op.Refused() if refusable and c.chance(70) else op.Crashed("Boom", "it broke")
    return replace(record, answer=other)


_GRANTS: Final = (op.Admit, op.Extend)


def _hit(c: Choices, record: op.Record, records: Records) -> op.Record | None:
    """Another hit, with the same rows."""
    if not isinstance(record.answer, op.Granted | op.Found):
        return None
    hit = max(0, record.answer.hit + c.pick((-4, -2, -1, 1, 2, 4)))
    return replace(record, answer=replace(record.answer, hit=hit))


def _rows(c: Choices, record: op.Record, records: Records) -> op.Record | None:
    """Another row in the answer, and in the tables that are shown."""
    answer = record.answer
    if not isinstance(answer, op.Granted) or not answer.rows:
        return None
    rows = (_row(c, answer.rows[0]), *answer.rows[1:])
    if c.chance(10):
        rows = c.pick(((), (*rows, rows[0])))
    seen = record.observation
    if seen is not None and seen.rows is not None and c.chance(60):
        seen = replace(seen, rows={**seen.rows, getattr(record.operation, "request", ""): rows})
    return replace(record, answer=replace(answer, rows=rows), observation=seen)


def _row(c: Choices, row: BlockIds) -> BlockIds:
    place, other = c.below(len(row) or 1), c.below(10)
    match c.below(5):
        case 0:
            return row[::-1]
        case 1:
            return row[:-1]
        case 2:
            return (*row, other)
        case _:
            return (*row[:place], other, *row[place + 1 :])


def _read(c: Choices, record: op.Record, records: Records) -> op.Record | None:
    """Another row where one is read."""
    if not isinstance(record.answer, op.Read):
        return None
    return replace(record, answer=op.Read(_row(c, record.answer.row)))


def _swapped(c: Choices, record: op.Record, records: Records) -> op.Record | None:
    """A step after which a row has another block."""
    seen = record.observation
    if not isinstance(record.answer, op.Retired) or seen is None or not seen.rows:
        return None
    name = c.pick(list(seen.rows))
    rows = tuple(_row(c, row) for row in seen.rows[name])
    shown = replace(seen, rows={**seen.rows, name: rows}) if c.chance(50) else seen
    return replace(record, answer=replace(record.answer, swapped={name: rows}), observation=shown)


def _worker(c: Choices, record: op.Record, records: Records) -> op.Record | None:
    """A worker's row with another block, another slot, another name, or none."""
    field = {op.Dispatched: "host", op.Retired: "device"}.get(type(record.answer), "")
    rows: tuple[op.WorkerRow, ...] | None = getattr(record.answer, field, None)
    if not rows:
        return None
    place = c.below(len(rows))
    row = rows[place]
    match c.below(5):
        case 0:
            column, ids = c.below(len(row.rows[0])), row.rows[0]
            changed = [replace(row, rows=((*ids[:column], c.below(10), *ids[column + 1 :]),))]
        case 1 if row.slots:
            changed = [replace(row, slots=tuple(tuple(s + 1 for s in slots) for slots in row.slots))]
        case 2 if row.slots:
            changed = [replace(row, slots=tuple(slots[1:] for slots in row.slots))]
        case 3:
            changed = [replace(row, request=c.pick(("", "a", "b")))]
        case _:
            changed = c.pick(([], [row, row]))
    told = (*rows[:place], *changed, *rows[place + 1 :])
    return replace(record, answer=replace(record.answer, **{field: told}))


def _memory(c: Choices, record: op.Record, records: Records) -> op.Record | None:
    """A word that is wrong."""
    wrong = op.Mismatch(1, 0, 0, 4, 5, c.pick((None, 7)))
    return replace(record, memory=(wrong,)) if isinstance(record.operation, op.Retire | op.Observe) else None


# --- what is shown ----------------------------------------------------------------------


def _shown(change: Callable[[Choices, op.Observation, op.Observation], op.Observation | None]) -> Change:
    def tamper(c: Choices, record: op.Record, records: Records) -> op.Record | None:
        before = records[record.index - 1].observation if record.index else None
        if record.observation is None or before is None:
            return None
        seen = change(c, record.observation, before)
        return None if seen is None else replace(record, observation=seen)

    return tamper


def _field(c: Choices, seen: op.Observation, before: op.Observation) -> op.Observation | None:
    """One field, or all, as they were before."""
    names = [
        name for name in op.Observation.__struct_fields__ if getattr(seen, name) != getattr(before, name)
    ]
    if not names:
        return None
    if c.chance(30):
        return replace(before, events=c.pick((seen.events, ())))
    chosen = c.pick(names)
    return replace(seen, **{chosen: getattr(before, chosen)})


def _view(c: Choices, seen: op.Observation, before: op.Observation) -> op.Observation | None:
    """A block's count, key, group or tokens."""
    block = c.pick(list(seen.blocks))
    view = seen.blocks[block]
    keys = [entry.key for entry in seen.index]
    changes: dict[str, Any] = c.pick(
        (
            {"ref_cnt": view.ref_cnt + c.pick((-1, 1))},
            {"key": c.pick((None, b"new", *keys))},
            {"group": view.group + 1},
            {"tokens": view.tokens + c.pick((-1, 1))},
        )
    )
    return replace(seen, blocks={**seen.blocks, block: replace(view, **changes)})


def _queue(c: Choices, seen: op.Observation, before: op.Observation) -> op.Observation | None:
    """The free queue in another order, a block more, fewer, or another one."""
    queue = seen.free
    if not queue:
        return None
    place = c.below(len(queue))
    other = c.pick((0, c.between(1, 12), 13))
    told = c.pick(
        (
            queue[::-1],
            (*queue[:place], *queue[place + 1 :]),
            (*queue, queue[place]),
            (*queue[:place], other, *queue[place + 1 :]),
        )
    )
    free_count = len(told) if c.chance(60) else seen.free_count
    return replace(seen, free=told, free_count=free_count)


def _index(c: Choices, seen: op.Observation, before: op.Observation) -> op.Observation | None:
    """A key less, a key more, another key, a block more under a key, the same of its blocks or not."""
    block = c.pick(list(seen.blocks))
    if not seen.index or c.chance(15):
        key = c.pick((b"new", *(entry.key for entry in before.index)))
        return _with_own(c, replace(seen, index=(*seen.index, op.IndexEntry(key, 0, (block,)))), block, key)
    place = c.below(len(seen.index))
    entry = seen.index[place]
    match c.below(6):
        case 0:
            changed: tuple[op.IndexEntry, ...] = ()
        case 1:
            changed = (replace(entry, blocks=(*entry.blocks, block)),)
        case 2:
            changed = (replace(entry, blocks=(block,)),)
        case 3:
            changed = (replace(entry, key=c.pick(seen.index).key),)
        case 4:
            changed = (replace(entry, blocks=entry.blocks[::-1]),)
        case _:
            changed = (replace(entry, group=1),)
    told = replace(seen, index=(*seen.index[:place], *changed, *seen.index[place + 1 :]))
    return _with_own(c, told, block, entry.key)


def _with_own(c: Choices, seen: op.Observation, block: int, key: bytes) -> op.Observation:
    """Often the block agrees with it."""
    if c.chance(40):
        return seen
    tokens = max(view.tokens for view in seen.blocks.values())
    view = replace(seen.blocks[block], key=key, group=0, tokens=tokens)
    return replace(seen, blocks={**seen.blocks, block: view})


def _tables(c: Choices, seen: op.Observation, before: op.Observation) -> op.Observation | None:
    """A row that is gone, another, or of nobody."""
    rows = dict(seen.rows or {})
    if not rows or c.chance(20):
        return replace(seen, rows={**rows, "nobody": ((),)})
    name = c.pick(list(rows))
    rows[name] = tuple(_row(c, row) for row in rows[name])
    if c.chance(30):
        del rows[name]
    return replace(seen, rows=rows)


def _figures(c: Choices, seen: op.Observation, before: op.Observation) -> op.Observation | None:
    """A counter, the usage, the free count."""
    name = c.pick(op.Metrics.__struct_fields__)
    by = c.pick((-1, 1))
    return c.pick(
        (
            replace(seen, metrics=replace(seen.metrics, **{name: getattr(seen.metrics, name) + by})),
            replace(seen, usage=seen.usage + by * c.pick((1.0, 0.1, 1e-6))),
            replace(seen, free_count=seen.free_count + by),
        )
    )


def _events(c: Choices, seen: op.Observation, before: op.Observation) -> op.Observation | None:
    """An event more, less, or of something else."""
    key = c.pick((b"new", *(entry.key for entry in seen.index)))
    more: tuple[op.AnyEvent, ...] = (
        op.Cleared(),
        op.Removed(key),
        op.Stored((key,), None, (1, 2), 2),
        op.Stored((), None, (), 2),
    )
    if not seen.events or c.chance(25):
        return replace(seen, events=(*seen.events, c.pick(more)))
    place = c.below(len(seen.events))
    event = seen.events[place]
    changed: tuple[op.AnyEvent, ...] = ()
    if isinstance(event, op.Stored) and c.chance(80):
        told: dict[str, Any] = c.pick(
            (
                {"parent": c.pick((None, b"new", *event.keys))},
                {"tokens": event.tokens[::-1]},
                {"tokens": event.tokens[1:]},
                {"keys": event.keys[::-1]},
                {"keys": event.keys[1:]},
                {"block_size": event.block_size + 1},
                {"group": 1},
            )
        )
        changed = (replace(event, **told),)
    return replace(seen, events=(*seen.events[:place], *changed, *seen.events[place + 1 :]))


CHANGES: Final[dict[str, Change]] = {
    "answer": _answer,
    "hit": _hit,
    "rows": _rows,
    "read": _read,
    "swapped": _swapped,
    "worker": _worker,
    "memory": _memory,
    **{
        name: _shown(change)
        for name, change in {
            "field": _field,
            "view": _view,
            "queue": _queue,
            "index": _index,
            "tables": _tables,
            "figures": _figures,
            "events": _events,
        }.items()
    },
}
"""What is tampered with."""

_ALL: Final = Capabilities(3, policy=True, depth=3, operations=OPERATIONS, features=FEATURES)
DECLARED: Final = (
    _ALL,
    replace(_ALL, policy=False),
    replace(_ALL, policy=False, level=2),
    replace(_ALL, policy=False, level=1),
    replace(_ALL, policy=False, level=0),
    replace(_ALL, policy=False, swap=True),
    replace(_ALL, policy=False, level=1, swap=True, idempotent=True),
    replace(_ALL, policy=False, stream_ordered=True, max_hit="len"),
)
"""What the allocator that shows such records might have declared."""


# --- cases ------------------------------------------------------------------------------


class Tampered(NamedTuple):
    """Records that were tampered with at a place or two, and how an oracle is to judge them."""

    what: str
    config: CacheConfig
    capabilities: Capabilities
    records: Records
    ignore: frozenset[str] = frozenset()

    def judge(self) -> Violation | None:
        """What an oracle finds.

        What was tampered with may be such that an engine could not have gone on as it did: there it ends.
        """
        able = self.capabilities
        oracle = Oracle(self.config, able, memory=True, ignore=self.ignore)
        for record in self.records:
            seen = record.observation if able.level >= 2 else None
            if reason_against(oracle.state, record.operation):
                break
            if oracle.judge(record.operation, record.answer, seen, record.memory):
                break
        return oracle.violation


@cache
def histories() -> tuple[tuple[CacheConfig, Records], ...]:
    """True records: of all vectors, and of some drawn runs."""
    found: list[tuple[CacheConfig, Callable[[Session], None]]] = [
        (vector.config, partial(_along, vector.operations)) for vector in vectors.bundled()
    ]
    for seed in range(20):
        config = draw_config(Choices(seed), ReferenceAdapter().capabilities)
        found.append((config, partial(_drawn, Choices(seed))))
    return tuple((config, _recorded(config, run)) for config, run in found)


def _recorded(config: CacheConfig, run: Callable[[Session], None]) -> Records:
    records: list[op.Record] = []
    session = Session(ReferenceAdapter(), config, watch=records.append)
    run(session)
    assert session.violation is None, "the reference holds"
    return tuple(records)


def _along(operations: Sequence[op.AnyOperation], session: Session) -> None:
    session.run(operations)


def _drawn(choices: Choices, session: Session) -> None:
    world, rules = World(session.config, session.state), weighted(session.capabilities)
    while len(session.operations) < 60:
        for operation in choices.pick(rules)(world, choices):
            session.apply(operation)


def tampered(count: int, seed: int) -> Iterator[Tampered]:
    """So many cases of each change; the same for the same seed."""
    for number, (what, change) in enumerate(CHANGES.items()):
        choices, found = Choices(seed * len(CHANGES) + number), 0
        while found < count:
            config, records = choices.pick(histories())
            told = list(records)
            for _ in range(choices.pick((1, 1, 2, 4))):
                at = choices.below(len(records))
                told[at] = change(choices, told[at], records) or told[at]
            if (*told,) != records:
                found += 1
                ignore = _some_clauses(choices) if choices.chance(50) else frozenset()
                yield Tampered(what, config, choices.pick(DECLARED), (*told,), ignore)


def _some_clauses(c: Choices) -> frozenset[str]:
    """Clauses that are not asked, so that others behind them are."""
    return frozenset(clause.code for clause in CLAUSES if c.chance(60))
