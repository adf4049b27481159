"""The worker's persistent batch: which request has which row of the block tables.

The requests of a step hold rows 0…n−1. Others that the worker knows keep their state but no
row; padding rows are those right behind the batch, and read null (REQ-5.2).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from kvproof.impl.worker.block_table import BlockTable, StagedCommit
from kvproof.impl.worker.protocol import CachedRequest, NewRequest, StepDiff


class BatchError(ValueError):
    """A message or rearrangement that doesn't fit what the worker knows. Nothing has changed.

    What a table refuses of a message raises a `TableError` instead, and changes nothing either.
    """


class RequestState:
    """What the worker knows of one life of a request. A step in flight keeps the object, not the id."""

    def __init__(
        self, request_id: str, tokens: Sequence[int], payload: object, rows: Sequence[Sequence[int]]
    ) -> None:
        self.request_id = request_id
        self.tokens = list(tokens)
        self.payload = payload
        self.rows = [list(row) for row in rows]


@dataclass(frozen=True, slots=True)
class StagedBatch:
    """A step's rows as they were when it was sent: the request of each row, and the tables' commits."""

    requests: tuple[RequestState, ...]
    padding: int
    commits: tuple[StagedCommit, ...]


class InputBatch:
    """Requests in rows; one block table per group."""

    def __init__(self, tables: Sequence[BlockTable]) -> None:
        self.tables = tuple(tables)
        self.max_rows = self.tables[0].max_rows
        self.states: dict[str, RequestState] = {}
        self._rows: list[RequestState | None] = [None] * self.max_rows
        self._row_of: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._row_of)

    def row_of(self, request_id: str) -> int | None:
        """The row of a request, if it has one."""
        return self._row_of.get(request_id)

    def apply(self, diff: StepDiff) -> None:
        """Take a step's message: afterwards the batch is exactly the step's requests, without holes."""
        self._check(diff)
        scheduled = [each.request_id for each in diff.scheduled]
        for name in (*diff.preempted, *diff.finished):
            self._remove(name)
        for name in diff.finished:
            del self.states[name]
        for name in self._row_of.keys() - set(scheduled):
            self._remove(name)
        for new in diff.new:
            self.states[new.request_id] = RequestState(new.request_id, new.tokens, new.payload, new.rows)
        for cached in diff.cached:
            self._update(cached)
        for name in scheduled:
            if name not in self._row_of:
                self._add(self.states[name])
        self.condense()

    def condense(self) -> None:
        """Fill every hole with the last row (REQ-5.2: the row that it leaves is cleared)."""
        for last in range(self.max_rows - 1, -1, -1):
            hole = self._lowest_free_row()
            if hole is None or len(self) == hole:
                return
            if self._rows[last] is not None:
                self._shift(last, hole)

    def move(self, request_id: str) -> None:
        """Take a request's row to the free row with the lowest number; the hole stays until the next step."""
        source = self._require_row(request_id)
        target = self._lowest_free_row()
        if target is None:
            raise BatchError(f"all {self.max_rows} rows are taken; '{request_id}' has nowhere to move.")
        self._shift(source, target)

    def swap(self, request_id: str, other: str) -> None:
        """Exchange the rows of two requests."""
        one, two = self._require_row(request_id), self._require_row(other)
        for table in self.tables:
            table.swap_rows(one, two)
        self._rows[one], self._rows[two] = self._rows[two], self._rows[one]
        self._row_of[request_id], self._row_of[other] = two, one

    def stage(self, padding: int = 0) -> StagedBatch:
        """Queue the commit of the batch's rows and of `padding` rows behind them."""
        count = len(self)
        requests = tuple(state for state in self._rows[:count] if state is not None)
        if len(requests) < count:
            raise BatchError("the batch has a hole; condense it before it is staged.")
        if count + padding > self.max_rows:
            raise BatchError(f"{count} requests and {padding} padding rows in {self.max_rows} rows.")
        return StagedBatch(requests, padding, tuple(table.stage(count + padding) for table in self.tables))

    def execute(self, staged: StagedBatch) -> None:
        """The queued copies run."""
        for table, commit in zip(self.tables, staged.commits, strict=True):
            table.execute(commit)

    def _check(self, diff: StepDiff) -> None:
        ended = set(diff.finished)
        unknown = (ended | set(diff.preempted)) - self.states.keys()
        if unknown:
            raise BatchError(f"{sorted(unknown)} ended, but the worker was never sent them.")
        known = self.states.keys() - ended
        again = {new.request_id for new in diff.new} & known
        if again:
            raise BatchError(f"{sorted(again)} are new, but the worker knows them.")
        missing = {cached.request_id for cached in diff.cached} - known
        if missing:
            raise BatchError(f"{sorted(missing)} are continued, but the worker doesn't know them.")
        sent: list[NewRequest | CachedRequest] = [*diff.new, *diff.cached]
        if sorted(each.request_id for each in sent) != sorted(each.request_id for each in diff.scheduled):
            raise BatchError("the requests of the step are not those that the message describes.")
        for each in sent:
            behind = isinstance(each, CachedRequest) and not (each.resumed or each.replaced)
            known_rows = self.states[each.request_id].rows if behind else [()] * len(self.tables)
            for table, known_row, ids in zip(self.tables, known_rows, each.rows, strict=True):
                table.check_ids(ids, len(known_row))
        if len(diff.scheduled) + diff.padding > self.max_rows:
            raise BatchError(
                f"{len(diff.scheduled)} requests and {diff.padding} padding rows in {self.max_rows} rows."
            )

    def _update(self, cached: CachedRequest) -> None:
        state = self.states[cached.request_id]
        if cached.resumed:
            self._remove(cached.request_id)
            self.states[cached.request_id] = RequestState(
                cached.request_id, cached.tokens, state.payload, cached.rows
            )
            return
        row = self.row_of(cached.request_id)
        for table, known, ids in zip(self.tables, state.rows, cached.rows, strict=True):
            if cached.replaced:
                known.clear()
            known.extend(ids)
            if row is not None and cached.replaced:
                table.add_row(row, ids)
            elif row is not None:
                table.append_row(row, ids)

    def _add(self, state: RequestState) -> None:
        row = self._lowest_free_row()
        assert row is not None, "the batch is full"
        for table, ids in zip(self.tables, state.rows, strict=True):
            table.add_row(row, ids)
        self._rows[row] = state
        self._row_of[state.request_id] = row

    def _remove(self, request_id: str) -> None:
        row = self._row_of.pop(request_id, None)
        if row is not None:
            self._rows[row] = None
            for table in self.tables:
                table.clear_row(row)

    def _shift(self, source: int, target: int) -> None:
        state = self._rows[source]
        assert state is not None, "an empty row doesn't move"
        for table in self.tables:
            table.move_row(source, target)
        self._rows[source], self._rows[target] = None, state
        self._row_of[state.request_id] = target

    def _lowest_free_row(self) -> int | None:
        return self._rows.index(None) if len(self) < self.max_rows else None

    def _require_row(self, request_id: str) -> int:
        row = self.row_of(request_id)
        if row is None:
            raise BatchError(f"'{request_id}' has no row.")
        return row
