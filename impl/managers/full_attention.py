"""Full attention: a query reads everything up to its own position."""

from collections.abc import Sequence
from itertools import islice

from kvproof.impl import arithmetic
from kvproof.impl.arithmetic import Demand
from kvproof.impl.block import BlockRun, KVCacheBlock
from kvproof.impl.managers.base import SingleTypeKVCacheManager


class FullAttentionManager(SingleTypeKVCacheManager):
    """Rows only grow. Every prefix of a hit is a hit."""

    def find_longest_cache_hit(self, block_hashes: Sequence[bytes], max_blocks: int) -> BlockRun:
        """The leading keys that are in the index, each with its oldest block."""
        hits: list[KVCacheBlock] = []
        for block in map(self.block_pool.index[self.group_id].get, islice(block_hashes, max_blocks)):
            if block is None:
                break
            hits.append(block)
        return hits if len(set(hits)) == len(hits) else distinct_prefix(hits)

    def get_num_blocks_to_allocate(self, request_id: str, slots: int, hits: BlockRun) -> Demand:
        """Blocks missing in the row, and hits that lie in the free queue (REQ-2.2, 2.3)."""
        row = self.req_to_blocks.get(request_id)
        owned = len(row) if row is not None else 0
        evictable = [block.ref_cnt for block in hits].count(0) if hits else 0
        return arithmetic.demand(slots, self.block_size, owned, len(hits), evictable)

    def allocate_new_blocks(self, request_id: str, slots: int) -> BlockRun:
        """Append blocks behind the last one."""
        row = self.req_to_blocks[request_id]
        count = arithmetic.new_blocks(slots, self.block_size, len(row))
        if count == 0:
            return ()
        blocks = self.block_pool.get_new_blocks(count)
        row += blocks
        return blocks

    def remove_skipped_blocks(self, request_id: str, num_processed_tokens: int) -> None:
        """Nothing: every position stays readable."""


def distinct_prefix(blocks: Sequence[KVCacheBlock]) -> BlockRun:
    """The blocks before the first repetition: keys of few bits may collide inside a chain, but a row
    holds a block once."""
    distinct: dict[KVCacheBlock, None] = {}
    for block in blocks:
        if block in distinct:
            break
        distinct[block] = None
    return list(distinct)
