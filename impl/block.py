"""A block's metadata, and the value that hands blocks out."""

from collections.abc import Sequence


class KVCacheBlock:
    """`B` token positions of one group (REQ-1.4). Only the pool writes it, the links only the queue.

    `block_hash` is the key under which the index knows the block, or none; `group_id` and
    `num_tokens` belong to the key: its group, and how many tokens of the block it vouches for.
    A block outside the free queue links to itself.
    """

    __slots__ = ("block_hash", "block_id", "group_id", "next_free", "num_tokens", "prev_free", "ref_cnt")

    block_id: int
    ref_cnt: int
    block_hash: bytes | None
    group_id: int
    num_tokens: int
    prev_free: "KVCacheBlock"
    next_free: "KVCacheBlock"

    def __init__(self, block_id: int) -> None:
        self.block_id = block_id
        self.ref_cnt = 0
        self.block_hash = None
        self.group_id = 0
        self.num_tokens = 0
        self.prev_free = self.next_free = self

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
