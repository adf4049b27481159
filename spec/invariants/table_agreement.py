"""I5 Table agreement: the worker reads and writes where the engine's tables say."""

from kvproof.spec import operations as op
from kvproof.spec.clauses import Evidence, Moment, clause
from kvproof.spec.state import Step, StepEntry


def _compare(rows: tuple[op.WorkerRow, ...], step: Step, size: int) -> Evidence | None:
    """Evidence that a batch row differs from its life's row where the step reads or writes."""
    names = [row.request for row in rows if row.request]
    expected = [entry.life.request for entry in step.entries]
    if sorted(names) != sorted(expected):
        return Evidence(
            f"batch rows of {', '.join(expected)}", f"batch rows of {', '.join(names) or 'nobody'}"
        )
    by_name = {row.request: row for row in rows}
    for entry in step.entries:
        used = -(-(entry.stop + len(entry.drafts)) // size)
        for group, row in enumerate(entry.rows):
            wanted, found = row[:used], by_name[entry.life.request].rows[group][:used]
            if wanted != found:
                block = next((a for a, b in zip(wanted, found, strict=False) if a != b), None)
                return Evidence(f"row {wanted}", f"row {found}", block, entry.life.request)
    return None


@clause("KV-I5-row", 3, op.Dispatch)
def row(moment: Moment) -> Evidence | None:
    """At dispatch the worker's host rows equal the engine's rows wherever the step reads or writes."""
    if not isinstance(moment.answer, op.Dispatched) or moment.answer.host is None:
        return None
    assert moment.effects.dispatched is not None
    return _compare(moment.answer.host, moment.effects.dispatched, moment.state.config.block_size)


@clause("KV-I5-device", 3, op.Retire)
def device(moment: Moment) -> Evidence | None:
    """The rows that the kernels read are those of the step's dispatch."""
    if not isinstance(moment.answer, op.Retired) or moment.answer.device is None:
        return None
    assert moment.effects.retired is not None
    return _compare(moment.answer.device, moment.effects.retired, moment.state.config.block_size)


@clause("KV-I5-stale", 3, op.Dispatch, op.Retire)
def stale(moment: Moment) -> Evidence | None:
    """Padding rows, and rows behind a life's last block, name no block."""
    rows: tuple[op.WorkerRow, ...] | None = None
    step = moment.effects.dispatched or moment.effects.retired
    if isinstance(moment.answer, op.Dispatched):
        rows = moment.answer.host
    elif isinstance(moment.answer, op.Retired):
        rows = moment.answer.device
    if rows is None or step is None:
        return None
    lengths = {entry.life.request: [len(row) for row in entry.rows] for entry in step.entries}
    for worker_row in rows:
        ends = lengths.get(worker_row.request, [0] * len(worker_row.rows))
        for end, row in zip(ends, worker_row.rows, strict=False):
            if any(row[end:]):
                block = next(block for block in row[end:] if block)
                name = worker_row.request or "a padding row"
                return Evidence(f"null behind column {end} of {name}", f"block {block}", block)
    padding = sum(1 for worker_row in rows if not worker_row.request)
    if padding != step.padding:
        return Evidence(f"{step.padding} padding rows", f"{padding} padding rows")
    return None


@clause("KV-I5-slot", 3, op.Retire)
def slot(moment: Moment) -> Evidence | None:
    """Each token is written to the slot of its position; padding is written nowhere."""
    if not isinstance(moment.answer, op.Retired) or moment.answer.device is None:
        return None
    assert moment.effects.retired is not None
    entries = {entry.life.request: entry for entry in moment.effects.retired.entries}
    size = moment.state.config.block_size
    for worker_row in moment.answer.device:
        entry = entries.get(worker_row.request)
        for group, slots in enumerate(worker_row.slots):
            wanted = (-1,) * len(slots) if entry is None else _slots(entry, group, size)
            if slots != wanted:
                name = worker_row.request or "padding"
                return Evidence(
                    f"slots {wanted} of {name}", f"slots {slots}", None, worker_row.request or None
                )
    return None


def _slots(entry: StepEntry, group: int, size: int) -> tuple[int, ...]:
    """By definition: the offset counts up from the block's start."""
    places = [(block, offset) for block in entry.rows[group] for offset in range(size)]
    return tuple(
        block * size + offset for block, offset in places[entry.start : entry.stop + len(entry.drafts)]
    )
