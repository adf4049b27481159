"""Where the tokens of a step are written: from the committed table to slots (REQ-5.3)."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from kvproof.impl import arithmetic
from kvproof.spec.vocabulary import PADDING_SLOT


class PositionError(ValueError):
    """A position for which its row has no block."""


def slot_of(row: Sequence[int], position: int, block_size: int) -> int:
    """The slot of a position whose row holds these block ids: the plain form."""
    if not 0 <= position < len(row) * block_size:
        raise PositionError(f"position {position} in a row of {len(row)} blocks of {block_size}.")
    block = row[arithmetic.block_index(position, block_size)]
    return arithmetic.slot(block, position, block_size)


def slots_of(
    table: npt.NDArray[np.int32],
    num_blocks: npt.NDArray[np.int32],
    rows: Sequence[int],
    positions: Sequence[int],
    block_size: int,
    padding: int = 0,
) -> list[int]:
    """The slot of each (row, position) of a table `[rows, width]`, then −1 for each padding token.

    The formulas are the plain form's, applied to arrays.
    """
    if not len(rows):
        return [PADDING_SLOT] * padding
    # The formulas are typed for integers and run on whatever has their operators.
    batch_rows: Any = np.array(rows, np.int64)
    batch_positions: Any = np.array(positions, np.int64)
    columns: Any = arithmetic.block_index(batch_positions, block_size)
    behind = (columns >= num_blocks[batch_rows]).tolist()
    if min(rows) < 0 or min(positions) < 0 or True in behind:
        wrong = next(i for i in range(len(rows)) if rows[i] < 0 or positions[i] < 0 or behind[i])
        row, position = rows[wrong], positions[wrong]
        raise PositionError(
            f"position {position} of row {row} has no block; blocks hold {block_size} tokens."
        )
    blocks: Any = table[batch_rows, columns].astype(np.int64)
    slots: list[int] = np.asarray(arithmetic.slot(blocks, batch_positions, block_size)).tolist()
    return slots + [PADDING_SLOT] * padding
