"""The scheduler's only door to the KV cache (REQ-1.1)."""

from collections.abc import Iterable, Sequence

from kvproof.impl import arithmetic
from kvproof.impl.block import GroupBlocks, KVCacheBlocks
from kvproof.impl.block_pool import BlockPool
from kvproof.impl.coordinator import coordinator_of
from kvproof.impl.errors import AlreadyAllocated, InvalidCount, StaleHit, UnknownRequest
from kvproof.impl.events import EventQueue, KVCacheEvent
from kvproof.impl.hashing import BlockHasher
from kvproof.impl.life import Life, StepsInFlight
from kvproof.impl.metrics import PrefixCacheMetrics, PrefixCacheStats
from kvproof.impl.request import Request
from kvproof.spec.vocabulary import CacheConfig


class KVCacheManager:
    """Decides which block holds the K/V of which tokens.

    The engine looks up, allocates, dispatches steps and retires them in order, and ends lives.
    A call that raises a CacheError, and an allocation that is refused, has changed nothing.
    """

    def __init__(self, config: CacheConfig) -> None:
        """Raises ConfigError."""
        self.config = config.validate()
        self.event_queue = EventQueue() if config.events else None
        groups = len(config.groups)
        self.block_pool = BlockPool(config.blocks, config.prefix_caching, groups, self.event_queue)
        self.coordinator = coordinator_of(config, self.block_pool)
        self.empty_blocks = KVCacheBlocks(self.coordinator.no_blocks)
        self.hasher = BlockHasher(config.hash, config.block_size) if config.prefix_caching else None
        """For the requests of this manager; none without prefix caching."""
        self.metrics = PrefixCacheMetrics()
        self.lives: dict[str, Life] = {}
        self.steps = StepsInFlight()

    # --- beginning and growing a life ---------------------------------------------------

    def get_computed_blocks(self, request: Request) -> tuple[KVCacheBlocks, int]:
        """The longest hit of a waiting request and its tokens, at most `num_tokens − 1`. No effect.

        Raises AlreadyAllocated.
        """
        if request.request_id in self.lives:
            raise AlreadyAllocated(request.request_id)
        if not self._consults_cache(request):
            return self.empty_blocks, 0
        hits = self.coordinator.find_longest_cache_hit(request)
        if not hits[0]:
            return self.empty_blocks, 0
        return KVCacheBlocks(hits), arithmetic.block_tokens(len(hits[0]), self.config.block_size)

    def allocate_slots(
        self,
        request: Request,
        num_new_tokens: int,
        computed_blocks: KVCacheBlocks | None = None,
        num_lookahead_tokens: int = 0,
    ) -> KVCacheBlocks | None:
        """Grant up to `num_new_tokens` tokens beyond progress or hit, with slots for drafts behind them.

        The first allocation begins a life, with the hit that was just looked up. The answer are
        the fresh blocks; None: they don't fit, and nothing changed (REQ-2.4). A grant of no
        token at all is legal and gives slots for drafts only.

        Raises InvalidCount, AlreadyAllocated or StaleHit.
        """
        if num_new_tokens < 0 or num_lookahead_tokens < 0:
            raise InvalidCount("a number of tokens", min(num_new_tokens, num_lookahead_tokens), "at least 0")
        request_id = request.request_id
        hits = computed_blocks.blocks if computed_blocks is not None else self.empty_blocks.blocks
        life = self.lives.get(request_id)
        if life is None:
            computed = self._checked_hit(request, hits)
        elif life.request is not request or hits[0]:
            raise AlreadyAllocated(request_id)
        else:
            computed = request.num_computed_tokens
        expected = request.num_tokens + request.num_pending_tokens
        scheduled = arithmetic.scheduled_tokens(computed, num_new_tokens, expected)
        slots = arithmetic.slots_end(scheduled, num_lookahead_tokens, request.max_tokens)
        demand = self.coordinator.get_num_blocks_to_allocate(request_id, slots, hits)
        if not arithmetic.fits(demand, self.block_pool.get_num_free_blocks()):
            return None
        if life is None:
            life = self._begin_life(request, hits, computed)
        new_blocks = self.empty_blocks
        if demand.fresh:
            new_blocks = KVCacheBlocks(self.coordinator.allocate_new_blocks(request_id, slots))
        life.num_undispatched_tokens += scheduled - computed
        request.num_computed_tokens = scheduled
        self.coordinator.cache_blocks(request, scheduled)
        return new_blocks

    def _consults_cache(self, request: Request) -> bool:
        """Whether a request may be served from the prefix cache (REQ-3.9)."""
        return self.config.prefix_caching and request.read_cache

    def _checked_hit(self, request: Request, hits: GroupBlocks) -> int:
        """The tokens of a hit whose blocks still carry the request's keys (REQ-2.4)."""
        assert request.num_computed_tokens == 0, "a request without a life has no progress"
        count = len(hits[0])
        if count == 0:
            return 0
        most = arithmetic.max_hit_blocks(request.num_tokens, self.config.block_size)
        if not self._consults_cache(request) or count > most:
            raise StaleHit(request.request_id)
        for run in hits:
            if [block.block_hash for block in run] != request.block_hashes[:count]:
                raise StaleHit(request.request_id)
        return arithmetic.block_tokens(count, self.config.block_size)

    def _begin_life(self, request: Request, hits: GroupBlocks, computed: int) -> Life:
        """Take the hits and count the admission."""
        self.coordinator.allocate_new_computed_blocks(request.request_id, hits)
        if self._consults_cache(request):
            self.metrics.count_admission(request.num_tokens, computed)
        request.num_computed_tokens = computed
        life = self.lives[request.request_id] = Life(request)
        return life

    # --- steps --------------------------------------------------------------------------

    def mark_dispatched(self, step: int, requests: Iterable[Request]) -> None:
        """A step goes to the device with the whole grants of these requests: it promises their content.

        Raises UnknownRequest or StepOrder.
        """
        self.steps.dispatch(step, [self._life_of(request) for request in requests])

    def retire_step(self, step: int) -> None:
        """The oldest step has executed, and its outputs were appended to the living requests.

        Blocks that became full of known tokens are keyed, then ended lives whose fence this was
        are released, in order of ending. Raises StepOrder.
        """
        for life in self.steps.retire(step):
            self.coordinator.cache_blocks(life.request, life.request.num_computed_tokens)
        for blocks in self.steps.take_released():
            self._release(blocks)

    # --- ending a life ------------------------------------------------------------------

    def free(self, request: Request) -> None:
        """End a life. Its undispatched keys are withdrawn; its blocks wait for its fence (REQ-2.10, 4.8).

        Raises UnknownRequest, or HeldPromise while other lives rest on an undispatched write.
        """
        life = self._life_of(request)
        self.coordinator.withdraw_beyond(request.request_id, life.num_dispatched_tokens)
        del self.lives[request.request_id]
        life.ended = True
        request.num_computed_tokens = 0
        request.num_pending_tokens = 0
        blocks = self.coordinator.free(request.request_id)
        if self.steps.contains(life):
            self.steps.defer(life, blocks)
        else:
            self._release(blocks)

    def preempt(self, request: Request) -> None:
        """End a life for want of space; the request may be admitted again. Raises as `free` does."""
        self.free(request)
        self.metrics.count_preemption()

    def _release(self, blocks: GroupBlocks) -> None:
        """Return a batch, group by group (REQ-4.4)."""
        for run in blocks:
            self.block_pool.free_blocks(run)

    def _life_of(self, request: Request) -> Life:
        life = self.lives.get(request.request_id)
        if life is None or life.request is not request:
            raise UnknownRequest(request.request_id)
        return life

    # --- rows and keys ------------------------------------------------------------------

    def cache_blocks(self, request: Request, num_tokens: int) -> None:
        """Key the full blocks below a boundary that is scheduled. Raises UnknownRequest or InvalidCount."""
        self._life_of(request)
        if not 0 <= num_tokens <= request.num_computed_tokens:
            raise InvalidCount("the boundary to key", num_tokens, f"0…{request.num_computed_tokens}")
        self.coordinator.cache_blocks(request, num_tokens)

    def remove_skipped_blocks(self, request: Request, num_processed_tokens: int) -> None:
        """Return what no query from a processed boundary on can read (REQ-2.5).

        Raises UnknownRequest or InvalidCount.
        """
        self._life_of(request)
        if not 0 <= num_processed_tokens <= request.num_computed_tokens:
            raise InvalidCount("the boundary", num_processed_tokens, f"0…{request.num_computed_tokens}")
        self.coordinator.remove_skipped_blocks(request.request_id, num_processed_tokens)

    def get_block_ids(self, request_id: str) -> tuple[list[int], ...]:
        """The row of a living request in every group. Raises UnknownRequest."""
        if request_id not in self.lives:
            raise UnknownRequest(request_id)
        return KVCacheBlocks(self.coordinator.get_blocks(request_id)).get_block_ids()

    def evict_blocks(self, block_ids: Sequence[int]) -> int:
        """Remove all keys of these blocks, not their content; how many keys went (REQ-3.10).

        Raises UnknownBlock or NullBlockMisuse.
        """
        return self.block_pool.evict_blocks(block_ids)

    def reset_prefix_cache(self) -> bool:
        """Remove every key; False, and no change, while anything is held (REQ-3.10)."""
        return self.block_pool.reset_prefix_cache()

    # --- observing ----------------------------------------------------------------------

    @property
    def usage(self) -> float:
        """Share of the usable blocks that somebody holds, 0…1 (REQ-4.6)."""
        return self.block_pool.usage

    def take_events(self) -> list[KVCacheEvent]:
        """Events since the last call, the oldest first; none where they are off."""
        return self.event_queue.take() if self.event_queue is not None else []

    def make_prefix_cache_stats(self) -> PrefixCacheStats:
        """What was counted since the last call. `metrics.total` has everything."""
        return self.metrics.take()
