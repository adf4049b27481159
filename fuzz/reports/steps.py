"""A line for every grant (REQ-10.1): ids and counts only, `new` ⊆ `owned`, one ref per hit block."""

from collections.abc import Iterator, Sequence

from kvproof.fuzz.cases import Case
from kvproof.fuzz.reports.sight import capabilities_of
from kvproof.spec import operations as op
from kvproof.spec.state import State
from kvproof.spec.transitions import Effects, apply


def step_lines(case: Case, records: Sequence[op.Record]) -> tuple[str, ...]:
    """The lines of a history. `step` is the step that will dispatch the grant."""
    state = State(case.config, capabilities_of(case.target))
    return tuple(line for record in records for line in _lines(state, record))


def _lines(state: State, record: op.Record) -> Iterator[str]:
    effects = apply(state, record.operation, record.answer)
    if not isinstance(record.operation, op.Admit | op.Extend):
        return
    head = f"step={state.next_step} req={record.operation.request}"
    free = _free(state, record.observation)
    if isinstance(record.answer, op.Granted):
        yield f"{head} {_grant(state, effects, record.observation, free)}"
    else:
        word = "refused" if isinstance(record.answer, op.Refused) else "crashed"
        yield f"{head} {word} free={free}"


def _grant(state: State, effects: Effects, seen: op.Observation | None, free: int) -> str:
    life, before = effects.life, effects.before or []
    assert life is not None and life.grant is not None, "a granted life has a grant"
    size = state.config.block_size
    hit = -(-life.hit // size)
    new = [row[len(owned) or hit :] for row, owned in zip(life.rows, before, strict=True)]
    refs = [_refs(state, seen, block) for row in life.rows for block in row[:hit]]
    return (
        f"hit_tokens={life.hit} scheduled={life.grant.stop - life.grant.start} owned={_list(life.rows)} "
        f"new={_list(new)} free={free} ref(hit)={_list(refs)}"
    )


def _free(state: State, seen: op.Observation | None) -> int:
    return seen.free_count if seen is not None else state.config.blocks - len(state.holders)


def _refs(state: State, seen: op.Observation | None, block: int) -> int:
    if seen is not None and block in seen.blocks:
        return seen.blocks[block].ref_cnt
    return len(state.holders.get(block, ()))


def _list(values: Sequence[object]) -> str:
    return str(list(values)).replace(" ", "")
