"""A group's block table: rows of block ids on the host, and their committed copy on the device (REQ-5.1).

A commit has two halves, because a staged host buffer is read when the copy executes, not
when it is queued: `stage` takes a snapshot, `execute` copies it later. There is a staging
buffer for every step that can be in flight and one more.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import Any

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int32]

MAX_ID = 2**31 - 1


class TableError(ValueError):
    """Base of what a table refuses. Nothing has changed."""


class RowRangeError(TableError):
    """A row that the table doesn't have."""


class RowOverflowError(TableError):
    """More blocks than a row has columns."""


class RowOccupiedError(TableError):
    """A move onto a row that holds blocks."""


class BlockIdError(TableError):
    """A block id that is negative or does not fit 32 bits."""


class CommitError(TableError):
    """A commit out of turn: no staging buffer is free, or it isn't the oldest that waits."""


@cache
def device_backend() -> str:
    """`torch` where it is installed, else `numpy`; the device tensor's library."""
    return "torch" if find_spec("torch") else "numpy"


def new_tensor(rows: int, width: int, backend: str) -> Any:
    """A tensor of int32 zeros. torch is imported here and nowhere else in `impl`."""
    if backend == "torch":
        import torch

        return torch.zeros((rows, width), dtype=torch.int32)
    return np.zeros((rows, width), np.int32)


@dataclass(frozen=True, slots=True)
class StagedCommit:
    """The first `num_rows` rows, waiting in a staging buffer; `number` counts a table's commits from 1."""

    number: int
    buffer: int
    num_rows: int


class BlockTable:
    """`max_rows` rows of `width` columns. Behind a row's end every column is null (REQ-5.2)."""

    def __init__(self, max_rows: int, width: int, depth: int = 1, backend: str | None = None) -> None:
        backend = backend or device_backend()
        self.max_rows = max_rows
        self.width = width
        self.host: Ids = np.zeros((max_rows, width), np.int32)
        self.num_blocks_per_row: Ids = np.zeros(max_rows, np.int32)
        self.device: Any = new_tensor(max_rows, width, backend)
        self._device_view: Ids = np.asarray(self.device)
        self.device_num_blocks: Ids = np.zeros(max_rows, np.int32)
        self._staging = [new_tensor(max_rows, width, backend) for _ in range(depth + 1)]
        self._staging_host: list[Ids] = [np.asarray(buffer) for buffer in self._staging]
        self._staging_num_blocks: Ids = np.zeros((depth + 1, max_rows), np.int32)
        self._free_buffers = list(range(depth + 1))
        self._num_staged = 0
        self._num_executed = 0

    def add_row(self, row: int, ids: Sequence[int]) -> None:
        """Make `ids` the whole row."""
        self._check_row(row)
        self.check_ids(ids, 0)
        self.host[row, : len(ids)] = ids
        self.host[row, len(ids) :] = 0
        self.num_blocks_per_row[row] = len(ids)

    def append_row(self, row: int, ids: Sequence[int]) -> None:
        """Put `ids` behind the row's end."""
        self._check_row(row)
        start = int(self.num_blocks_per_row[row])
        self.check_ids(ids, start)
        if not ids:
            return
        self.host[row, start : start + len(ids)] = ids
        self.num_blocks_per_row[row] = start + len(ids)

    def move_row(self, source: int, target: int) -> None:
        """Copy a row to an empty one and clear the source, all its columns. A move onto itself is none."""
        self._check_row(source)
        self._check_row(target)
        if source == target:
            return
        if self.num_blocks_per_row[target]:
            raise RowOccupiedError(f"row {target} holds blocks; clear it before row {source} moves there.")
        self.host[target] = self.host[source]
        self.num_blocks_per_row[target] = self.num_blocks_per_row[source]
        self.clear_row(source)

    def swap_rows(self, one: int, other: int) -> None:
        """Exchange two rows."""
        self._check_row(one)
        self._check_row(other)
        self.host[[one, other]] = self.host[[other, one]]
        self.num_blocks_per_row[[one, other]] = self.num_blocks_per_row[[other, one]]

    def clear_row(self, row: int) -> None:
        """Make all columns of a row null."""
        self._check_row(row)
        self.host[row] = 0
        self.num_blocks_per_row[row] = 0

    def ids(self, row: int) -> tuple[int, ...]:
        """The block ids of a row on the host, up to its end."""
        self._check_row(row)
        return tuple(self.host[row, : self.num_blocks_per_row[row]].tolist())

    def stage(self, num_rows: int) -> StagedCommit:
        """Queue the copy of the first `num_rows` rows as they are now."""
        if not 0 <= num_rows <= self.max_rows:
            raise RowRangeError(f"{num_rows} rows of {self.max_rows} can't be committed.")
        if not self._free_buffers:
            raise CommitError(
                f"all {len(self._staging)} staging buffers wait; execute the oldest commit first."
            )
        buffer = self._free_buffers.pop(0)
        self._staging_host[buffer][:num_rows] = self.host[:num_rows]
        self._staging_num_blocks[buffer, :num_rows] = self.num_blocks_per_row[:num_rows]
        self._num_staged += 1
        return StagedCommit(self._num_staged, buffer, num_rows)

    def execute(self, staged: StagedCommit) -> None:
        """The queued copy runs: the staging buffer's rows reach the device, and the buffer is free again."""
        if staged.number != self._num_executed + 1 or staged.number > self._num_staged:
            raise CommitError(f"commit {staged.number} is not the next; {self._num_executed} have executed.")
        num_rows = staged.num_rows
        self.device[:num_rows] = self._staging[staged.buffer][:num_rows]
        self.device_num_blocks[:num_rows] = self._staging_num_blocks[staged.buffer, :num_rows]
        self._num_executed = staged.number
        self._free_buffers.append(staged.buffer)

    def commit(self, num_rows: int) -> None:
        """Both halves at once."""
        self.execute(self.stage(num_rows))

    def device_rows(self, num_rows: int) -> Ids:
        """The first rows as a kernel would read them now."""
        return self._device_view[:num_rows]

    def check_ids(self, ids: Sequence[int], start: int) -> None:
        """Raise if a row of `start` blocks can't take `ids` behind them."""
        if start + len(ids) > self.width:
            raise RowOverflowError(f"{start} + {len(ids)} blocks in a row of {self.width} columns.")
        if ids and not (min(ids) >= 0 and max(ids) <= MAX_ID):
            raise BlockIdError(f"block ids are 0…{MAX_ID}, not {min(ids)}…{max(ids)}.")

    def _check_row(self, row: int) -> None:
        if not 0 <= row < self.max_rows:
            raise RowRangeError(f"row {row} is not one of 0…{self.max_rows - 1}.")
