"""What every group's manager does with the rows of its group (REQ-1.3)."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from kvproof.impl import arithmetic
from kvproof.impl.arithmetic import Demand
from kvproof.impl.block import BlockRun, KVCacheBlock
from kvproof.impl.block_pool import BlockPool
from kvproof.impl.request import Request


class SingleTypeKVCacheManager(ABC):
    """The logical tables of one group.

    `req_to_blocks[request_id]` is a request's row; `num_cached_block[request_id]` says up to which
    index it has been keyed or hit. Both have an entry exactly while the request lives.
    """

    def __init__(self, group_id: int, block_size: int, block_pool: BlockPool) -> None:
        self.group_id = group_id
        self.block_size = block_size
        self.block_pool = block_pool
        self.req_to_blocks: dict[str, list[KVCacheBlock]] = {}
        self.num_cached_block: dict[str, int] = {}

    @abstractmethod
    def find_longest_cache_hit(self, block_hashes: Sequence[bytes], max_blocks: int) -> BlockRun:
        """The hit of at most `max_blocks` blocks. No effect."""

    @abstractmethod
    def get_num_blocks_to_allocate(self, request_id: str, slots: int, hits: BlockRun) -> Demand:
        """What the row takes from the free queue to take `hits` and have `slots` slots. No effect."""

    @abstractmethod
    def allocate_new_blocks(self, request_id: str, slots: int) -> BlockRun:
        """Grow the row to `slots` slots; the blocks that it gained."""

    @abstractmethod
    def remove_skipped_blocks(self, request_id: str, num_processed_tokens: int) -> None:
        """Return the blocks that no query from a boundary on can read (REQ-2.5)."""

    def allocate_new_computed_blocks(self, request_id: str, hits: BlockRun) -> None:
        """Begin a row with its hits, held from now on."""
        assert request_id not in self.req_to_blocks, "a row begins once"
        self.block_pool.touch(hits)
        self.req_to_blocks[request_id] = list(hits)
        self.num_cached_block[request_id] = len(hits)

    def cache_blocks(self, request: Request, num_tokens: int) -> None:
        """Key the blocks that are full of known tokens below a scheduled boundary (REQ-2.8)."""
        full = arithmetic.publishable_blocks(num_tokens, request.num_tokens, self.block_size)
        cached = self.num_cached_block[request.request_id]
        if full > cached:
            row = self.req_to_blocks[request.request_id]
            self.block_pool.cache_full_blocks(request, row, cached, full, self.block_size, self.group_id)
            self.num_cached_block[request.request_id] = full

    def blocks_beyond(self, request_id: str, num_tokens: int) -> BlockRun:
        """The blocks of a row with a position at or behind a boundary, deepest first."""
        first = arithmetic.full_blocks(num_tokens, self.block_size)
        return self.req_to_blocks[request_id][first:][::-1]

    def free(self, request_id: str) -> BlockRun:
        """Forget the row; its blocks, deepest first, are still held (REQ-4.4)."""
        del self.num_cached_block[request_id]
        row = self.req_to_blocks.pop(request_id)
        row.reverse()
        return row
