"""The engine's contract and what each operation does to the state.

All operations have one shape: *requires* (`reason_against`: what the engine must not do),
*effect* (`apply`: how state follows from the answer). An answer that breaks a rule is
applied as far as it makes sense; judging it is the invariants' task.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from kvproof.spec import operations as op
from kvproof.spec.content import LOST, PENDING, POISON, Runs, overwrite
from kvproof.spec.state import Grant, Life, Request, State, Step, StepEntry, Write
from kvproof.spec.vocabulary import OPERATIONS, GroupRows

_INT64 = 1 << 63

Place = tuple[int, int, int]
"""`(block, group, logical index)`."""


@dataclass(slots=True)
class Effects:
    """What an operation did, for the clauses to look at."""

    life: Life | None = None
    hits: list[Place] = field(default_factory=list)
    handed: list[Place] = field(default_factory=list)
    before: list[list[int]] | None = None
    """The life's rows before a grant."""
    dispatched: Step | None = None
    retired: Step | None = None
    ended: bool = False
    released: list[int] = field(default_factory=list)
    swapped: list[tuple[Life, int, int, int]] = field(default_factory=list)
    """Places `(life, group, logical index)` whose block was replaced, and the block before."""


# --- requires ---------------------------------------------------------------------------


def reason_against(state: State, operation: op.Operation) -> str | None:
    """Why the engine must not do this now, or none."""
    name = type(operation).__name__.lower()
    if name in OPERATIONS and not state.capabilities.has(name):
        return f"the allocator has no {name}"
    check = _REQUIRES.get(type(operation))
    return check(state, operation) if check else None


def preempted_first(state: State, operation: op.Operation) -> list[op.Preempt]:
    """The lives that the engine must preempt before it ends this one, deepest first.

    They rest on writes that would never happen (REQ-2.10).
    """
    if not isinstance(operation, op.Finish | op.Abort | op.Preempt):
        return []
    request = state.requests.get(operation.request)
    if request is None or request.life is None:
        return []
    order: list[str] = []
    todo = [request.life]
    while todo:
        for other in state.dependents(todo.pop()):
            if other.request not in order:
                order.append(other.request)
                todo.append(other)
    turn = {life.request: place for place, life in enumerate(state.grants)}
    order.sort(key=lambda name: turn.get(name, -1), reverse=True)
    return [op.Preempt(name) for name in order]


def _needs_waiting(state: State, name: str) -> str | None:
    request = state.requests.get(name)
    return None if request is not None and request.waiting else f"request {name} does not wait"


def _needs_living(state: State, name: str) -> str | None:
    request = state.requests.get(name)
    return None if request is not None and request.life is not None else f"request {name} is not admitted"


def _submit(state: State, operation: op.Submit) -> str | None:
    known = state.requests.get(operation.request)
    if not operation.request:
        return "a request needs an id"
    if known is not None and not known.gone:
        return f"request id {operation.request} is in use"
    if lacking := _lacking(state, operation):
        return f"the allocator has no {lacking}"
    count = op.count_of(operation.tokens)
    limit = min(operation.options.max_len or state.config.max_len, state.config.max_len)
    if not 1 <= count <= limit:
        return f"request {operation.request} has {count} tokens, outside 1…{limit}"
    if any(start < -_INT64 or start + length > _INT64 for start, length in op.runs_of(operation.tokens)):
        return f"a token of request {operation.request} is no 64-bit integer"
    end = 0
    for item in operation.extras.items:
        if item.offset < end or item.length < 1 or item.offset + item.length > count:
            return f"item {item.id!r} overlaps another or leaves the prompt"
        end = item.offset + item.length
    places = [embedding.position for embedding in operation.extras.embeddings]
    if places != sorted(set(places)) or any(not 0 <= place < count for place in places):
        return "embedding positions must rise and lie in the prompt"
    if any(
        item.offset <= place < item.offset + item.length
        for item in operation.extras.items
        for place in places
    ):
        return "an embedding lies inside an item"
    return None


def _lacking(state: State, submit: op.Submit) -> str | None:
    """The feature that a request needs and the allocator lacks."""
    extras = submit.extras
    needed = {
        "adapters": extras.adapter is not None,
        "salts": bool(extras.salt),
        "items": bool(extras.items),
        "embeddings": bool(extras.embeddings),
        "opt_out": not submit.options.read_cache,
    }
    return next((name for name, used in needed.items() if used and not state.capabilities.has(name)), None)


def _asks_wrongly(state: State, operation: op.Admit | op.Extend) -> str | None:
    """Why no allocator, or not this one, can be asked for such a grant."""
    if operation.n < 1 or operation.lookahead < 0:
        return "a grant needs n ≥ 1 and lookahead ≥ 0"
    if operation.lookahead and not state.capabilities.has("lookahead"):
        return "the allocator has no lookahead"
    return None


def _is_chunk(state: State, operation: op.Admit | op.Extend, left: int) -> str | None:
    """Why a grant of a part of the `left` tokens can't be asked for."""
    if operation.n >= left or state.capabilities.has("chunks"):
        return None
    return f"the allocator grants the {left} tokens of {operation.request} at once, not {operation.n}"


def _admit(state: State, operation: op.Admit) -> str | None:
    if reason := _asks_wrongly(state, operation):
        return reason
    if len(state.living()) >= state.config.max_requests:
        return f"{state.config.max_requests} requests are admitted already"
    if reason := _needs_waiting(state, operation.request):
        return reason
    return _is_chunk(state, operation, state.requests[operation.request].paths[0].length)


def _extend(state: State, operation: op.Extend) -> str | None:
    if reason := _asks_wrongly(state, operation):
        return reason
    if reason := _needs_living(state, operation.request):
        return reason
    life = state.requests[operation.request].life
    assert life is not None
    if life.grant is not None:
        return f"request {operation.request} has an undispatched grant"
    if life.cap <= life.scheduled:
        return f"request {operation.request} has no token to compute"
    return _is_chunk(state, operation, life.cap - life.scheduled)


def _dispatch(state: State, operation: op.Dispatch) -> str | None:
    if operation.step != state.next_step:
        return f"the next step is {state.next_step}, not {operation.step}"
    if len(state.steps) >= state.config.depth:
        return f"{state.config.depth} steps are in flight already"
    if not 1 <= len(operation.entries) <= len(state.grants) or operation.padding < 0:
        return "a step takes at least one grant"
    if len(operation.entries) + operation.padding > state.config.max_requests:
        return f"a step has at most {state.config.max_requests} rows"
    for entry, life in zip(operation.entries, state.grants, strict=False):
        assert life.grant is not None
        if entry.request != life.request or entry.n != life.grant.stop - life.grant.start:
            return f"the next grant is {life.grant.stop - life.grant.start} tokens of {life.request}"
        if len(entry.drafts) > life.grant.slots - life.grant.stop:
            return f"request {entry.request} has {life.grant.slots - life.grant.stop} lookahead slots"
        if entry.drafts and life.grant.stop < life.known + life.pending:
            return f"drafts follow the last token of {entry.request}"
    return None


def _retire(state: State, operation: op.Retire) -> str | None:
    if not state.steps or state.steps[0].number != operation.step:
        return f"step {operation.step} is not the oldest in flight"
    living = [entry for entry in state.steps[0].entries if not entry.life.ended]
    if [output.request for output in operation.outputs] != [entry.life.request for entry in living]:
        return "outputs name the living lives of the step, in its order"
    for entry, output in zip(living, operation.outputs, strict=True):
        if len(output.sampled) != int(entry.samples) or output.accepted != 0:
            return f"step {operation.step} samples {int(entry.samples)} tokens for {output.request}"
    return None


def _end(state: State, operation: op.Finish | op.Preempt) -> str | None:
    if reason := _needs_living(state, operation.request):
        return reason
    life = state.requests[operation.request].life
    assert life is not None
    if life.grant is not None and not state.capabilities.has("discards"):
        return f"request {life.request} has an undispatched grant, which this allocator can't take back"
    rest = state.dependents(life)
    return f"request {rest[0].request} rests on undispatched writes of {life.request}" if rest else None


def _abort(state: State, operation: op.Abort) -> str | None:
    return _needs_waiting(state, operation.request) and _end(state, op.Finish(operation.request))


def _evict(state: State, operation: op.Evict) -> str | None:
    if reason := _needs_living(state, operation.request):
        return reason
    life = state.requests[operation.request].life
    assert life is not None
    size = state.config.block_size
    if operation.boundary % size or not 0 < operation.boundary <= len(life.rows[0]) * size:
        return f"request {operation.request} has no block that ends at {operation.boundary}"
    return None


def _table(state: State, operation: op.Table) -> str | None:
    if operation.action not in ("move", "swap"):
        return f"a row operation is move or swap, not {operation.action!r}"
    batch = state.batch()
    for name in (operation.request, *((operation.other,) if operation.action == "swap" else ())):
        if name not in batch:
            return f"request {name} has no row in the batch"
    if operation.action == "move" and len(state.last_batch) >= state.config.max_requests:
        return "there is no free row"
    return None


_REQUIRES: dict[type[op.Operation], Callable[[State, Any], str | None]] = {
    op.Submit: _submit,
    op.Lookup: lambda state, operation: _needs_waiting(state, operation.request),
    op.Admit: _admit,
    op.Extend: _extend,
    op.Row: lambda state, operation: _needs_living(state, operation.request),
    op.Dispatch: _dispatch,
    op.Retire: _retire,
    op.Finish: _end,
    op.Abort: _abort,
    op.Preempt: _end,
    op.Evict: _evict,
    op.Table: _table,
}

# --- effect -----------------------------------------------------------------------------


def apply(state: State, operation: op.Operation, answer: op.Answer) -> Effects:
    """Advance the state by an operation and its answer."""
    effects = Effects()
    effect = _EFFECTS.get(type(operation))
    if effect is not None and not isinstance(answer, op.Refused | op.Crashed):
        effect(state, operation, answer, effects)
    return effects


def _do_submit(state: State, operation: op.Submit, answer: op.Answer, effects: Effects) -> None:
    limit = min(operation.options.max_len or state.config.max_len, state.config.max_len)
    state.requests.pop(operation.request, None)
    state.requests[operation.request] = Request(operation, state.paths_of(operation), limit)


def _do_admit(state: State, operation: op.Admit, answer: op.Granted, effects: Effects) -> None:
    request = state.requests[operation.request]
    life = Life(
        state.next_life,
        operation.request,
        request.paths,
        request.limit,
        [[] for _ in state.config.groups],
        answer.hit,
        answer.hit,
        answer.hit,
    )
    state.next_life += 1
    state.lives[life.number] = life
    request.life = life
    if state.config.prefix_caching and request.inputs.options.read_cache:
        state.counters.requests += 1
        state.counters.queries += life.known
        state.counters.hits += answer.hit
    _grow(state, life, operation, answer, effects, -(-answer.hit // state.config.block_size))


def _do_extend(state: State, operation: op.Extend, answer: op.Granted, effects: Effects) -> None:
    life = state.requests[operation.request].life
    assert life is not None
    _grow(state, life, operation, answer, effects, 0)


def _grow(
    state: State, life: Life, operation: op.Admit | op.Extend, answer: op.Granted, effects: Effects, hits: int
) -> None:
    """Take the answered rows: the first `hits` new entries are hits, the others are handed out."""
    effects.life = life
    effects.before = life.rows
    if state.capabilities.swap:
        _swap(state, life, answer.rows, effects)
    # A row per group, whatever was answered; a wrong number of rows is judged by KV-I3-cover.
    groups = len(state.config.groups)
    life.rows = [list(row) for row in (*answer.rows, *((),) * groups)[:groups]]
    for group, row in enumerate(life.rows):
        owned = len(effects.before[group]) if group < len(effects.before) else 0
        for index in range(owned, len(row)):
            block = row[index]
            place = (block, group, index)
            (effects.hits if index < hits else effects.handed).append(place)
            state.holders.setdefault(block, set()).add(life.number)
            if index >= hits:
                state.places[block] = (life, group, index)
                state.withdrawn.discard(block)
    _grant(state, life, operation.n, operation.lookahead)


def _grant(state: State, life: Life, n: int, lookahead: int) -> None:
    start, stop = life.scheduled, min(life.scheduled + n, life.cap)
    life.scheduled = stop
    life.grant = Grant(state.next_order, start, stop, min(stop + lookahead, life.limit))
    state.next_order += 1
    state.grants.append(life)
    for write in _writes(state, life, start, stop, stop):
        state.writes.setdefault(write.block, []).append(write)


def _writes(state: State, life: Life, start: int, stop: int, committed: int) -> list[Write]:
    """The writes of positions `start … stop−1`, one per block that the rows have for them."""
    size = state.config.block_size
    out: list[Write] = []
    for group, row in enumerate(life.rows):
        for index in range(start // size, min(-(-stop // size), len(row))):
            first, last = max(start, index * size), min(stop, (index + 1) * size)
            out.append(Write(life, group, row[index], first, last, committed))
    return out


def _do_dispatch(state: State, operation: op.Dispatch, answer: op.Dispatched, effects: Effects) -> None:
    entries: list[StepEntry] = []
    touched: set[int] = set()
    for entry in operation.entries:
        life = state.grants.pop(0)
        grant = life.grant
        assert grant is not None
        samples = grant.stop == life.known + life.pending and grant.stop < life.limit
        rows = tuple(tuple(row) for row in life.rows)
        entries.append(StepEntry(life, grant.start, grant.stop, entry.drafts, samples, rows))
        _promise(state, life, operation.step, grant.stop, grant.stop + len(entry.drafts))
        used = -(-(grant.stop + len(entry.drafts)) // state.config.block_size)
        touched.update(block for row in rows for block in row[:used])
        life.grant = None
        life.fence = operation.step
        life.pending += int(samples)
    effects.dispatched = Step(operation.step, entries, operation.padding, frozenset(touched))
    state.steps.append(effects.dispatched)
    state.last_batch = [entry.life for entry in entries]
    state.next_step += 1


def _promise(state: State, life: Life, step: int, committed: int, stop: int) -> None:
    for block in {block for row in life.rows for block in row}:
        for write in state.writes.get(block, ()):
            if write.life is life and write.step is None:
                write.step = step
    for write in _writes(state, life, committed, stop, committed):
        write.step = step
        state.writes.setdefault(write.block, []).append(write)


def _do_retire(state: State, operation: op.Retire, answer: op.Retired, effects: Effects) -> None:
    step = state.steps.pop(0)
    effects.retired = step
    for entry in step.entries:
        entry.life.processed = entry.stop
        _execute(state, entry, step.number)
    living = [entry for entry in step.entries if not entry.life.ended]
    for entry, output in zip(living, operation.outputs, strict=True):
        entry.life.pending -= len(output.sampled)
        for path in entry.life.paths:
            for token in output.sampled:
                path.append(token)
    for life in [life for life in state.deferred if life.fence <= step.number]:
        state.deferred.remove(life)
        _release(state, life, effects)
    for name, rows in (answer.swapped or {}).items():
        request = state.requests.get(name)
        if request is not None and request.life is not None:
            _swap(state, request.life, rows, effects)


def _swap(state: State, life: Life, rows: GroupRows, effects: Effects) -> None:
    """A life holds other blocks than before at some places of its rows."""
    for group, (old, new) in enumerate(zip(life.rows, rows, strict=False)):
        for index, (before, after) in enumerate(zip(old, new, strict=False)):
            if before != after:
                old[index] = after
                state.holders.setdefault(after, set()).add(life.number)
                effects.swapped.append((life, group, index, before))
                _let_go(state, life, before, effects)


def _execute(state: State, entry: StepEntry, number: int) -> None:
    """The step's writes of one life reach memory. Tokens that nobody learned leave garbage."""
    size = state.config.block_size
    for row in entry.rows:
        for index in range(entry.start // size, min(-(-(entry.stop + len(entry.drafts)) // size), len(row))):
            block = row[index]
            left: list[Write] = []
            for write in state.writes.get(block, ()):
                if write.life is entry.life and write.step == number:
                    offset, runs = write.runs(size)
                    runs = tuple((LOST if claim == PENDING else claim, count) for claim, count in runs)
                    state.written[block] = overwrite(_written(state, block), offset, runs, size)
                else:
                    left.append(write)
            _keep(state, block, left)


def _written(state: State, block: int) -> Runs:
    return state.written.get(block) or ((POISON, state.config.block_size),)


def _keep(state: State, block: int, writes: list[Write]) -> None:
    if writes:
        state.writes[block] = writes
    else:
        state.writes.pop(block, None)


def _do_end(state: State, operation: op.Finish, answer: op.Answer, effects: Effects) -> None:
    _end_life(state, state.requests[operation.request], effects)
    state.requests[operation.request].gone = True


def _do_preempt(state: State, operation: op.Preempt, answer: op.Answer, effects: Effects) -> None:
    state.counters.preemptions += 1
    request = state.requests.pop(operation.request)
    state.requests[operation.request] = request
    _end_life(state, request, effects)


def _end_life(state: State, request: Request, effects: Effects) -> None:
    life = request.life
    if life is None:
        return
    request.life = None
    life.ended = True
    effects.life, effects.ended = life, True
    if life.grant is not None:
        _discard(state, life)
    if any(step.number == life.fence for step in state.steps) and not state.capabilities.stream_ordered:
        state.deferred.append(life)
    else:
        _release(state, life, effects)


def _discard(state: State, life: Life) -> None:
    """The granted writes will never happen."""
    state.grants.remove(life)
    life.grant = None
    for block in {block for row in life.rows for block in row}:
        writes = state.writes.get(block, [])
        left = [write for write in writes if write.life is not life or write.step is not None]
        if len(left) != len(writes):
            state.withdrawn.add(block)
            _keep(state, block, left)


def _release(state: State, life: Life, effects: Effects) -> None:
    state.lives.pop(life.number, None)
    for row in life.rows:
        for block in row:
            _let_go(state, life, block, effects)


def _let_go(state: State, life: Life, block: int, effects: Effects) -> None:
    holders = state.holders.get(block)
    if holders is None:
        return
    holders.discard(life.number)
    if not holders:
        del state.holders[block]
        effects.released.append(block)


_EFFECTS: dict[type[op.Operation], Callable[[State, Any, Any, Effects], None]] = {
    op.Submit: _do_submit,
    op.Admit: _do_admit,
    op.Extend: _do_extend,
    op.Dispatch: _do_dispatch,
    op.Retire: _do_retire,
    op.Finish: _do_end,
    op.Abort: _do_end,
    op.Preempt: _do_preempt,
}
