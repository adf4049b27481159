"""Fitting an operation to another history: as the engine may do it there, or not at all.

What is dropped or answered otherwise changes which grants, steps and outputs there are;
the operation keeps its meaning as far as that goes.
"""

from kvproof.spec import operations as op
from kvproof.spec.contract import preempted_first, reason_against
from kvproof.spec.state import State


def fitted(state: State, operation: op.AnyOperation) -> op.AnyOperation | None:
    """The operation as the engine may do it now, or none."""
    if isinstance(operation, op.Dispatch):
        return _fitted_dispatch(state, operation)
    if isinstance(operation, op.Retire):
        return _fitted_retire(state, operation)
    if isinstance(operation, op.ENDS) and preempted_first(state, operation):
        return operation if state.capabilities.has("discards") else None
    return None if reason_against(state, operation) else operation


def _fitted_dispatch(state: State, operation: op.Dispatch) -> op.Dispatch | None:
    wanted = {entry.request: entry for entry in operation.entries}
    count = max((i + 1 for i, life in enumerate(state.grants) if life.request in wanted), default=0)
    if not count or len(state.steps) >= state.config.depth:
        return None
    entries = []
    for life in state.grants[:count]:
        assert life.grant is not None
        ends = life.grant.stop == life.known + life.pending
        room = life.grant.slots - life.grant.stop if ends else 0
        drafts = wanted[life.request].drafts if life.request in wanted else ()
        entries.append(state.entry_of(life, drafts[:room]))
    padding = min(operation.padding, state.config.max_requests - count)
    return op.Dispatch(state.next_step, tuple(entries), padding)


def _fitted_retire(state: State, operation: op.Retire) -> op.Retire | None:
    if not state.steps:
        return None
    sampled = {output.request: output.sampled for output in operation.outputs}
    outputs = []
    for entry in state.steps[0].entries:
        if not entry.life.ended:
            token = (sampled.get(entry.life.request) or (0,))[0]
            outputs.append(op.Output(entry.life.request, (token,) if entry.samples else ()))
    return op.Retire(state.steps[0].number, tuple(outputs))
