"""Splits demand over the groups' managers and joins what they answer (REQ-1.2)."""

from abc import ABC, abstractmethod

from kvproof.impl import arithmetic
from kvproof.impl.arithmetic import Demand
from kvproof.impl.block import GroupBlocks
from kvproof.impl.block_pool import BlockPool
from kvproof.impl.cache_spec import managers_of
from kvproof.impl.errors import HeldPromise
from kvproof.impl.request import Request
from kvproof.spec.vocabulary import CacheConfig


class KVCacheCoordinator(ABC):
    """Treats all groups alike and in order; a subclass says what a common hit is."""

    def __init__(self, config: CacheConfig, block_pool: BlockPool) -> None:
        self.block_size = config.block_size
        self.block_pool = block_pool
        self.managers = managers_of(config, block_pool)
        self.no_blocks: GroupBlocks = ((),) * len(self.managers)

    @abstractmethod
    def find_longest_cache_hit(self, request: Request) -> GroupBlocks:
        """The hit of a waiting request in every group, the last token left out (REQ-3.5). No effect."""

    @abstractmethod
    def cache_blocks(self, request: Request, num_tokens: int) -> None:
        """Key the blocks that are full of known tokens below a scheduled boundary."""

    def get_num_blocks_to_allocate(self, request_id: str, slots: int, hits: GroupBlocks) -> Demand:
        """The groups' demands together (REQ-2.4). No effect."""
        total = None
        for manager in self.managers:
            demand = manager.get_num_blocks_to_allocate(request_id, slots, hits[manager.group_id])
            total = demand if total is None else arithmetic.joint_demand(total, demand)
        assert total is not None, "there is a group"
        return total

    def allocate_new_computed_blocks(self, request_id: str, hits: GroupBlocks) -> None:
        """Begin the rows with their hits, in all groups before anything else is taken (REQ-2.6)."""
        for manager in self.managers:
            manager.allocate_new_computed_blocks(request_id, hits[manager.group_id])

    def allocate_new_blocks(self, request_id: str, slots: int) -> GroupBlocks:
        """Grow the rows group by group; the blocks that each gained."""
        return tuple([manager.allocate_new_blocks(request_id, slots) for manager in self.managers])

    def remove_skipped_blocks(self, request_id: str, num_processed_tokens: int) -> None:
        """Return what no query from a boundary on can read."""
        for manager in self.managers:
            manager.remove_skipped_blocks(request_id, num_processed_tokens)

    def withdraw_beyond(self, request_id: str, num_tokens: int) -> None:
        """Remove the keys of a life's blocks behind a boundary, deepest first (REQ-2.10).

        Raises HeldPromise, with no change, if another life holds one of them.
        """
        blocks = [
            block for manager in self.managers for block in manager.blocks_beyond(request_id, num_tokens)
        ]
        for block in blocks:
            if block.ref_cnt != 1:
                raise HeldPromise(request_id, block.block_id)
        self.block_pool.remove_keys(blocks)

    def free(self, request_id: str) -> GroupBlocks:
        """Forget the rows; their blocks, deepest first, are still held."""
        return tuple([manager.free(request_id) for manager in self.managers])

    def get_blocks(self, request_id: str) -> GroupBlocks:
        """The rows of a living request."""
        return tuple([manager.req_to_blocks[request_id] for manager in self.managers])


class NoPrefixCacheCoordinator(KVCacheCoordinator):
    """Nothing is keyed, nothing is hit."""

    def find_longest_cache_hit(self, request: Request) -> GroupBlocks:
        return self.no_blocks

    def cache_blocks(self, request: Request, num_tokens: int) -> None:
        pass


class UnitaryKVCacheCoordinator(KVCacheCoordinator):
    """One group: its hit is the common hit."""

    def __init__(self, config: CacheConfig, block_pool: BlockPool) -> None:
        super().__init__(config, block_pool)
        (self.manager,) = self.managers

    def find_longest_cache_hit(self, request: Request) -> GroupBlocks:
        most = arithmetic.max_hit_blocks(request.num_tokens, self.block_size)
        return (self.manager.find_longest_cache_hit(request.block_hashes, most),)

    def get_num_blocks_to_allocate(self, request_id: str, slots: int, hits: GroupBlocks) -> Demand:
        return self.manager.get_num_blocks_to_allocate(request_id, slots, hits[0])

    def cache_blocks(self, request: Request, num_tokens: int) -> None:
        self.manager.cache_blocks(request, num_tokens)


def coordinator_of(config: CacheConfig, block_pool: BlockPool) -> KVCacheCoordinator:
    """The coordinator for a configuration."""
    if not config.prefix_caching:
        return NoPrefixCacheCoordinator(config, block_pool)
    return UnitaryKVCacheCoordinator(config, block_pool)
