"""The reference worker at level 3: it writes what it was told, through its own tables, as late as it may.

Contents are made from the tokens that the worker received: the prompt, the drafts, and the
outputs of steps that have retired. A step executes when it retires, steps in order; until then
only its snapshot of the batch is kept.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from weakref import WeakKeyDictionary

from kvproof.fuzz.device import Device, Digests, Extra, extras_of
from kvproof.impl import arithmetic
from kvproof.impl.worker.block_table import BlockTable
from kvproof.impl.worker.input_batch import BatchError, InputBatch, RequestState, StagedBatch
from kvproof.impl.worker.protocol import Scheduled, StepDiff
from kvproof.impl.worker.slot_mapping import slots_of
from kvproof.spec import operations as op
from kvproof.spec.content import Root
from kvproof.spec.vocabulary import CacheConfig

UNKNOWN_TOKEN: Final = -1
"""Stands for a token that the worker never learned: its life ended before the output arrived."""

Slots = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class StepInFlight:
    """A dispatched step: its batch as it was, and each row's part of it."""

    staged: StagedBatch
    parts: tuple[Scheduled, ...]
    host: tuple[op.WorkerRow, ...]


class ReferenceWorker:
    """Applies differential messages, and executes them on a device of the harness."""

    def __init__(
        self,
        config: CacheConfig,
        device: Device,
        digests: Digests | None = None,
        backend: str | None = None,
    ) -> None:
        width = arithmetic.row_width(config.max_len, config.block_size)
        tables = [BlockTable(config.max_requests, width, config.depth, backend) for _ in config.groups]
        self.batch = InputBatch(tables)
        self.device = device
        self._block_size = config.block_size
        self._digests = digests or Digests()
        self._flight: dict[int, StepInFlight] = {}
        self._writings: WeakKeyDictionary[RequestState, list[Writing]] = WeakKeyDictionary()

    def dispatch(self, diff: StepDiff) -> op.Dispatched:
        """Take the step's message and queue its table commits. `host` are the rows that were staged."""
        self.batch.apply(diff)
        staged = self.batch.stage(diff.padding)
        tables = [table.host[: len(staged.requests) + diff.padding].tolist() for table in self.batch.tables]
        host = _worker_rows(staged, tables, ())
        parts = {part.request_id: part for part in diff.scheduled}
        self._flight[diff.step] = StepInFlight(
            staged, tuple(parts[state.request_id] for state in staged.requests), host
        )
        return op.Dispatched(host)

    def rows(self, step: int) -> tuple[op.WorkerRow, ...]:
        """The host rows of a step in flight, in batch order, padding last."""
        return self._flight[step].host

    def retire(self, step: int, sampled: Mapping[str, tuple[int, ...]]) -> op.Retired:
        """The step executes; then the outputs of the lives that still live become known here."""
        flight = self._flight.get(step)
        if flight is None:
            raise BatchError(f"step {step} is not in flight.")
        states = {state.request_id: state for state in flight.staged.requests}
        if not sampled.keys() <= states.keys():
            raise BatchError(f"step {step} has no {sorted(sampled.keys() - states.keys())}.")
        self.batch.execute(flight.staged)
        del self._flight[step]
        slots = self._write(flight)
        for request_id, tokens in sampled.items():
            states[request_id].tokens.extend(tokens)
        count = len(flight.staged.requests) + flight.staged.padding
        tables = [table.device_rows(count).tolist() for table in self.batch.tables]
        return op.Retired(_worker_rows(flight.staged, tables, slots))

    def table(self, operation: op.Table) -> None:
        """Move or swap rows of the batch; refuses what has no row, or no room to move."""
        if operation.action == "move":
            self.batch.move(operation.request)
        else:
            self.batch.swap(operation.request, operation.other)

    def _write(self, flight: StepInFlight) -> tuple[Slots, ...]:
        """Write the step's tokens in every group; the slots of each row, per group."""
        padding = flight.staged.padding
        rows: list[int] = []
        positions: list[int] = []
        for row, part in enumerate(flight.parts):
            end = part.start + part.n + len(part.drafts)
            rows.extend([row] * (end - part.start))
            positions.extend(range(part.start, end))
        per_group = []
        for group, table in enumerate(self.batch.tables):
            count = len(flight.parts) + padding
            slots = slots_of(
                table.device_rows(count), table.device_num_blocks, rows, positions, self._block_size, padding
            )
            digests = [
                digest
                for state, part in zip(flight.staged.requests, flight.parts, strict=True)
                for digest in self._writing(state, group).digests(part)
            ]
            # What is wrong with the slots is the oracle's to say: it is shown every one.
            self.device.write(slots, digests + [0] * padding)
            per_group.append(_by_row(slots, flight, padding))
        return tuple(zip(*per_group, strict=True))

    def _writing(self, state: RequestState, group: int) -> "Writing":
        writings = self._writings.get(state)
        if writings is None:
            writings = [Writing(state, each, self._digests) for each in range(len(self.batch.tables))]
            self._writings[state] = writings
        return writings[group]


class Writing:
    """The digests of a life's positions in a group, from the tokens that the worker knows."""

    def __init__(self, state: RequestState, group: int, digests: Digests) -> None:
        assert isinstance(state.payload, op.Extras), "a request's payload is its extras"
        # The list, not the state: the state is the key under which this is kept.
        self._tokens = state.tokens
        self._source = digests
        self._extras: dict[int, Extra] = extras_of(state.payload)
        adapter = state.payload.adapter
        identity = (adapter.name, adapter.id, adapter.path) if adapter else None
        self._root = digests.root(Root(group, epoch=0, adapter=identity, salt=state.payload.salt))
        self._known: list[int] = []

    def digests(self, part: Scheduled) -> list[int]:
        """The digest of each position that a step writes."""
        end = part.start + part.n
        known, tokens = self._known, self._tokens
        for position in range(len(known), min(end, len(tokens))):
            known.append(self._extend(known[-1] if known else self._root, position, tokens[position]))
        found = known[part.start : end]
        last = known[min(end, len(known)) - 1] if known and end else self._root
        unlearned = [UNKNOWN_TOKEN] * (end - part.start - len(found))
        for position, token in enumerate((*unlearned, *part.drafts), part.start + len(found)):
            last = self._extend(last, position, token)
            found.append(last)
        return found

    def _extend(self, digest: int, position: int, token: int) -> int:
        return self._source.extend(digest, token, self._extras.get(position))


def _by_row(slots: list[int], flight: StepInFlight, padding: int) -> list[tuple[int, ...]]:
    """Cut a step's slots into those of each row."""
    by_row, start = [], 0
    for part in flight.parts:
        end = start + part.n + len(part.drafts)
        by_row.append(tuple(slots[start:end]))
        start = end
    return [*by_row, *((slot,) for slot in slots[start : start + padding])]


def _worker_rows(
    staged: StagedBatch, tables: list[list[list[int]]], slots: tuple[Slots, ...]
) -> tuple[op.WorkerRow, ...]:
    names = [state.request_id for state in staged.requests] + [""] * staged.padding
    rows = [tuple(map(tuple, by_group)) for by_group in zip(*tables, strict=True)]
    if not slots:
        return tuple(map(op.WorkerRow, names, rows))
    return tuple(map(op.WorkerRow, names, rows, slots))
