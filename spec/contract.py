"""The engine's contract: what the engine around an allocator must not do, and whom it must preempt first."""

from collections.abc import Callable
from typing import Any

from kvproof.spec import operations as op
from kvproof.spec.state import State
from kvproof.spec.vocabulary import OPERATIONS

_INT64 = 1 << 63
_OPTIONAL = {kind: name for kind in op.OPERATIONS if (name := kind.__name__.lower()) in OPERATIONS}
"""The operations that an allocator may lack, by name."""


def reason_against(state: State, operation: op.Operation) -> str | None:
    """Why the engine must not do this now, or none."""
    kind = type(operation)
    name = _OPTIONAL.get(kind)
    if name is not None and not state.capabilities.has(name):
        return f"the allocator has no {name}"
    check = _REQUIRES.get(kind)
    return check(state, operation) if check else None


def preempted_first(state: State, operation: op.Operation) -> list[op.Preempt]:
    """The lives that the engine must preempt before it ends this one, deepest first.

    They rest on writes that would never happen (REQ-2.10).
    """
    if not isinstance(operation, op.ENDS):
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
    if life.pending and not state.capabilities.has("ahead"):
        return f"the next token of {operation.request} is still being sampled"
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
