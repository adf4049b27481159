"""Correct variants of the reference, one for each freedom that it does not take itself.

Each declares its freedom and takes it as often as it can, so a finding on one of them is a
false alarm. They are seen at level 2; the harness executes their rows.
"""

from msgspec.structs import replace

from kvproof.fuzz.adapters.port import Adapter
from kvproof.fuzz.adapters.reference import ReferenceAdapter
from kvproof.fuzz.targets import TargetError
from kvproof.impl.block import BlockRun, KVCacheBlock
from kvproof.impl.coordinator import UnitaryKVCacheCoordinator
from kvproof.impl.free_queue import FreeBlockQueue
from kvproof.impl.life import Life, StepsInFlight
from kvproof.impl.request import Request
from kvproof.spec import operations as op
from kvproof.spec.vocabulary import FEATURES, CacheConfig, PolicyChoices


class Variant(ReferenceAdapter):
    """The reference at level 2 with `freedom` declared."""

    def __init__(self, **freedom: object) -> None:
        super().__init__(level=2)
        self.capabilities = replace(self.capabilities, **freedom)


# --- everything released goes to the back -------------------------------------------------


class _BackQueue(FreeBlockQueue):
    """Released blocks wait behind all others, with or without a key."""

    def put_back(self, blocks: BlockRun) -> None:
        self.append_n(blocks)


class AllBack(Variant):
    """Releases to the back of the queue, as vLLM did for years; the policy is compared with that choice."""

    def __init__(self) -> None:
        super().__init__(choices=PolicyChoices(unkeyed="back", uncached="back"))

    def configure(self, config: CacheConfig, seed: int) -> None:
        super().configure(config, seed)
        pool = self.manager.block_pool
        pool.free_queue.popleft_n(pool.num_usable)
        pool.free_queue = _BackQueue(pool.blocks[1:])


# --- blocks are reused at once, as the stream orders it ------------------------------------


class _NoFence(StepsInFlight):
    """No life is waited for."""

    def contains(self, life: Life) -> bool:
        return False


class StreamOrdered(Variant):
    """Releases a life's blocks at once, whatever is in flight."""

    def __init__(self) -> None:
        super().__init__(stream_ordered=True)

    def configure(self, config: CacheConfig, seed: int) -> None:
        super().configure(config, seed)
        self.manager.steps = _NoFence()


# --- keys appear when the content is written ------------------------------------------------


class _Settled(UnitaryKVCacheCoordinator):
    """Keys nothing beyond what steps that have retired computed."""

    processed: dict[str, int]

    def cache_blocks(self, request: Request, num_tokens: int) -> None:
        super().cache_blocks(request, min(num_tokens, self.processed[request.request_id]))


class PublishAtRetire(Variant):
    """Keys a block when the step that fills it retires, so that no hit rests on a promise."""

    def __init__(self) -> None:
        super().__init__(publish="retire", policy=False)

    def configure(self, config: CacheConfig, seed: int) -> None:
        super().configure(config, seed)
        self._processed: dict[str, int] = {}
        self._steps: dict[int, dict[str, int]] = {}
        if config.prefix_caching:
            coordinator = _Settled(config, self.manager.block_pool)
            coordinator.processed = self._processed
            self.manager.coordinator = coordinator

    def admit(self, request: str, n: int, lookahead: int) -> op.Granted | op.Refused:
        # The hit is processed already; how long it is, the allocation will say.
        self._processed[request] = 0
        answer = super().admit(request, n, lookahead)
        if isinstance(answer, op.Granted):
            self._processed[request] = answer.hit
        return answer

    def dispatch(self, operation: op.Dispatch) -> op.Dispatched:
        self._steps[operation.step] = {entry.request: entry.n for entry in operation.entries}
        return super().dispatch(operation)

    def retire(self, operation: op.Retire) -> op.Retired:
        computed = self._steps.pop(operation.step)
        for output in operation.outputs:
            self._processed[output.request] += computed[output.request]
        return super().retire(operation)


# --- of two equal blocks the older one is kept ----------------------------------------------


class Swap(Variant):
    """Replaces a row's block by the oldest one with its key, once every token was dispatched.

    A step in flight may still have the younger one, which is kept until that step has retired.
    """

    def __init__(self) -> None:
        super().__init__(swap=True, policy=False)

    def configure(self, config: CacheConfig, seed: int) -> None:
        super().configure(config, seed)
        self._kept: list[tuple[int, KVCacheBlock]] = []

    def retire(self, operation: op.Retire) -> op.Retired:
        super().retire(operation)
        self.manager.block_pool.free_blocks([block for fence, block in self._kept if fence == operation.step])
        self._kept = [kept for kept in self._kept if kept[0] != operation.step]
        lives = self.manager.lives.items()
        names = [name for name, life in lives if not life.num_undispatched_tokens]
        swapped = {name: self._rows(name) for name in names if self._swap(name)}
        return op.Retired(swapped=swapped or None)

    def _swap(self, name: str) -> bool:
        """Let go of younger duplicates in a request's rows; whether there were any."""
        pool, life, found = self.manager.block_pool, self.manager.lives[name], False
        for group, row in enumerate(self.manager.coordinator.get_blocks(name)):
            assert isinstance(row, list), "the manager's own row"
            for index, block in enumerate(row):
                oldest = self._oldest(block, group)
                if oldest is not block:
                    pool.touch([oldest])
                    row[index] = oldest
                    if self.manager.steps.contains(life):
                        self._kept.append((life.fence, block))
                    else:
                        pool.free_blocks([block])
                    found = True
        return found

    def _oldest(self, block: KVCacheBlock, group: int) -> KVCacheBlock:
        if block.block_hash is None:
            return block
        return self.manager.block_pool.get_cached_block(block.block_hash, group) or block


# --- the last block of a prompt that is cached whole is computed where it is ------------------


class Rewrite(Variant):
    """Computes the last block of a prompt again in the block that has it, which others may hold.

    The manager would take such a block's keys along with a grant that is discarded, so none is.
    """

    def __init__(self) -> None:
        features = tuple(each for each in FEATURES if each != "discards")
        super().__init__(idempotent=True, policy=False, features=features)

    def admit(self, request: str, n: int, lookahead: int) -> op.Granted | op.Refused:
        answer = super().admit(request, n, lookahead)
        if isinstance(answer, op.Refused):
            return answer
        size, known = self._config.block_size, self._requests[request]
        last = known.num_tokens - size
        if known.num_computed_tokens == known.num_tokens and answer.hit == last and known.read_cache:
            self._take_over(request, last // size)
        return op.Granted(self._rows(request), answer.hit)

    def _take_over(self, request: str, index: int) -> None:
        pool = self.manager.block_pool
        for group, row in enumerate(self.manager.coordinator.get_blocks(request)):
            assert isinstance(row, list), "the manager's own row"
            block = row[index]
            shared = block.block_hash and pool.get_cached_block(block.block_hash, group)
            if shared and shared is not block:
                self.manager.evict_blocks([block.block_id])
                pool.touch([shared])
                row[index] = shared
                pool.free_blocks([block])


VARIANTS: dict[str, type[Variant]] = {
    "all-back": AllBack,
    "stream-ordered": StreamOrdered,
    "publish-at-retire": PublishAtRetire,
    "swap": Swap,
    "rewrite": Rewrite,
}
"""The variants by name."""


def target(rest: str) -> Adapter:
    """`variant:NAME`. Raises `TargetError`."""
    if rest not in VARIANTS:
        raise TargetError(f"there is no variant {rest!r}; variants are {', '.join(VARIANTS)}.")
    return VARIANTS[rest]()
