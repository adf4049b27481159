"""The block pool: all blocks, the free queue and the prefix index (REQ-1.4, 4.1–4.6)."""

import gc
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import NoReturn

from kvproof.impl import arithmetic
from kvproof.impl.block import NO_UNIT, BlockRun, KeyUnit, KVCacheBlock
from kvproof.impl.errors import DoubleFree, InvalidCount, NotFree, NullBlockMisuse, UnknownBlock
from kvproof.impl.events import AllBlocksCleared, BlockRemoved, BlockStored, EventQueue
from kvproof.impl.free_queue import FreeBlockQueue
from kvproof.impl.request import Request
from kvproof.spec.vocabulary import NULL_BLOCK

Copies = OrderedDict[int, KVCacheBlock]
"""Younger blocks of one key by block id, the oldest first."""


@contextmanager
def _collector_paused() -> Iterator[None]:
    """A million objects that all stay: collecting in between would double the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class BlockPool:
    """Hands blocks out, takes them back, and knows which content they still have.

    `blocks[i].block_id == i`; block 0 is the null block and never moves. `index[g]` maps a key
    of group `g` to its oldest block, `copies[g]` to the younger ones where there are any.
    Every operation that raises a CacheError has changed nothing.
    """

    def __init__(
        self, num_usable: int, enable_caching: bool, num_groups: int, events: EventQueue | None = None
    ) -> None:
        if num_usable < 1:
            raise InvalidCount("the number of usable blocks", num_usable, "at least 1")
        self.num_usable = num_usable
        self.enable_caching = enable_caching
        self.events = events
        with _collector_paused():
            self.blocks = [KVCacheBlock(block_id) for block_id in range(num_usable + 1)]
            self.null_block = self.blocks[NULL_BLOCK]
            self.free_queue = FreeBlockQueue(self.blocks[1:])
        self.index: tuple[dict[bytes, KVCacheBlock], ...] = tuple({} for _ in range(num_groups))
        self.copies: tuple[dict[bytes, Copies], ...] = tuple({} for _ in range(num_groups))

    # --- reading ------------------------------------------------------------------------

    def get_cached_block(self, block_hash: bytes, group_id: int) -> KVCacheBlock | None:
        """The oldest block under a key, or None (REQ-3.6)."""
        return self.index[group_id].get(block_hash)

    def get_num_free_blocks(self) -> int:
        """Blocks without a holder; their content may still be hittable."""
        return self.free_queue.num_free_blocks

    @property
    def usage(self) -> float:
        """Share of the usable blocks that somebody holds, 0…1 (REQ-4.6)."""
        return 1.0 - self.free_queue.num_free_blocks / self.num_usable

    def index_entries(self) -> Iterator[tuple[bytes, int, list[int]]]:
        """Every hittable key with its group and blocks, the oldest first."""
        for group_id, index in enumerate(self.index):
            for key, block in index.items():
                yield key, group_id, [block.block_id, *self.copies[group_id].get(key, ())]

    # --- holding ------------------------------------------------------------------------

    def get_new_blocks(self, n: int) -> list[KVCacheBlock]:
        """Hand out `n` blocks from the head with `ref_cnt` 1, their keys removed before (REQ-4.3).

        Raises OutOfBlocks or InvalidCount.
        """
        if n == 1:
            return self._get_new_block()
        blocks = self.free_queue.popleft_n(n)
        self.remove_keys(blocks)
        for block in blocks:
            assert block.ref_cnt == 0, "a free block has no holder"
            block.ref_cnt = 1
        return blocks

    def _get_new_block(self) -> list[KVCacheBlock]:
        """The same for one block, which is what a row gains that decodes."""
        block = self.free_queue.popleft()
        blocks = [block]
        if block.block_hash is not None:
            self.remove_keys(blocks)
        assert block.ref_cnt == 0, "a free block has no holder"
        block.ref_cnt = 1
        return blocks

    def touch(self, blocks: BlockRun) -> None:
        """Hold blocks once more; those without a holder leave the queue (REQ-2.3).

        Raises NullBlockMisuse or NotFree.
        """
        try:
            self.free_queue.remove_n([block for block in blocks if block.ref_cnt == 0])
        except NotFree:
            if self.null_block in blocks:
                raise NullBlockMisuse("held") from None
            raise
        for block in blocks:
            block.ref_cnt += 1

    def free_blocks(self, blocks: BlockRun) -> None:
        """One holder releases these blocks, given deepest first (REQ-4.4).

        Blocks without a holder left enter the queue in the given order: those without a key at
        the front, the others at the back. Raises DoubleFree or NullBlockMisuse.
        """
        shared = False
        rest = iter(blocks)
        for block in rest:
            holders = block.ref_cnt
            if holders == 1:
                block.ref_cnt = 0
            elif holders > 1:
                block.ref_cnt = holders - 1
                shared = True
            else:
                counted = len(blocks) - len(list(rest)) - 1
                self._refuse_free(blocks[:counted], block)
        released = blocks
        if shared:
            if len(set(blocks)) != len(blocks):
                self._refuse_free(blocks, _first_repeated(blocks))
            released = [block for block in blocks if block.ref_cnt == 0]
        self.free_queue.put_back(released)

    def _refuse_free(self, counted: BlockRun, offender: KVCacheBlock) -> NoReturn:
        """Give the references back that were taken, and raise."""
        for block in counted:
            block.ref_cnt += 1
        if offender is self.null_block:
            raise NullBlockMisuse("released")
        raise DoubleFree(offender.block_id)

    # --- keys ---------------------------------------------------------------------------

    def cache_full_blocks(
        self, request: Request, row: BlockRun, first: int, last: int, block_size: int, group_id: int
    ) -> None:
        """Key the blocks `first … last−1` of a row with the request's keys (REQ-2.8, 3.6).

        All have been unkeyed so far. The first block under a key is the one that is looked up.
        Raises InvalidCount.
        """
        if not 0 <= first <= last <= len(row):
            raise InvalidCount("the end of the blocks to key", last, f"{first}…{len(row)}")
        if last > len(request.block_hashes):
            raise InvalidCount("the end of the blocks to key", last, f"at most {len(request.block_hashes)}")
        assert self.enable_caching, "nothing is keyed without prefix caching"
        unit = _unit(group_id, block_size)
        setdefault = self.index[group_id].setdefault
        repeated: list[KVCacheBlock] = []
        for block, key in zip(row[first:last], request.block_hashes[first:last], strict=True):
            assert block.block_hash is None, "a block is keyed once"
            block.block_hash = key
            block.unit = unit
            if setdefault(key, block) is not block:
                repeated.append(block)
        if repeated:
            self._add_copies(repeated)
        if self.events is not None:
            self._report_stored(self.events, request, row, first, last, block_size, group_id)

    def _add_copies(self, blocks: Iterable[KVCacheBlock]) -> None:
        """File blocks whose key has an older block already."""
        for block in blocks:
            assert block.block_hash is not None, "a copy has a key"
            copies = self.copies[block.group_id].setdefault(block.block_hash, OrderedDict())
            copies[block.block_id] = block

    def _report_stored(
        self,
        events: EventQueue,
        request: Request,
        row: BlockRun,
        first: int,
        last: int,
        block_size: int,
        group_id: int,
    ) -> None:
        """One event for each run of keys that became hittable, copies left out."""
        index, keys = self.index[group_id], request.block_hashes
        start = first
        for end in range(first, last + 1):
            if end < last and index[keys[end]] is row[end]:
                continue
            if end > start:
                tokens = request.tokens[
                    arithmetic.block_tokens(start, block_size) : arithmetic.block_tokens(end, block_size)
                ]
                parent = keys[start - 1] if start > 0 else None
                stored = BlockStored(tuple(keys[start:end]), parent, tokens, block_size, group_id)
                events.events.append(stored)
            start = end + 1

    def evict_blocks(self, block_ids: Iterable[int]) -> int:
        """Remove the keys of blocks, not their content; how many had one (REQ-3.10).

        Raises UnknownBlock or NullBlockMisuse.
        """
        ids = list(dict.fromkeys(block_ids))
        for block_id in ids:
            if not NULL_BLOCK <= block_id <= self.num_usable:
                raise UnknownBlock(block_id, self.num_usable)
        if NULL_BLOCK in ids:
            raise NullBlockMisuse("evicted")
        keyed = [block for block in map(self.blocks.__getitem__, ids) if block.block_hash is not None]
        self.remove_keys(keyed)
        return len(keyed)

    def remove_keys(self, blocks: BlockRun) -> None:
        """Remove the keys of the blocks that have one, in order.

        A key that still has another block stays hittable.
        """
        all_index, all_copies, events = self.index, self.copies, self.events
        for block in blocks:
            key = block.block_hash
            if key is None:
                continue
            group_id = block.unit.group_id
            copies = all_copies[group_id]
            if copies and key in copies:
                self._remove_copy(key, block)
            else:
                owner = all_index[group_id].pop(key, None)
                assert owner is block, "the index agrees with the block"
                if events is not None:
                    events.events.append(BlockRemoved(key, group_id))
            block.block_hash = None
            block.unit = NO_UNIT

    def _remove_copy(self, key: bytes, block: KVCacheBlock) -> None:
        """Take out one of several blocks of a key. If it was the oldest, the next one is looked up."""
        index, copies = self.index[block.group_id], self.copies[block.group_id][key]
        if index[key] is block:
            _, index[key] = copies.popitem(last=False)
        else:
            del copies[block.block_id]
        if not copies:
            del self.copies[block.group_id][key]

    def reset_prefix_cache(self) -> bool:
        """Remove every key; False, and no change, while anything is held (REQ-3.10)."""
        if self.free_queue.num_free_blocks < self.num_usable:
            return False
        for index, copies in zip(self.index, self.copies, strict=True):
            keyed = [*index.values(), *(block for younger in copies.values() for block in younger.values())]
            for block in keyed:
                block.block_hash = None
                block.unit = NO_UNIT
            index.clear()
            copies.clear()
        if self.events is not None:
            self.events.events.append(AllBlocksCleared())
        return True


@cache
def _unit(group_id: int, num_tokens: int) -> KeyUnit:
    """The one that the keys of a group and a length share."""
    return KeyUnit(group_id, num_tokens)


def _first_repeated(blocks: BlockRun) -> KVCacheBlock:
    """The first block that occurs a second time."""
    seen: set[KVCacheBlock] = set()
    for block in blocks:
        if block in seen:
            return block
        seen.add(block)
    raise AssertionError("some block occurs twice")
