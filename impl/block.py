"""A block's metadata, and the value that hands blocks out."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class KeyUnit:
    """What a key stands for beside its content: a group, and how many tokens of a block it vouches for.

    The keys of a group and a length share one, so that a block holds a single reference.
    """

    group_id: int
    num_tokens: int


NO_UNIT: Final = KeyUnit(0, 0)
"""That of a block without a key."""


class KVCacheBlock:
    """`B` token positions of one group (REQ-1.4). Only the pool writes it, the links only the queue.

    `block_hash` is the key under which the index knows the block, or none, and `unit` belongs to
    the key. A block outside the free queue links to itself.
    """

    __slots__ = ("block_hash", "block_id", "next_free", "prev_free", "ref_cnt", "unit")

    block_id: int
    ref_cnt: int
    block_hash: bytes | None
    unit: KeyUnit
    prev_free: "KVCacheBlock"
    next_free: "KVCacheBlock"

    def __init__(self, block_id: int) -> None:
        self.block_id = block_id
        self.ref_cnt = 0
        self.block_hash = None
        self.unit = NO_UNIT
        self.prev_free = self.next_free = self

    @property
    def group_id(self) -> int:
        """The group of the key."""
        return self.unit.group_id

    @property
    def num_tokens(self) -> int:
        """The tokens for which the key vouches, 0 without a key."""
        return self.unit.num_tokens

    def __repr__(self) -> str:
        key = self.block_hash.hex()[:8] if self.block_hash is not None else None
        return f"KVCacheBlock({self.block_id}, ref_cnt={self.ref_cnt}, block_hash={key})"


BlockRun = Sequence[KVCacheBlock]
"""Blocks of one group, by logical index."""
GroupBlocks = tuple[BlockRun, ...]
"""One run per group."""


class KVCacheBlocks:
    """Blocks by group, then by order (REQ-1.1). A value: it is never changed."""

    __slots__ = ("blocks",)

    blocks: GroupBlocks

    def __init__(self, blocks: GroupBlocks) -> None:
        self.blocks = blocks

    def get_block_ids(self) -> tuple[list[int], ...]:
        """The block ids, one list per group."""
        return tuple([block.block_id for block in run] for run in self.blocks)

    def __repr__(self) -> str:
        return f"KVCacheBlocks({self.get_block_ids()})"
