"""The manager: the reference timeline, steps, promises, and misuse that changes nothing."""

import pytest

from kvproof.impl.block import KVCacheBlocks
from kvproof.impl.errors import (
    AlreadyAllocated,
    HeldPromise,
    InvalidCount,
    StaleHit,
    StepOrder,
    UnknownRequest,
)
from kvproof.impl.events import AllBlocksCleared, BlockRemoved, BlockStored
from kvproof.impl.manager import KVCacheManager
from kvproof.impl.metrics import PrefixCacheStats
from kvproof.impl.request import Request
from kvproof.spec.vocabulary import CacheConfig, ConfigError


class Engine:
    """A manager and the least that an engine around it does."""

    def __init__(self, **config):
        config = {"blocks": 10, "block_size": 4, "max_len": 64, "depth": 4} | config
        self.manager = KVCacheManager(CacheConfig(**config))
        self.pool = self.manager.block_pool
        self.step = 0
        self.retired = 0
        self.events = []

    def request(self, name, tokens, **options):
        return Request(name, tokens, hasher=self.manager.hasher, **{"max_tokens": 64} | options)

    def admit(self, request, n=64, lookahead=0):
        hits, _ = self.manager.get_computed_blocks(request)
        return self.manager.allocate_slots(request, n, hits, lookahead)

    def dispatch(self, *requests):
        self.step += 1
        self.manager.mark_dispatched(self.step, requests)

    def retire(self, *outputs):
        for request, token in outputs:
            request.append_tokens([token])
        self.retired += 1
        self.manager.retire_step(self.retired)

    def run(self, request, n=64):
        """A finished life: admitted, computed in one step, freed."""
        assert self.admit(request, n) is not None
        self.dispatch(request)
        self.retire()
        self.manager.free(request)

    def queue(self):
        return self.pool.free_queue.to_list()

    def row(self, name):
        return self.manager.get_block_ids(name)[0]

    def keyed(self):
        """Blocks under each key, by first appearance."""
        return [ids for _, _, ids in self.pool.index_entries()]

    def hittable(self):
        """The keys, after checking that the events tell the same."""
        self.events += self.manager.take_events()
        keys: list[bytes] = []
        for event in self.events:
            match event:
                case BlockStored():
                    keys += event.keys
                case BlockRemoved():
                    keys.remove(event.key)
                case AllBlocksCleared():
                    keys.clear()
        assert sorted(keys) == sorted(key for key, _, _ in self.pool.index_entries())
        return keys

    def state(self):
        """Everything that the manager, its parts and its living requests consist of."""
        manager = self.manager
        group = manager.coordinator.managers[0]
        lives = manager.lives.values()
        queue = manager.event_queue
        return (
            [(b.block_id, b.ref_cnt, b.block_hash, b.num_tokens, b.prev_free is b) for b in self.pool.blocks],
            (self.queue(), self.pool.get_num_free_blocks(), list(self.pool.index_entries())),
            {name: [b.block_id for b in row] for name, row in group.req_to_blocks.items()},
            dict(group.num_cached_block),
            [
                (life.request.request_id, life.fence, life.num_undispatched_tokens, life.ended)
                for life in lives
            ],
            [(r.num_computed_tokens, r.num_pending_tokens) for r in (life.request for life in lives)],
            (list(manager.steps.steps), list(manager.steps.deferred), manager.steps.last_dispatched),
            (manager.metrics.total, list(queue.events) if queue is not None else None),
        )


@pytest.fixture
def engine():
    return Engine()


# --- the golden case of the requirements ------------------------------------------------


def test_reference_timeline(engine):
    letters = list(range(100, 115))
    r0 = engine.request("R0", letters)
    assert engine.manager.get_computed_blocks(r0)[1] == 0
    assert engine.admit(r0).get_block_ids() == ([1, 2, 3, 4],)
    assert (engine.queue(), engine.keyed()) == ([5, 6, 7, 8, 9, 10], [[1], [2], [3]])
    engine.dispatch(r0)
    engine.retire((r0, 115))
    assert engine.manager.allocate_slots(r0, 1).get_block_ids() == ([],)
    assert engine.keyed() == [[1], [2], [3], [4]]
    engine.dispatch(r0)
    engine.retire((r0, 116))
    assert engine.manager.allocate_slots(r0, 1).get_block_ids() == ([5],)
    engine.dispatch(r0)
    engine.retire((r0, 117))
    assert (engine.row("R0"), engine.queue()) == ([1, 2, 3, 4, 5], [6, 7, 8, 9, 10])
    assert engine.manager.usage == pytest.approx(0.5)

    engine.manager.free(r0)
    assert engine.queue() == [5, 6, 7, 8, 9, 10, 4, 3, 2, 1]
    assert engine.keyed() == [[1], [2], [3], [4]]
    assert engine.manager.usage == 0

    r1 = engine.request("R1", [*letters[:12], 1, 2, 3])
    hits, tokens = engine.manager.get_computed_blocks(r1)
    assert (hits.get_block_ids(), tokens) == (([1, 2, 3],), 12)
    assert engine.manager.allocate_slots(r1, 3, hits).get_block_ids() == ([5],)
    assert (engine.row("R1"), engine.queue()) == ([1, 2, 3, 5], [6, 7, 8, 9, 10, 4])
    assert engine.keyed() == [[1], [2], [3], [4]]

    before = engine.state()
    assert engine.admit(engine.request("R2", range(200, 228))) is None
    assert engine.state() == before

    r3 = engine.request("R3", range(300, 323))
    assert engine.admit(r3).get_block_ids() == ([6, 7, 8, 9, 10, 4],)
    assert engine.queue() == []
    assert engine.keyed() == [[1], [2], [3], [6], [7], [8], [9], [10]]
    assert [block.ref_cnt for block in engine.pool.blocks] == [0] + [1] * 10
    assert engine.manager.metrics.total == PrefixCacheStats(3, 15 + 15 + 23, 12)
    engine.hittable()


# --- hits and demand --------------------------------------------------------------------


def test_evictable_hits_count_in_the_demand():
    engine = Engine(blocks=3)
    engine.run(engine.request("a", range(8)))
    before = engine.state()
    b = engine.request("b", range(16))
    hits, tokens = engine.manager.get_computed_blocks(b)
    assert tokens == 8
    assert engine.manager.allocate_slots(b, 8, hits) is None
    assert engine.state() == before
    assert engine.manager.allocate_slots(b, 4, hits) is not None
    assert engine.row("b") == [1, 2, 3]


def test_the_last_token_is_computed_again(engine):
    engine.run(engine.request("a", range(16)))
    assert engine.manager.get_computed_blocks(engine.request("b", range(16)))[1] == 12
    assert engine.manager.get_computed_blocks(engine.request("c", range(17)))[1] == 16


def test_a_look_up_has_no_effect(engine):
    engine.run(engine.request("a", range(16)))
    before = engine.state()
    engine.manager.get_computed_blocks(engine.request("b", range(16)))
    assert engine.state() == before


def test_who_opts_out_publishes_but_does_not_read(engine):
    engine.run(engine.request("a", range(8), read_cache=False))
    b = engine.request("b", range(8), read_cache=False)
    assert engine.manager.get_computed_blocks(b) == (engine.manager.empty_blocks, 0)
    assert engine.manager.metrics.total == PrefixCacheStats()
    assert engine.manager.get_computed_blocks(engine.request("c", range(8)))[1] == 4


def test_without_prefix_caching_nothing_is_keyed_or_hashed():
    engine = Engine(prefix_caching=False, events=False)
    a = engine.request("a", range(9))
    engine.run(a)
    assert a.block_hashes == [] and engine.keyed() == []
    assert engine.manager.get_computed_blocks(a) == (engine.manager.empty_blocks, 0)
    assert engine.manager.metrics.total == PrefixCacheStats() and engine.manager.take_events() == []
    assert engine.queue() == [3, 2, 1, *range(4, 11)]


def test_hits_in_the_same_step(engine):
    a, b = engine.request("a", range(9)), engine.request("b", range(9))
    engine.admit(a)
    engine.admit(b)
    assert (engine.row("a"), engine.row("b")) == ([1, 2, 3], [1, 2, 4])
    engine.dispatch(a, b)
    engine.retire((a, 1), (b, 2))
    engine.manager.free(a)
    engine.manager.free(b)
    assert engine.queue() == [4, 3, *range(5, 11), 2, 1]


def test_duplicates_coexist_and_events_tell_of_the_first_and_last(engine):
    a, b = engine.request("a", range(8)), engine.request("b", range(8))
    engine.admit(a, 6)
    engine.admit(b, 2)
    for request in (a, b):
        engine.dispatch(request)
    for request in (a, b):
        engine.manager.allocate_slots(request, 2)
        engine.dispatch(request)
    assert engine.keyed() == [[1], [2, 3]]
    keys = engine.hittable()
    engine.manager.evict_blocks([2])
    assert (engine.keyed(), engine.hittable()) == ([[1], [3]], keys)
    engine.manager.evict_blocks([3])
    assert engine.hittable() == keys[:1]


def test_an_evicted_block_of_a_living_request_is_not_keyed_again(engine):
    a = engine.request("a", range(8))
    engine.admit(a)
    assert engine.manager.evict_blocks(engine.row("a")) == 2
    engine.dispatch(a)
    engine.retire((a, 8))
    engine.manager.cache_blocks(a, 8)
    assert engine.keyed() == []
    assert engine.manager.evict_blocks(engine.row("a")) == 0


def test_few_bits_may_collide_but_a_row_holds_a_block_once():
    engine = Engine(hash="weak", blocks=30, max_len=128)
    engine.run(engine.request("a", range(80), max_tokens=128))
    b = engine.request("b", range(80), max_tokens=128)
    engine.admit(b)
    assert len(set(engine.row("b"))) == len(engine.row("b")) == 20
    engine.manager.free(b)
    engine.hittable()


# --- growing ----------------------------------------------------------------------------


def test_only_committed_tokens_are_published(engine):
    a = engine.request("a", range(7))
    engine.admit(a, 7, lookahead=9)
    assert (engine.row("a"), engine.keyed()) == ([1, 2, 3, 4], [[1]])
    engine.dispatch(a)
    assert a.num_pending_tokens == 1
    engine.manager.allocate_slots(a, 1)
    assert (a.num_computed_tokens, engine.keyed()) == (8, [[1]])
    engine.dispatch(a)
    engine.retire((a, 7))
    assert engine.keyed() == [[1], [2]]


def test_slots_end_at_max_tokens(engine):
    a = engine.request("a", range(4), max_tokens=5)
    engine.admit(a, 64, lookahead=64)
    assert engine.row("a") == [1, 2]
    engine.dispatch(a)
    engine.retire((a, 9))
    engine.manager.allocate_slots(a, 64)
    engine.dispatch(a)
    assert (a.num_computed_tokens, a.num_pending_tokens) == (5, 0)


def test_a_grant_of_nothing_gives_slots_for_drafts(engine):
    a = engine.request("a", range(4))
    engine.admit(a)
    engine.dispatch(a)
    engine.retire()
    assert engine.manager.allocate_slots(a, 0, None, 5).get_block_ids() == ([2, 3],)
    assert a.num_computed_tokens == 4


def test_a_step_inside_the_prompt_samples_nothing(engine):
    a = engine.request("a", range(8))
    engine.admit(a, 4)
    engine.dispatch(a)
    assert a.num_pending_tokens == 0
    engine.manager.allocate_slots(a, 4)
    engine.dispatch(a)
    assert a.num_pending_tokens == 1


# --- ending -----------------------------------------------------------------------------


def test_release_waits_for_the_fence_in_order_of_ending(engine):
    a, b, c = (engine.request(name, range(i, i + 5)) for i, name in ((0, "a"), (10, "b"), (20, "c")))
    for request in (a, b, c):
        engine.admit(request)
    engine.dispatch(a, b)
    engine.dispatch(a)
    engine.manager.free(c)
    engine.manager.free(b)
    engine.manager.free(a)
    assert engine.queue() == [6, 5, 7, 8, 9, 10]
    assert not engine.manager.reset_prefix_cache()
    assert [engine.pool.blocks[i].ref_cnt for i in (1, 2, 3, 4)] == [1, 1, 1, 1]
    engine.retire()
    assert engine.queue() == [4, 6, 5, 7, 8, 9, 10, 3]
    engine.retire()
    assert engine.queue() == [2, 4, 6, 5, 7, 8, 9, 10, 3, 1]
    assert engine.manager.reset_prefix_cache()


def test_a_batch_of_one_fence_is_released_in_order_of_ending(engine):
    a, b = engine.request("a", range(4)), engine.request("b", range(10, 14))
    engine.admit(a)
    engine.admit(b)
    engine.dispatch(a, b)
    engine.manager.free(b)
    engine.manager.free(a)
    engine.retire()
    assert engine.queue()[-2:] == [2, 1]
    with pytest.raises(StepOrder):
        engine.retire()


def test_an_id_lives_again_while_its_old_step_is_in_flight(engine):
    a = engine.request("a", range(7))
    engine.admit(a)
    engine.dispatch(a)
    engine.manager.preempt(a)
    assert (a.num_computed_tokens, a.num_pending_tokens) == (0, 0)
    engine.admit(a)
    assert engine.row("a") == [1, 3]
    engine.retire()
    assert (engine.row("a"), engine.pool.blocks[1].ref_cnt, engine.queue()[0]) == ([1, 3], 1, 2)
    assert engine.manager.metrics.total == PrefixCacheStats(2, 14, 4, 1)


def test_a_retired_step_publishes_nothing_for_an_ended_life(engine):
    a = engine.request("a", range(3))
    engine.admit(a)
    engine.dispatch(a)
    engine.manager.allocate_slots(a, 1)
    engine.dispatch(a)
    engine.manager.free(a)
    engine.retire()
    engine.retire()
    assert engine.keyed() == []


def test_undispatched_keys_are_withdrawn(engine):
    a = engine.request("a", range(12))
    engine.admit(a, 6)
    engine.dispatch(a)
    engine.manager.allocate_slots(a, 6)
    assert engine.keyed() == [[1], [2], [3]]
    engine.manager.free(a)
    assert engine.keyed() == [[1]]
    engine.hittable()
    engine.retire()
    assert engine.queue() == [3, 2, *range(4, 11), 1]


def test_a_withdrawn_copy_leaves_the_others_hittable(engine):
    a, b = engine.request("a", range(8)), engine.request("b", range(8))
    engine.admit(a, 2)
    engine.admit(b, 2)
    engine.dispatch(a, b)
    engine.manager.allocate_slots(a, 6)
    engine.manager.allocate_slots(b, 6)
    assert engine.keyed() == [[1, 2], [3, 4]]
    engine.manager.free(a)
    assert engine.keyed() == [[2], [4]]
    engine.hittable()


def test_a_promise_that_others_hit_holds_its_life(engine):
    a, b = engine.request("a", range(9)), engine.request("b", range(9))
    engine.admit(a)
    engine.admit(b)
    for end in (engine.manager.free, engine.manager.preempt):
        before = engine.state()
        with pytest.raises(HeldPromise):
            end(a)
        assert engine.state() == before
    engine.manager.preempt(b)
    engine.manager.free(a)
    assert engine.keyed() == []
    assert engine.manager.usage == 0


def test_a_promise_holds_even_when_its_key_was_evicted(engine):
    a, b = engine.request("a", range(9)), engine.request("b", range(9))
    engine.admit(a)
    engine.admit(b)
    engine.manager.evict_blocks([1, 2])
    with pytest.raises(HeldPromise):
        engine.manager.free(a)


# --- counters and construction ----------------------------------------------------------


def test_statistics_count_admissions_and_are_taken_by_interval(engine):
    engine.run(engine.request("a", range(8)))
    assert engine.manager.make_prefix_cache_stats() == PrefixCacheStats(1, 8, 0)
    engine.manager.get_computed_blocks(engine.request("b", range(8)))
    assert engine.manager.make_prefix_cache_stats() == PrefixCacheStats()
    engine.run(engine.request("b", range(8)))
    assert engine.manager.make_prefix_cache_stats() == PrefixCacheStats(1, 8, 4)
    assert engine.manager.metrics.total == PrefixCacheStats(2, 16, 4)


def test_a_manager_needs_a_valid_configuration():
    with pytest.raises(ConfigError):
        KVCacheManager(CacheConfig(blocks=0, block_size=4))


# --- misuse -----------------------------------------------------------------------------


def blocks_as_hit(e, *block_ids):
    return KVCacheBlocks(([e.pool.blocks[block_id] for block_id in block_ids],))


MISUSE = {
    "look-up of a living request": (AlreadyAllocated, lambda m, e: m.get_computed_blocks(e.living)),
    "hits for a living request": (
        AlreadyAllocated,
        lambda m, e: m.allocate_slots(e.living, 1, blocks_as_hit(e, 2)),
    ),
    "an id that lives already": (AlreadyAllocated, lambda m, e: m.allocate_slots(e.namesake, 1)),
    "negative tokens": (InvalidCount, lambda m, e: m.allocate_slots(e.waiting, -1)),
    "negative lookahead": (InvalidCount, lambda m, e: m.allocate_slots(e.waiting, 1, None, -1)),
    "a foreign hit": (StaleHit, lambda m, e: m.allocate_slots(e.waiting, 1, blocks_as_hit(e, 2))),
    "a null hit": (StaleHit, lambda m, e: m.allocate_slots(e.waiting, 1, blocks_as_hit(e, 0))),
    "a hit of all tokens": (StaleHit, lambda m, e: m.allocate_slots(e.short, 1, blocks_as_hit(e, 1, 2))),
    "a hit of who opted out": (StaleHit, lambda m, e: m.allocate_slots(e.scored, 1, blocks_as_hit(e, 1))),
    "free of an unknown request": (UnknownRequest, lambda m, e: m.free(e.waiting)),
    "free of a namesake": (UnknownRequest, lambda m, e: m.free(e.namesake)),
    "preemption of an unknown request": (UnknownRequest, lambda m, e: m.preempt(e.waiting)),
    "row of an unknown request": (UnknownRequest, lambda m, e: m.get_block_ids("nobody")),
    "keys of an unknown request": (UnknownRequest, lambda m, e: m.cache_blocks(e.waiting, 0)),
    "skipping of an unknown request": (UnknownRequest, lambda m, e: m.remove_skipped_blocks(e.waiting, 0)),
    "keys beyond progress": (InvalidCount, lambda m, e: m.cache_blocks(e.living, 11)),
    "skipping beyond progress": (InvalidCount, lambda m, e: m.remove_skipped_blocks(e.living, 11)),
    "dispatch of an unknown request": (
        UnknownRequest,
        lambda m, e: m.mark_dispatched(9, [e.living, e.waiting]),
    ),
    "dispatch of an old step": (StepOrder, lambda m, e: m.mark_dispatched(e.step, [e.living])),
    "dispatch of a request twice": (StepOrder, lambda m, e: m.mark_dispatched(9, [e.living, e.living])),
    "retirement out of order": (StepOrder, lambda m, e: m.retire_step(e.step + 1)),
}


@pytest.fixture
def busy(engine):
    """A finished request, a living one with a step in flight and a grant, and some that wait."""
    engine.run(engine.request("finished", range(12)))
    engine.living = engine.request("living", range(50, 60))
    engine.admit(engine.living, 5)
    engine.dispatch(engine.living)
    engine.manager.allocate_slots(engine.living, 5)
    engine.namesake = engine.request("living", range(50, 60))
    engine.waiting = engine.request("waiting", range(12))
    engine.short = engine.request("short", range(8))
    engine.scored = engine.request("scored", range(8), read_cache=False)
    return engine


@pytest.mark.parametrize(("error", "act"), MISUSE.values(), ids=MISUSE)
def test_misuse_raises_and_changes_nothing(busy, error, act):
    before = busy.state()
    with pytest.raises(error) as raised:
        act(busy.manager, busy)
    assert busy.state() == before
    assert str(raised.value).endswith(".")


def test_a_hit_that_lost_its_key_is_stale(busy):
    hits, _ = busy.manager.get_computed_blocks(busy.waiting)
    busy.manager.evict_blocks([2])
    before = busy.state()
    with pytest.raises(StaleHit):
        busy.manager.allocate_slots(busy.waiting, 1, hits)
    assert busy.state() == before


def test_skipping_does_nothing_for_full_attention(busy):
    before = busy.state()
    busy.manager.remove_skipped_blocks(busy.living, 5)
    assert busy.state() == before
