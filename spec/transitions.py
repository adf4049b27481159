"""What each operation does to the state, given its answer.

An answer that breaks a rule is applied as far as it makes sense; judging it is the
invariants' task. What the engine must not do in the first place is in `spec.contract`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from kvproof.spec import operations as op
from kvproof.spec.content import LOST, PENDING, POISON, Runs, overwrite
from kvproof.spec.state import Grant, Life, Request, State, Step, StepEntry, Write
from kvproof.spec.vocabulary import GroupRows

Place = tuple[int, int, int]
"""`(block, group, logical index)`."""


@dataclass(slots=True)
class Effects:
    """What an operation did, for the clauses to look at."""

    life: Life | None = None
    hits: Sequence[Place] = ()
    handed: Sequence[Place] = ()
    before: list[list[int]] | None = None
    """The life's rows before a grant."""
    dispatched: Step | None = None
    retired: Step | None = None
    ended: bool = False
    released: Sequence[int] = ()
    swapped: Sequence[tuple[Life, int, int, int]] = ()
    """Places `(life, group, logical index)` whose block was replaced, and the block before."""


# --- effect -----------------------------------------------------------------------------


def apply(state: State, operation: op.Operation, answer: op.Answer) -> Effects:
    """Advance the state by an operation and its answer."""
    effects = Effects()
    effect = _EFFECTS.get(type(operation))
    if effect is not None and not isinstance(answer, op.FAILURES):
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
    """Take the answered rows: the first `hits` new entries are hits, the others are handed out.

    But for those that an idempotent allocator lets two lives write alike.
    """
    effects.life = life
    effects.before = life.rows
    if state.capabilities.swap:
        _swap(state, life, answer.rows, effects)
    # A row per group, whatever was answered; a wrong number of rows is judged by KV-I3-cover.
    groups = len(state.config.groups)
    hit: list[Place] = []
    handed: list[Place] = []
    effects.hits, effects.handed = hit, handed
    shares = state.capabilities.idempotent
    life.rows = [list(row) for row in (*answer.rows, *((),) * groups)[:groups]]
    for group, row in enumerate(life.rows):
        before = effects.before[group] if group < len(effects.before) else []
        owned = len(before)
        if row[:owned] != before:
            _lose(state, life, before, row, effects)
        for index in range(owned, len(row)):
            block = row[index]
            taken = index < hits or (shares and _repeats(state, life, block, group, index))
            (hit if taken else handed).append((block, group, index))
            state.holders.setdefault(block, set()).add(life.number)
            if not taken:
                state.places[block] = (life, group, index)
                state.withdrawn.discard(block)
    _grant(state, life, operation.n, operation.lookahead)


def _repeats(state: State, life: Life, block: int, group: int, index: int) -> bool:
    """Whether a block that is held has, or is promised, all that a life will write there: it is shared."""
    size = state.config.block_size
    if block not in state.holders or (index + 1) * size > life.known:
        return False
    return state.content(block) == state.wanted(life, group, index, size)


def _lose(state: State, life: Life, before: list[int], row: list[int], effects: Effects) -> None:
    """Of a row that should only have grown, what is in it no more is let go of."""
    for block in set(before) - set(row):
        _let_go(state, life, block, effects)


def _grant(state: State, life: Life, n: int, lookahead: int) -> None:
    start, stop = life.scheduled, min(life.scheduled + n, life.cap)
    life.scheduled = stop
    writes = _writes(state, life, start, stop, stop)
    life.grant = Grant(start, stop, min(stop + lookahead, life.limit), writes)
    state.grants.append(life)
    for write in writes:
        _add(state, write)


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
        writes = _promise(state, life, operation.step, grant.stop + len(entry.drafts))
        entries.append(StepEntry(life, grant.start, grant.stop, entry.drafts, samples, rows, writes))
        used = -(-(grant.stop + len(entry.drafts)) // state.config.block_size)
        touched.update(block for row in rows for block in row[:used])
        life.grant = None
        life.fence = operation.step
        life.pending += int(samples)
    effects.dispatched = Step(operation.step, entries, operation.padding, frozenset(touched))
    state.steps.append(effects.dispatched)
    state.last_batch = [entry.life for entry in entries]
    state.next_step += 1


def _promise(state: State, life: Life, step: int, stop: int) -> list[Write]:
    """What was granted is dispatched, with drafts up to `stop` behind it; all that the step will write."""
    grant = life.grant
    assert grant is not None
    drafts = _writes(state, life, grant.stop, stop, grant.stop)
    for write in drafts:
        _add(state, write)
    writes = [*grant.writes, *drafts]
    for write in writes:
        write.step = step
    return writes


def _do_retire(state: State, operation: op.Retire, answer: op.Retired, effects: Effects) -> None:
    step = state.steps.pop(0)
    effects.retired = step
    for entry in step.entries:
        entry.life.processed = entry.stop
        _execute(state, entry)
    living = [entry for entry in step.entries if not entry.life.ended]
    for entry, output in zip(living, operation.outputs, strict=True):
        entry.life.pending -= len(output.sampled)
        for path in entry.life.paths:
            for token in output.sampled:
                path.append(token)
    for kept in [kept for kept in state.kept if kept[0] <= step.number]:
        state.kept.remove(kept)
        _let_go(state, kept[1], kept[2], effects)
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
                effects.swapped = (*effects.swapped, (life, group, index, before))
                _redirect(state, life, before, after)
                _leave(state, life, before, effects)


def _leave(state: State, life: Life, block: int, effects: Effects) -> None:
    """A life's row has a block no more; steps in flight that have it keep it held (REQ-3.6)."""
    touched = any(step.number == life.fence and block in step.touched for step in state.steps)
    if touched and not state.capabilities.stream_ordered:
        state.kept.append((life.fence, life, block))
    else:
        _let_go(state, life, block, effects)


def _redirect(state: State, life: Life, before: int, after: int) -> None:
    """What a life was granted and is still to dispatch, it will write into the block that it has now.

    The promise on the block before is withdrawn.
    """
    writes = state.writes.get(before, [])
    moved = [write for write in writes if write.life is life and write.step is None]
    if moved:
        state.withdrawn.add(before)
        _keep(state, before, [write for write in writes if write not in moved])
        for write in moved:
            write.block = after
            _add(state, write)


def _execute(state: State, entry: StepEntry) -> None:
    """The step's writes of one life reach memory. Tokens that nobody learned leave garbage."""
    size = state.config.block_size
    for write in entry.writes:
        block = write.block
        offset, runs = write.runs(size)
        if write.stop > entry.life.known:
            runs = tuple([(LOST if claim == PENDING else claim, count) for claim, count in runs])
        state.written[block] = overwrite(_written(state, block), offset, runs, size)
        _keep(state, block, [each for each in state.writes[block] if each is not write])


def _written(state: State, block: int) -> Runs:
    return state.written.get(block) or ((POISON, state.config.block_size),)


def _add(state: State, write: Write) -> None:
    state.writes.setdefault(write.block, []).append(write)
    state.settled.pop(write.block, None)


def _keep(state: State, block: int, writes: list[Write]) -> None:
    state.settled.pop(block, None)
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
    assert life.grant is not None
    state.grants.remove(life)
    for write in life.grant.writes:
        state.withdrawn.add(write.block)
        _keep(state, write.block, [each for each in state.writes[write.block] if each is not write])
    life.grant = None


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
        effects.released = (*effects.released, block)


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
