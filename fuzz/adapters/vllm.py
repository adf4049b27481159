"""vLLM: every release's cache manager at level 2, without its dependencies.

The adapter plays the scheduler around `KVCacheManager`, as vLLM's own does: look up and
allocate, advance by what was granted, record statistics where the release leaves that to
the scheduler, publish sampled tokens when a step retires where the release schedules
ahead, free at once, reset a preempted request.
"""

from collections.abc import Collection, Iterator
from typing import Any

import msgspec

from kvproof.fuzz.adapters.port import Adapter
from kvproof.fuzz.adapters.vllm_release import Lenient, Release, own, release
from kvproof.spec import operations as op
from kvproof.spec.vocabulary import BlockIds, CacheConfig, Capabilities, GroupRows, PolicyChoices

DEPTH = 3
"""Steps in flight for releases whose scheduler runs ahead of the device."""


class _Totals(msgspec.Struct):
    """Statistics so far, in tokens, and preemptions, which are the scheduler's."""

    requests: int = 0
    queries: int = 0
    hits: int = 0
    preemptions: int = 0


class VllmAdapter(Adapter):
    """One full-attention group. Keys and events go by the names that vLLM gives to its consumers.

    vLLM tells LoRA adapters apart by number up to 0.11.0, then by name, since 0.31 by name and
    path. Each adapter gets a number of its own; what only its `id` tells apart goes by path.

    Grants are not taken back: the manager leaves the keys of what was granted. vLLM's scheduler
    dispatches all that it has scheduled, except under its priority policy, which is not played here.
    """

    name = "vllm"

    def __init__(self, release: Release) -> None:
        self._release = release
        operations = ["abort", "preempt", "reset"]
        operations += ["evict"] if release.has_evict else []
        operations += ["lookup"] if release.records_at_admission else []
        features = ["chunks", "lookahead", "adapters", "items", "opt_out"]
        features += ["ahead"] if release.has_async else []
        features += ["salts"] if release.has_salts else []
        features += ["embeddings"] if release.has_embeddings else []
        features += ["events"] if release.has_events else []
        self.capabilities = Capabilities(
            2,
            policy=release.choices is not None,
            choices=release.choices or PolicyChoices(),
            publish="grant",
            stream_ordered=True,
            depth=DEPTH if release.has_async else 1,
            operations=tuple(operations),
            features=tuple(features),
        )

    def configure(self, config: CacheConfig, seed: int) -> None:
        self._config = config
        self.manager: Any = self._release.manager(config)
        self._requests: dict[str, Any] = {}
        self._limits: dict[str, int] = {}
        self._living: set[str] = set()
        self._ahead: dict[str, int] = {}
        """Tokens of a living request that will be sampled by what was granted and has not retired."""
        self._adapters: dict[op.Adapter, int] = {}
        self._prompts: dict[str, list[int]] = {}
        """The prompts with embeddings, with the tokens that the embeddings stand for."""
        self._spoken: dict[bytes, list[int]] = {}
        """The tokens of such a request's blocks, by key: its events have a placeholder there."""
        self._totals = _Totals()
        self._recorded = (0, 0, 0)

    # --- requests -------------------------------------------------------------------------

    def submit(self, operation: op.Submit) -> None:
        name = operation.request
        limit = min(operation.options.max_len or self._config.max_len, self._config.max_len)
        adapter = self._adapter(operation.extras.adapter)
        self._limits[name] = limit
        self._requests[name] = self._release.request(operation, limit, self._config.block_size, adapter)
        self._prompts.pop(name, None)
        if operation.extras.embeddings:
            self._prompts[name] = op.flatten(operation.tokens)
            self._speak(name)

    def _speak(self, name: str) -> None:
        inner, size = self._requests[name], self._config.block_size
        tokens = [*self._prompts[name], *inner.output_token_ids]
        for i, key in enumerate(inner.block_hashes):
            self._spoken[bytes(key)] = tokens[i * size : (i + 1) * size]

    def _adapter(self, adapter: op.Adapter | None) -> Any:
        """The LoRA request of an adapter: a number each, and what only `id` tells apart, by path."""
        if adapter is None:
            return None
        number = self._adapters.setdefault(adapter, len(self._adapters) + 1)
        path = f"{adapter.path}#{adapter.id}" if adapter.id else adapter.path
        name = own(adapter.name)
        return Lenient(lora_name=name, lora_int_id=number, adapter_id=number, lora_path=own(path), name=name)

    def lookup(self, request: str) -> op.Found:
        blocks, hit = self._release.lookup(self.manager, self._requests[request])
        groups = getattr(blocks, "blocks", (blocks,))
        return op.Found(hit, tuple(tuple(block.block_id for block in group) for group in groups))

    def admit(self, request: str, n: int, lookahead: int) -> op.Granted | op.Refused:
        inner = self._requests[request]
        found = self._release.lookup(self.manager, inner)
        self._count(inner)
        hit = found[1]
        stop = min(hit + n, inner.num_tokens, self._limits[request])
        slots = min(stop + lookahead, self._limits[request])
        if self._release.allocate(self.manager, inner, stop - hit, found, slots - stop) is None:
            return op.Refused()
        if self._release.records_at_admission:
            self.manager.record_prefix_cache_stats(inner, hit)
            self._count(inner)
        inner.status = self._release.status("RUNNING")
        self._living.add(request)
        self._ahead[request] = 0
        self._advance(request, stop)
        return op.Granted(self._rows(request), hit)

    def extend(self, request: str, n: int, lookahead: int) -> op.Granted | op.Refused:
        inner = self._requests[request]
        start = inner.num_computed_tokens
        stop = min(start + n, inner.num_tokens + self._ahead[request], self._limits[request])
        slots = min(stop + lookahead, self._limits[request])
        if self._release.allocate(self.manager, inner, stop - start, None, slots - stop) is None:
            return op.Refused()
        self._advance(request, stop)
        return op.Granted(self._rows(request))

    def _advance(self, request: str, stop: int) -> None:
        """Progress counts what is granted, as vLLM's scheduler has it."""
        inner = self._requests[request]
        inner.num_computed_tokens = stop
        if stop == inner.num_tokens + self._ahead[request] and stop < self._limits[request]:
            self._ahead[request] += 1
        if hasattr(inner, "num_output_placeholders"):
            inner.num_output_placeholders = self._ahead[request]

    def row(self, request: str, group: int) -> BlockIds:
        return self._rows(request)[group]

    def _rows(self, request: str) -> GroupRows:
        return (tuple(block.block_id for block in self._release.tables(self.manager)[request]),)

    # --- steps ----------------------------------------------------------------------------

    def dispatch(self, operation: op.Dispatch) -> op.Dispatched:
        """A dispatched step is scheduled already; the next one begins."""
        if hasattr(self.manager, "new_step_starts"):
            self.manager.new_step_starts()
        return op.Dispatched()

    def retire(self, operation: op.Retire) -> op.Retired:
        for output in operation.outputs:
            if not output.sampled:
                continue
            inner = self._requests[output.request]
            inner.append_output_token_ids(list(output.sampled))
            if output.request in self._prompts:
                self._speak(output.request)
            self._ahead[output.request] -= len(output.sampled)
            if self._release.has_async:
                inner.num_output_placeholders = self._ahead[output.request]
                self.manager.cache_blocks(inner, inner.num_computed_tokens - self._ahead[output.request])
        return op.Retired()

    # --- ends -----------------------------------------------------------------------------

    def finish(self, request: str) -> None:
        self._release.free(self.manager, self._requests.pop(request), gone=True)
        self._living.discard(request)

    def preempt(self, request: str) -> None:
        inner = self._requests[request]
        self._release.free(self.manager, inner, gone=False)
        self._living.discard(request)
        inner.status = self._release.status("PREEMPTED")
        inner.num_computed_tokens = 0
        if hasattr(inner, "num_output_placeholders"):
            inner.num_output_placeholders = 0
        if hasattr(inner, "num_preemptions"):
            inner.num_preemptions += 1
        self._totals.preemptions += 1

    def evict(self, request: str, boundary: int) -> bool:
        block = self._release.tables(self.manager)[request][boundary // self._config.block_size - 1]
        keyed = block.block_hash is not None
        self.manager.evict_blocks({block.block_id})
        return keyed

    def reset(self) -> bool:
        return bool(self.manager.reset_prefix_cache())

    # --- observing ------------------------------------------------------------------------

    def observe(
        self, blocks: Collection[int] | None, keys: Collection[tuple[int, bytes]] = ()
    ) -> op.Observation:
        pool, everything = self.manager.block_pool, blocks is None
        chosen = pool.blocks[1:] if blocks is None else [pool.blocks[block] for block in blocks]
        queue = pool.free_block_queue
        totals = self._totals
        return op.Observation(
            blocks={block.block_id: self._view(block) for block in chosen},
            index=tuple(self._index(chosen, frozenset(keys), everything)),
            free_count=pool.get_num_free_blocks(),
            free=tuple(block.block_id for block in queue.get_all_free_blocks()) if everything else None,
            rows=dict(self._tables()) if everything else None,
            usage=self.manager.usage,
            metrics=op.Metrics(totals.requests, totals.queries, totals.hits, totals.preemptions),
            events=tuple(self._events()),
        )

    def _view(self, block: Any) -> op.BlockView:
        if block.block_hash is None:
            return op.BlockView(block.ref_cnt)
        key, group = self._release.key(block.block_hash)
        size = self._config.block_size
        boundary = getattr(block, "block_hash_num_tokens", None) or size
        return op.BlockView(block.ref_cnt, key, group, (boundary - 1) % size + 1)

    def _index(
        self, chosen: list[Any], keys: frozenset[tuple[int, bytes]], everything: bool
    ) -> Iterator[op.IndexEntry]:
        """Everything; or what the index has under the blocks' own keys and the given ones."""
        pool = self.manager.block_pool
        carried = {block.block_hash for block in chosen if block.block_hash is not None}
        for key, blocks in self._release.index(pool):
            name, group = self._release.key(key)
            if everything or key in carried or (group, name) in keys:
                yield op.IndexEntry(name, group, tuple(blocks))

    def _tables(self) -> Iterator[tuple[str, GroupRows]]:
        """The manager's rows. An empty one is no row: a refusal leaves such in many releases."""
        for name, blocks in self._release.tables(self.manager).items():
            if blocks:
                yield name, (tuple(block.block_id for block in blocks),)

    def _events(self) -> Iterator[op.AnyEvent]:
        if not self._release.has_events:
            return
        external = self._release.external
        for event in self.manager.take_events():
            match type(event).__name__:
                case "BlockStored":
                    parent = event.parent_block_hash
                    keys = tuple(external(key) for key in event.block_hashes)
                    tokens = tuple(self._told(keys, event.token_ids, event.block_size))
                    yield op.Stored(
                        keys, None if parent is None else external(parent), tokens, event.block_size
                    )
                case "BlockRemoved":
                    yield from (op.Removed(external(key)) for key in event.block_hashes)
                case "AllBlocksCleared":
                    yield op.Cleared()

    def _told(self, keys: tuple[bytes, ...], tokens: list[int], size: int) -> Iterator[int]:
        """An event's tokens, but for the placeholders of embeddings."""
        if not self._spoken:
            yield from tokens
            return
        for i, key in enumerate(keys):
            yield from self._spoken.get(key, tokens[i * size : (i + 1) * size])

    def _count(self, request: Any) -> None:
        """Take over what the manager has recorded since the last time.

        The first releases count blocks, of which no number of tokens can be told; there a
        recorded look-up counts for all the request's tokens, and hit blocks are full.
        """
        stats = self.manager.prefix_cache_stats
        now = (
            stats.requests + getattr(stats, "preempted_requests", 0),
            stats.queries + getattr(stats, "preempted_queries", 0),
            stats.hits + getattr(stats, "preempted_hits", 0),
        )
        requests, queries, hits = (a - b for a, b in zip(now, self._recorded, strict=True))
        self._recorded = now
        if self._release.counts_blocks:
            queries, hits = requests * request.num_tokens, hits * self._config.block_size
        self._totals.requests += requests
        self._totals.queries += queries
        self._totals.hits += hits


def target(rest: str) -> VllmAdapter:
    """The adapter of one release: `0.13.0`. Raises `TargetError`."""
    return VllmAdapter(release(rest))
