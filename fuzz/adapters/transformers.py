"""transformers: the paged cache of continuous batching, full attention, on the CPU.

`PagedAttentionCache` with its allocators, and `RequestState`, run as released; a config of
numbers stands for the model, no weights are needed. The scheduler is played here in the
order in which it works: look up and pin, allocate, and under pressure give back whole
sectors and drop the blocks that are only cached. Keys appear after the forward, and a block whose
content is known already is swapped for the known one. Freed blocks are reused at once:
batches run in order on one stream.

A layout says how memory is cut: `sector` has one block a sector, `blocks` several, `layers`
several layers a block. Physical blocks are renumbered from 1; what a sector has beyond
the asked-for pool is taken by a request that stays.
"""

import logging
from functools import cache
from types import SimpleNamespace
from typing import Any, Final

from kvproof.fuzz.adapters.port import Adapter
from kvproof.fuzz.adapters.progress import Progress
from kvproof.fuzz.targets import TargetError, TargetSkipped
from kvproof.fuzz.targets.fetch import fetch
from kvproof.fuzz.targets.load import load, module
from kvproof.spec import operations as op
from kvproof.spec.vocabulary import BlockIds, CacheConfig, Capabilities, GroupRows

VERSION = "5.24.0"

LAYOUTS: Final = {"sector": (1, 64), "blocks": (1, 8), "layers": (3, 4)}
"""Layers and head size. A token takes `4 · layers · head` bytes, a sector a multiple of 128."""

_SURPLUS: Final = "(the rest of the last sector)"


class TransformersAdapter(Adapter):
    """Plays the scheduler around the paged cache."""

    name = "transformers"
    capabilities = Capabilities(
        publish="retire",
        stream_ordered=True,
        swap=True,
        depth=2,
        operations=("lookup", "abort", "preempt"),
        features=("chunks", "ahead", "discards"),
    )

    def __init__(self, version: str = VERSION, layout: str = "sector") -> None:
        self._modules = _modules(version)
        self._layers, self._head = LAYOUTS[layout]

    def configure(self, config: CacheConfig, seed: int) -> None:
        self._config = config
        self._cache = self._modules.new_cache(config, self._layers, self._head)
        (self._allocator,) = self._cache.cache_allocators.values()
        self._number = _numbered(self._cache, self._allocator, self._state(_SURPLUS, [0]), config)
        self._progress: dict[str, Progress] = {}
        self._states: dict[str, Any] = {}
        self._granted: dict[str, dict[str, int]] = {}
        self._steps: dict[int, list[tuple[Any, dict[str, int]]]] = {}

    def _state(self, request: str, tokens: list[int]) -> Any:
        return self._modules.RequestState(request, list(tokens), max_new_tokens=None)

    def submit(self, operation: op.Submit) -> None:
        self._progress[operation.request] = Progress.of(operation, self._config)

    def lookup(self, request: str) -> op.Found:
        found: list[int] = []
        if self._cache.use_prefix_sharing:
            found = self._allocator.match_prefix_blocks(self._progress[request].tokens)
        return op.Found(len(found) * self._config.block_size, (self._row(found),))

    def admit(self, request: str, n: int, lookahead: int) -> op.Granted | op.Refused:
        progress = self._progress[request]
        state = self._states[request] = self._state(request, progress.tokens)
        hit: int = self._cache.search_prefix_match(request, state.remaining_prefill_tokens)
        state.position_offset = progress.scheduled = hit
        answer = self.extend(request, n, lookahead)
        if isinstance(answer, op.Refused):
            self._end(request, no_cache=False)
            return answer
        return op.Granted(answer.rows, hit)

    def extend(self, request: str, n: int, lookahead: int) -> op.Granted | op.Refused:
        state, progress = self._states[request], self._progress[request]
        stop = progress.stop(n)
        count = stop - progress.scheduled
        self._cache.pool.try_to_free_sectors()
        if not self._cache.can_store_request_tokens(state, count):
            self._cache.evict_cached_blocks()
            self._cache.pool.try_to_free_sectors()
            if not self._cache.can_store_request_tokens(state, count):
                return op.Refused()
        self._granted[request] = self._cache.count_new_complete_blocks(state, count)
        state.position_offset = progress.scheduled = stop
        return op.Granted(self._rows(request))

    def row(self, request: str, group: int) -> BlockIds:
        return self._rows(request)[group]

    def _rows(self, request: str) -> GroupRows:
        return (self._row(self._allocator.block_table[request]),)

    def _row(self, blocks: list[int]) -> BlockIds:
        return tuple(self._number[block] for block in blocks)

    def dispatch(self, operation: op.Dispatch) -> op.Dispatched:
        names = [entry.request for entry in operation.entries]
        self._steps[operation.step] = [(self._states[name], self._granted.pop(name)) for name in names]
        for name in names:
            self._progress[name].dispatch()
        return op.Dispatched()

    def retire(self, operation: op.Retire) -> op.Retired:
        for output in operation.outputs:
            self._progress[output.request].learn(output.sampled)
            self._states[output.request].generated_tokens.extend(output.sampled)
        before = {name: self._rows(name) for name in self._states}
        for state, complete in self._steps.pop(operation.step):
            # The states of lives that ended are skipped inside.
            self._cache.mark_complete_blocks(state, complete)
        after = {name: self._rows(name) for name in self._states}
        return op.Retired(swapped={name: row for name, row in after.items() if row != before[name]})

    def finish(self, request: str) -> None:
        if request in self._states:
            self._end(request, no_cache=False)
        del self._progress[request]

    def preempt(self, request: str) -> None:
        self._end(request, no_cache=True)

    def _end(self, request: str, *, no_cache: bool) -> None:
        self._cache.free_blocks(request, no_cache)
        self._states.pop(request).status = self._modules.RequestStatus.FINISHED
        self._granted.pop(request, None)
        self._progress[request].end()


def _numbered(paged: Any, allocator: Any, filler: Any, config: CacheConfig) -> dict[int, int]:
    """Physical blocks by number from 1. `filler` stands for a request that takes what is not asked for."""
    first = 2 * allocator.blocks_per_sector
    count = paged.num_sectors * allocator.blocks_per_sector
    if count > config.blocks:
        paged.can_store_request_tokens(filler, (count - config.blocks) * config.block_size)
    kept = allocator.block_table.get(filler.request_id, [])
    usable = [block for block in range(first, first + count) if block not in kept]
    return {block: number for number, block in enumerate(usable, 1)}


@cache
def _modules(version: str) -> Any:
    """What is used of a release; of the library around it nothing is."""
    try:
        import torch
    except ImportError:
        raise TargetSkipped("the cache of transformers needs torch, which is not installed.") from None
    package = fetch(f"transformers=={version}")
    base = "transformers.generation.continuous_batching"
    caches, requests = load(
        package,
        (f"{base}.cache", f"{base}.requests"),
        absent=(
            "psutil",
            "transformers.configuration_utils",
            "transformers.distributed",
            "transformers.generation.configuration_utils",
        ),
        given={
            "transformers.utils": module(
                "utils",
                is_psutil_available=bool,
                is_torch_xpu_available=bool,
                is_torch_available=lambda: True,
            ),
            "transformers.utils.generic": module(
                "generic", is_flash_attention_requested=lambda config: False
            ),
            "transformers.utils.logging": module("logging", logging=logging),
        },
    )
    # Memory is not measured: the number of blocks is given.
    vars(caches).update(get_device_and_memory_breakdown=lambda: (torch.device("cpu"), 1 << 40, 0, 0))

    def new_cache(config: CacheConfig, layers: int, head: int) -> Any:
        model = SimpleNamespace(
            num_hidden_layers=layers, num_attention_heads=1, head_dim=head, hidden_size=head, vocab_size=8
        )
        batching = SimpleNamespace(
            page_size=config.block_size,
            num_blocks=config.blocks,
            allow_block_sharing=config.prefix_caching,
            max_batch_tokens=config.max_len,
            max_requests_per_batch=config.max_requests,
            max_blocks_per_request=0,
            max_memory_percent=1.0,
            return_logprobs=False,
            use_async_batching=config.depth > 1,
        )
        alone = SimpleNamespace(tp_size=1)
        return caches.PagedAttentionCache(model, batching, "cpu", alone)

    return SimpleNamespace(
        new_cache=new_cache, RequestState=requests.RequestState, RequestStatus=requests.RequestStatus
    )


def target(rest: str) -> Adapter:
    """`transformers`, `transformers==VERSION`, and either with `+LAYOUT`. Raises `TargetError`."""
    version, _, layout = rest.partition("+")
    if layout and layout not in LAYOUTS:
        raise TargetError(f"there is no layout {layout!r}; layouts are {', '.join(LAYOUTS)}.")
    return TransformersAdapter(version or VERSION, layout or "sector")
