"""Block tables against a dict of lists: rows, their tails, the committed device copy, and slots."""

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kvproof.impl.worker import block_table
from kvproof.impl.worker.block_table import (
    BlockIdError,
    BlockTable,
    CommitError,
    RowOccupiedError,
    RowOverflowError,
    RowRangeError,
    StagedCommit,
    TableError,
    device_backend,
)
from kvproof.impl.worker.slot_mapping import PositionError, slot_of, slots_of

BACKENDS = ["numpy", *(["torch"] if device_backend() == "torch" else [])]
ROWS, WIDTH, DEPTH = 4, 3, 2

row_numbers = st.integers(0, ROWS - 1)
id_lists = st.lists(st.integers(0, 2**31 - 1), max_size=WIDTH)


@pytest.fixture(params=BACKENDS)
def table(request):
    """Row 0 holds 1 2 3, row 1 holds 4."""
    table = BlockTable(ROWS, WIDTH, DEPTH, request.param)
    table.add_row(0, [1, 2, 3])
    table.add_row(1, [4])
    return table


class TableMachine(RuleBasedStateMachine):
    """Any row operations and commits, beside a model that keeps lists."""

    def __init__(self):
        super().__init__()
        self.table = BlockTable(ROWS, WIDTH, DEPTH)
        self.model: dict[int, list[int]] = {row: [] for row in range(ROWS)}
        self.device: dict[int, list[int]] = {row: [] for row in range(ROWS)}
        self.waiting: list[tuple[StagedCommit, dict[int, list[int]]]] = []

    @rule(row=row_numbers, ids=id_lists)
    def add(self, row, ids):
        self.table.add_row(row, ids)
        self.model[row] = list(ids)

    @rule(row=row_numbers, ids=id_lists)
    def append(self, row, ids):
        if len(self.model[row]) + len(ids) > WIDTH:
            with pytest.raises(RowOverflowError):
                self.table.append_row(row, ids)
            return
        self.table.append_row(row, ids)
        self.model[row] += ids

    # Hypothesis takes the name `target` for itself.
    @rule(source=row_numbers, to=row_numbers)
    def move(self, source, to):
        if source != to and self.model[to]:
            with pytest.raises(RowOccupiedError):
                self.table.move_row(source, to)
            return
        self.table.move_row(source, to)
        if source != to:
            self.model[to], self.model[source] = self.model[source], []

    @rule(one=row_numbers, other=row_numbers)
    def swap(self, one, other):
        self.table.swap_rows(one, other)
        self.model[one], self.model[other] = self.model[other], self.model[one]

    @rule(row=row_numbers)
    def clear(self, row):
        self.table.clear_row(row)
        self.model[row] = []

    @rule(num_rows=st.integers(0, ROWS))
    def stage(self, num_rows):
        if len(self.waiting) > DEPTH:
            with pytest.raises(CommitError):
                self.table.stage(num_rows)
            return
        rows = {row: list(self.model[row]) for row in range(num_rows)}
        self.waiting.append((self.table.stage(num_rows), rows))

    @rule()
    def execute(self):
        if self.waiting:
            staged, rows = self.waiting.pop(0)
            self.table.execute(staged)
            self.device |= rows

    @invariant()
    def host_is_the_model_and_null_behind_it(self):
        for row, ids in self.model.items():
            assert self.table.ids(row) == tuple(ids)
            assert self.table.host[row].tolist() == ids + [0] * (WIDTH - len(ids))

    @invariant()
    def device_is_what_was_staged(self):
        device = self.table.device_rows(ROWS).tolist()
        for row, ids in self.device.items():
            assert device[row] == ids + [0] * (WIDTH - len(ids))
            assert self.table.device_num_blocks[row] == len(ids)


TestTable = TableMachine.TestCase


@pytest.mark.parametrize(
    ("misuse", "error"),
    [
        (lambda t: t.add_row(4, [1]), RowRangeError),
        (lambda t: t.add_row(-1, [1]), RowRangeError),
        (lambda t: t.add_row(0, [1, 2, 3, 4]), RowOverflowError),
        (lambda t: t.append_row(0, [1]), RowOverflowError),
        (lambda t: t.append_row(9, [1]), RowRangeError),
        (lambda t: t.append_row(1, [5, -1]), BlockIdError),
        (lambda t: t.add_row(1, [2**31]), BlockIdError),
        (lambda t: t.move_row(0, 1), RowOccupiedError),
        (lambda t: t.move_row(0, 4), RowRangeError),
        (lambda t: t.swap_rows(0, -1), RowRangeError),
        (lambda t: t.clear_row(-1), RowRangeError),
        (lambda t: t.stage(5), RowRangeError),
        (lambda t: t.stage(-1), RowRangeError),
        (lambda t: t.execute(StagedCommit(1, 0, 2)), CommitError),
    ],
)
def test_misuse_is_refused_and_changes_nothing(table, misuse, error):
    before = table.host.copy(), table.num_blocks_per_row.copy(), table.device_rows(ROWS).copy()
    with pytest.raises(error) as caught:
        misuse(table)
    assert isinstance(caught.value, TableError)
    assert (table.host == before[0]).all()
    assert (table.num_blocks_per_row == before[1]).all()
    assert (table.device_rows(ROWS) == before[2]).all()
    table.commit(ROWS)


def test_a_row_may_be_swapped_with_and_moved_to_itself(table):
    table.swap_rows(0, 0)
    table.move_row(0, 0)
    assert table.ids(0) == (1, 2, 3)


def test_a_shorter_row_leaves_no_tail(table):
    table.add_row(0, [9])
    assert table.host[0].tolist() == [9, 0, 0]


def test_a_move_clears_its_source_with_the_tail(table):
    table.move_row(0, 2)
    assert table.host.tolist() == [[0, 0, 0], [4, 0, 0], [1, 2, 3], [0, 0, 0]]


def test_a_staged_commit_keeps_the_rows_of_its_time(table):
    first = table.stage(2)
    table.append_row(1, [5])
    second = table.stage(2)
    table.clear_row(0)
    assert not table.device_rows(2).any()
    table.execute(first)
    assert table.device_rows(2).tolist() == [[1, 2, 3], [4, 0, 0]]
    table.execute(second)
    assert table.device_rows(2).tolist() == [[1, 2, 3], [4, 5, 0]]


def test_a_staging_buffer_that_is_not_a_snapshot_would_be_seen(table):
    # The control: if the copy read the live host rows, the later append would reach the device.
    table._staging_host[0] = table.host
    table._staging[0] = table.host if isinstance(table.device, np.ndarray) else as_tensor(table.host)
    first = table.stage(2)
    table.append_row(1, [5])
    table.execute(first)
    assert table.device_rows(2).tolist() != [[1, 2, 3], [4, 0, 0]]


def as_tensor(array):
    return pytest.importorskip("torch").from_numpy(array)


def test_the_device_rows_are_those_of_the_device_tensor(table):
    table.commit(2)
    assert table.device[:2].tolist() == table.device_rows(2).tolist() == [[1, 2, 3], [4, 0, 0]]


def test_only_active_rows_reach_the_device(table):
    table.commit(1)
    assert table.device_rows(2).tolist() == [[1, 2, 3], [0, 0, 0]]


def test_commits_execute_in_order_and_once(table):
    first, second = table.stage(1), table.stage(2)
    with pytest.raises(CommitError):
        table.execute(second)
    table.execute(first)
    with pytest.raises(CommitError):
        table.execute(first)
    table.execute(second)


def test_there_is_a_staging_buffer_for_every_step_in_flight_and_one_more(table):
    waiting = [table.stage(1) for _ in range(DEPTH + 1)]
    with pytest.raises(CommitError):
        table.stage(1)
    table.execute(waiting[0])
    table.stage(1)


def test_the_device_tensor_is_of_the_library_that_was_asked_for():
    for backend in BACKENDS:
        tensor = BlockTable(1, 1, backend=backend).device
        assert type(tensor).__module__.split(".")[0] == backend
        assert "int32" in str(tensor.dtype)


def test_torch_is_imported_only_when_a_tensor_is_made():
    code = (
        "import sys, kvproof.impl.worker.input_batch, kvproof.impl.worker.slot_mapping;"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_without_torch_numpy_is_the_device(monkeypatch):
    monkeypatch.setattr(block_table, "find_spec", lambda name: None)
    assert device_backend.__wrapped__() == "numpy"


# --- slots --------------------------------------------------------------------------------


@given(st.lists(id_lists, min_size=1, max_size=ROWS), st.integers(1, 32), st.data())
def test_slots_of_the_device_table_are_those_of_the_plain_form(rows, block_size, data):
    table = BlockTable(ROWS, WIDTH)
    for row, ids in enumerate(rows):
        table.add_row(row, ids)
    table.commit(ROWS)
    usable = [row for row, ids in enumerate(rows) if ids]
    places = [
        (row, data.draw(st.integers(0, len(rows[row]) * block_size - 1)))
        for row in (data.draw(st.lists(st.sampled_from(usable), max_size=8)) if usable else [])
    ]
    padding = data.draw(st.integers(0, 2))
    slots = slots_of(
        table.device_rows(ROWS),
        table.device_num_blocks,
        [row for row, _ in places],
        [position for _, position in places],
        block_size,
        padding,
    )
    assert slots == [slot_of(rows[row], p, block_size) for row, p in places] + [-1] * padding


def test_slots_come_from_the_device_not_the_host(table):
    table.commit(2)
    table.add_row(1, [7])
    assert slots_of(table.device_rows(2), table.device_num_blocks, [1], [2], 4) == [4 * 4 + 2]


@pytest.mark.parametrize(("row", "position"), [(1, -1), (1, 4), (-1, 0), (0, 12)])
def test_a_position_without_a_block_is_refused(table, row, position):
    table.commit(2)
    with pytest.raises(PositionError, match=f"position {position} of row {row} has no block"):
        slots_of(table.device_rows(2), table.device_num_blocks, [0, row], [11, position], 4)


@pytest.mark.parametrize("position", [-1, 4])
def test_the_plain_form_refuses_a_position_without_a_block(position):
    with pytest.raises(PositionError, match="row of 1 blocks of 4"):
        slot_of([4], position, 4)
