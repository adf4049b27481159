"""The pool: order, keys, duplicates, events; misuse changes nothing."""

import gc

import pytest

from kvproof.impl.block import KVCacheBlocks
from kvproof.impl.block_pool import BlockPool
from kvproof.impl.errors import (
    DoubleFree,
    InvalidCount,
    NotFree,
    NullBlockMisuse,
    OutOfBlocks,
    UnknownBlock,
)
from kvproof.impl.events import AllBlocksCleared, BlockRemoved, BlockStored, EventQueue
from kvproof.impl.hashing import BlockHasher
from kvproof.impl.request import Request

HASHER = BlockHasher("sha256", 4)


def request_of(tokens):
    return Request("r", tokens, hasher=HASHER, max_tokens=1000)


def state_of(pool):
    """Everything that a pool consists of."""
    return (
        [(b.block_id, b.ref_cnt, b.block_hash, b.num_tokens, b.prev_free is b) for b in pool.blocks],
        pool.free_queue.to_list(),
        pool.free_queue.num_free_blocks,
        list(pool.index_entries()),
        list(pool.events.events) if pool.events is not None else None,
    )


@pytest.fixture
def pool():
    return BlockPool(10, True, 1, EventQueue())


def keyed(pool, tokens):
    """A held row whose full blocks are keyed."""
    request = request_of(tokens)
    row = pool.get_new_blocks(-(-request.num_tokens // 4))
    pool.cache_full_blocks(request, row, 0, request.num_tokens // 4, 4, 0)
    return row, request


def hittable_by(events, start=()):
    """The keys that replaying events leaves."""
    keys = list(start)
    for event in events:
        match event:
            case BlockStored():
                assert not set(event.keys) & set(keys)
                assert len(event.tokens) == len(event.keys) * event.block_size
                keys += event.keys
            case BlockRemoved():
                keys.remove(event.key)
            case AllBlocksCleared():
                keys.clear()
    return sorted(keys)


def test_a_new_pool_has_all_blocks_but_the_null_one(pool):
    assert [block.block_id for block in pool.blocks] == list(range(11))
    assert pool.null_block is pool.blocks[0]
    assert pool.free_queue.to_list() == list(range(1, 11))
    assert (pool.get_num_free_blocks(), pool.usage) == (10, 0.0)
    assert gc.isenabled()


def test_release_puts_unkeyed_blocks_in_front_and_keyed_ones_behind(pool):
    row, _ = keyed(pool, range(17))
    pool.free_blocks(row[::-1])
    assert pool.free_queue.to_list() == [5, 6, 7, 8, 9, 10, 4, 3, 2, 1]


def test_several_unkeyed_blocks_keep_the_order_given(pool):
    pool.free_blocks(pool.get_new_blocks(3)[::-1])
    assert pool.free_queue.to_list() == [3, 2, 1, *range(4, 11)]


def test_the_last_holder_frees(pool):
    row, _ = keyed(pool, range(8))
    pool.touch(row)
    pool.free_blocks(row[::-1])
    assert (pool.get_num_free_blocks(), pool.usage) == (8, pytest.approx(0.2))
    pool.free_blocks(row[::-1])
    assert pool.free_queue.to_list()[-2:] == [2, 1]


def test_touch_takes_evictable_blocks_out_of_the_middle(pool):
    row, request = keyed(pool, range(12))
    pool.free_blocks(row[::-1])
    pool.touch(row[1:2])
    assert pool.free_queue.to_list()[-2:] == [3, 1]
    assert pool.get_cached_block(request.block_hashes[1], 0) is row[1]
    assert row[1].ref_cnt == 1


def test_a_popped_block_loses_its_keys_first(pool):
    row, request = keyed(pool, range(40))
    pool.free_blocks(row[::-1])
    (popped,) = pool.get_new_blocks(1)
    assert popped is row[9]
    assert (popped.block_hash, popped.ref_cnt) == (None, 1)
    assert pool.get_cached_block(request.block_hashes[9], 0) is None
    assert pool.get_cached_block(request.block_hashes[8], 0) is row[8]


def test_look_up_takes_the_oldest_copy_and_eviction_promotes_the_next(pool):
    rows = [keyed(pool, range(4))[0][0] for _ in range(4)]
    key = rows[0].block_hash
    assert list(pool.index_entries()) == [(key, 0, [1, 2, 3, 4])]
    pool.evict_blocks([2])
    assert list(pool.index_entries()) == [(key, 0, [1, 3, 4])]
    pool.evict_blocks([1])
    assert pool.get_cached_block(key, 0) is rows[2]
    pool.evict_blocks([4])
    assert pool.copies == ({},)
    assert hittable_by(pool.events.events) == [key]
    pool.evict_blocks([3])
    assert list(pool.index_entries()) == []
    assert [type(event) for event in pool.events.events] == [BlockStored, BlockRemoved]


def test_one_publication_is_one_event_with_its_parent(pool):
    request = request_of(range(16))
    row = pool.get_new_blocks(4)
    pool.cache_full_blocks(request, row, 0, 1, 4, 0)
    pool.cache_full_blocks(request, row, 1, 4, 4, 0)
    first, second = pool.events.take()
    assert first.parent is None and list(first.tokens) == [0, 1, 2, 3]
    assert second.parent == request.block_hashes[0]
    assert second.keys == tuple(request.block_hashes[1:])
    assert list(second.tokens) == list(range(4, 16))


def test_copies_split_an_event(pool):
    row, request = keyed(pool, range(20))
    pool.evict_blocks([row[1].block_id, row[3].block_id, row[4].block_id])
    pool.events.take()
    keyed(pool, range(20))
    stored = pool.events.take()
    keys = request.block_hashes
    assert [event.keys for event in stored] == [(keys[1],), (keys[3], keys[4])]
    assert [event.parent for event in stored] == [keys[0], keys[2]]


def test_replaying_events_gives_the_hittable_keys(pool):
    for tokens in (range(8), range(8), range(16), range(4, 20)):
        pool.free_blocks(keyed(pool, tokens)[0][::-1])
        assert hittable_by(pool.events.events) == sorted(key for key, _, _ in pool.index_entries())
    pool.get_new_blocks(7)
    assert hittable_by(pool.events.events) == sorted(key for key, _, _ in pool.index_entries())


def test_reset_waits_until_nothing_is_held(pool):
    row, _ = keyed(pool, range(8))
    keyed(pool, range(8))
    before = state_of(pool)
    assert not pool.reset_prefix_cache()
    assert state_of(pool) == before
    pool.free_blocks([pool.blocks[4], pool.blocks[3]])
    pool.free_blocks(row[::-1])
    order = pool.free_queue.to_list()
    assert pool.reset_prefix_cache()
    assert list(pool.index_entries()) == [] and pool.copies == ({},)
    assert all(block.block_hash is None for block in pool.blocks)
    assert pool.free_queue.to_list() == order
    assert hittable_by(pool.events.events) == []


def test_eviction_removes_keys_and_nothing_else(pool):
    row, _ = keyed(pool, range(8))
    assert pool.evict_blocks([row[1].block_id, row[1].block_id, 9]) == 1
    assert (row[1].ref_cnt, row[1].block_hash, row[1].num_tokens) == (1, None, 0)
    assert row[0].num_tokens == 4


def test_without_events_nothing_is_recorded():
    pool = BlockPool(4, True, 1)
    pool.free_blocks(keyed(pool, range(8))[0])
    assert pool.events is None
    assert pool.reset_prefix_cache()


MISUSE = {
    "double free": (DoubleFree, lambda pool: pool.free_blocks([pool.blocks[i] for i in (3, 2, 1, 7)])),
    "one block twice in a release": (
        DoubleFree,
        lambda pool: pool.free_blocks([pool.blocks[1], pool.blocks[2], pool.blocks[1]]),
    ),
    "null block released": (
        NullBlockMisuse,
        lambda pool: pool.free_blocks([pool.blocks[1], pool.null_block]),
    ),
    "null block held": (NullBlockMisuse, lambda pool: pool.touch([pool.blocks[5], pool.null_block])),
    "null block evicted": (NullBlockMisuse, lambda pool: pool.evict_blocks([1, 0])),
    "unknown block evicted": (UnknownBlock, lambda pool: pool.evict_blocks([1, 11])),
    "negative block evicted": (UnknownBlock, lambda pool: pool.evict_blocks([1, -1])),
    "one free block held twice": (
        NotFree,
        lambda pool: pool.touch([pool.blocks[1], pool.blocks[6], pool.blocks[5], pool.blocks[6]]),
    ),
    "minus one block": (InvalidCount, lambda pool: pool.get_new_blocks(-1)),
    "too many blocks": (OutOfBlocks, lambda pool: pool.get_new_blocks(8)),
    "keys beyond the row": (
        InvalidCount,
        lambda pool: pool.cache_full_blocks(request_of(range(12)), pool.blocks[4:6], 0, 3, 4, 0),
    ),
    "keys beyond the tokens": (
        InvalidCount,
        lambda pool: pool.cache_full_blocks(request_of(range(5)), pool.blocks[4:6], 0, 2, 4, 0),
    ),
    "keys backwards": (
        InvalidCount,
        lambda pool: pool.cache_full_blocks(request_of(range(12)), pool.blocks[4:7], 2, 1, 4, 0),
    ),
}


@pytest.mark.parametrize(("error", "act"), MISUSE.values(), ids=MISUSE)
def test_misuse_raises_and_changes_nothing(pool, error, act):
    """Blocks 1 and 2 are held twice, 3 once; the others are free."""
    row, _ = keyed(pool, range(9))
    pool.touch(row[:2])
    before = state_of(pool)
    with pytest.raises(error):
        act(pool)
    assert state_of(pool) == before


def test_values_print_what_they_are(pool):
    row, request = keyed(pool, range(4))
    key = request.block_hashes[0].hex()[:8]
    assert repr(row[0]) == f"KVCacheBlock(1, ref_cnt=1, block_hash={key})"
    assert repr(KVCacheBlocks((row, ()))) == "KVCacheBlocks(([1], []))"
    assert repr(request) == "Request('r', computed=0 of 4)"


def test_a_pool_has_blocks():
    with pytest.raises(InvalidCount):
        BlockPool(0, True, 1)
