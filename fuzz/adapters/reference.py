"""The reference manager and worker: target number one, seen down to the bytes."""

from array import array
from collections.abc import Collection, Sequence
from functools import lru_cache

import numpy as np

from kvproof.fuzz.adapters.port import Adapter
from kvproof.fuzz.adapters.reference_worker import ReferenceWorker
from kvproof.fuzz.device import Device
from kvproof.impl import events
from kvproof.impl.block import KVCacheBlock
from kvproof.impl.manager import KVCacheManager
from kvproof.impl.request import Request
from kvproof.impl.worker.protocol import DiffBuilder, Running
from kvproof.spec import operations as op
from kvproof.spec.vocabulary import FEATURES, OPERATIONS, BlockIds, CacheConfig, Capabilities, GroupRows


class ReferenceAdapter(Adapter):
    """Plays the scheduler around the manager, and at level 3 drives the worker by messages.

    `level` 2 leaves the worker out, which is what large workloads can afford.
    `hashes`, where given, keeps the prompts' block hashes by request id from one run over the
    same requests to the next.
    """

    name = "reference"

    def __init__(self, level: int = 3) -> None:
        self._level = level
        operations = OPERATIONS if level >= 3 else tuple(name for name in OPERATIONS if name != "table")
        self.capabilities = Capabilities(
            level, policy=True, depth=3, operations=operations, features=FEATURES
        )
        self.hashes: dict[str, Sequence[bytes]] | None = None

    def configure(self, config: CacheConfig, seed: int) -> None:
        self._config = config
        self.manager = KVCacheManager(config)
        self._requests: dict[str, Request] = {}
        self._inputs: dict[str, op.Submit] = {}
        self._granted: dict[str, int] = {}
        if self._level >= 3:
            self.device = Device(config)
            self._worker = ReferenceWorker(config, self.device)
            self._diffs = DiffBuilder()

    # --- requests -------------------------------------------------------------------------

    def submit(self, operation: op.Submit) -> None:
        extras, options = operation.extras, operation.options
        adapter = extras.adapter
        limit = min(options.max_len or self._config.max_len, self._config.max_len)
        name = operation.request
        self._requests[name] = Request(
            name,
            token_array(operation.tokens),
            hasher=self.manager.hasher,
            max_tokens=limit,
            adapter=None if adapter is None else (adapter.name, adapter.id, adapter.path),
            cache_salt=extras.salt,
            items=[(item.id, item.offset, item.length) for item in extras.items],
            embeddings=[(each.position, each.content) for each in extras.embeddings],
            read_cache=options.read_cache,
            priority=options.priority,
            block_hashes=self.hashes.get(name) if self.hashes is not None else None,
        )
        if self.hashes is not None:
            self.hashes[name] = tuple(self._requests[name].block_hashes)
        self._inputs[name] = operation

    @property
    def requests(self) -> dict[str, Request]:
        """The requests in use, as the manager has them."""
        return self._requests

    def lookup(self, request: str) -> op.Found:
        blocks, hit = self.manager.get_computed_blocks(self._requests[request])
        return op.Found(hit, tuple(tuple(row) for row in blocks.get_block_ids()))

    def admit(self, request: str, n: int, lookahead: int) -> op.Granted | op.Refused:
        blocks, hit = self.manager.get_computed_blocks(self._requests[request])
        if self.manager.allocate_slots(self._requests[request], n, blocks, lookahead) is None:
            return op.Refused()
        self._granted[request] = hit
        return op.Granted(self._rows(request), hit)

    def extend(self, request: str, n: int, lookahead: int) -> op.Granted | op.Refused:
        start = self._requests[request].num_computed_tokens
        if self.manager.allocate_slots(self._requests[request], n, None, lookahead) is None:
            return op.Refused()
        self._granted[request] = start
        return op.Granted(self._rows(request))

    def row(self, request: str, group: int) -> BlockIds:
        return self._rows(request)[group]

    def _rows(self, request: str) -> GroupRows:
        rows = self.manager.coordinator.get_blocks(request)
        return tuple([tuple([block.block_id for block in row]) for row in rows])

    # --- steps ----------------------------------------------------------------------------

    def dispatch(self, operation: op.Dispatch) -> op.Dispatched:
        requests = [self._requests[entry.request] for entry in operation.entries]
        self.manager.mark_dispatched(operation.step, requests)
        if self._level < 3:
            return op.Dispatched()
        running = [
            Running(
                entry.request,
                self._requests[entry.request].tokens,
                self._inputs[entry.request].extras,
                self._rows(entry.request),
                self._granted[entry.request],
                entry.n,
                entry.drafts,
            )
            for entry in operation.entries
        ]
        return self._worker.dispatch(self._diffs.build(operation.step, running, operation.padding))

    def retire(self, operation: op.Retire) -> op.Retired:
        for output in operation.outputs:
            if output.sampled:
                self._requests[output.request].append_tokens(output.sampled)
        self.manager.retire_step(operation.step)
        if self._level < 3:
            return op.Retired()
        sampled = {output.request: output.sampled for output in operation.outputs}
        return self._worker.retire(operation.step, sampled)

    # --- ends -----------------------------------------------------------------------------

    def finish(self, request: str) -> None:
        if request in self.manager.lives:
            self.manager.free(self._requests[request])
        del self._requests[request], self._inputs[request]
        self._granted.pop(request, None)
        if self._level >= 3:
            self._diffs.finish(request)

    def preempt(self, request: str) -> None:
        self.manager.preempt(self._requests[request])
        if self._level >= 3:
            self._diffs.preempt(request)

    def evict(self, request: str, boundary: int) -> bool:
        index = boundary // self._config.block_size - 1
        blocks = [row[index] for row in self.manager.get_block_ids(request)]
        return self.manager.evict_blocks(blocks) > 0

    def reset(self) -> bool:
        return self.manager.reset_prefix_cache()

    def table(self, operation: op.Table) -> None:
        self._worker.table(operation)

    # --- observing ------------------------------------------------------------------------

    def observe(
        self, blocks: Collection[int] | None, keys: Collection[tuple[int, bytes]] = ()
    ) -> op.Observation:
        pool = self.manager.block_pool
        counted = self.manager.metrics
        chosen = pool.blocks[1:] if blocks is None else [pool.blocks[block] for block in blocks]
        return op.Observation(
            blocks={
                block.block_id: _unkeyed(block.ref_cnt)
                if (key := block.block_hash) is None
                else op.BlockView(block.ref_cnt, key, (unit := block.unit).group_id, unit.num_tokens)
                for block in chosen
            },
            index=tuple(self._index() if blocks is None else self._entries(chosen, keys)),
            free_count=pool.get_num_free_blocks(),
            free=self._free() if blocks is None else None,
            rows={name: self._rows(name) for name in self.manager.lives} if blocks is None else None,
            usage=self.manager.usage,
            metrics=op.Metrics(counted.requests, counted.queries, counted.hits, counted.preemptions),
            events=tuple(map(_event, self.manager.take_events())),
        )

    def _free(self) -> BlockIds:
        """The queue from head to tail. One that was broken into a circle shows as one block too many."""
        pool = self.manager.block_pool
        queue, found = pool.free_queue, list[int]()
        block, tail, note = queue.head.next_free, queue.tail, found.append
        for _ in range(pool.num_usable + 1):
            if block is tail:
                break
            note(block.block_id)
            block = block.next_free
        return tuple(found)

    def _index(self) -> list[op.IndexEntry]:
        """Every key that can be hit."""
        pool, found = self.manager.block_pool, list[op.IndexEntry]()
        for group, index in enumerate(pool.index):
            copies = pool.copies[group]
            found += [
                op.IndexEntry(
                    key,
                    group,
                    (block.block_id, *copies[key]) if key in copies else (block.block_id,),
                )
                for key, block in index.items()
            ]
        return found

    def _entries(
        self, chosen: Sequence[KVCacheBlock], keys: Collection[tuple[int, bytes]]
    ) -> list[op.IndexEntry]:
        """What the index has under the blocks' own keys and the given ones."""
        pool, found = self.manager.block_pool, []
        carried = [(block.group_id, block.block_hash) for block in chosen if block.block_hash is not None]
        for group, key in dict.fromkeys([*carried, *keys]):
            oldest = pool.index[group].get(key)
            if oldest is not None:
                ids = (oldest.block_id, *pool.copies[group].get(key, ()))
                found.append(op.IndexEntry(key, group, ids))
        return found


_unkeyed = lru_cache(64)(op.BlockView)
"""Views are values, and those of blocks without a key are by far the most frequent."""


def target(rest: str) -> ReferenceAdapter:
    """The reference, with its worker."""
    return ReferenceAdapter()


def token_array(tokens: op.Tokens) -> "array[int]":
    """Token ids as 64-bit integers; long runs are not walked one by one."""
    if all(isinstance(item, int) for item in tokens):
        return array("q", op.flatten(tokens))
    parts = [np.arange(start, start + count, dtype=np.int64) for start, count in op.runs_of(tokens)]
    return array("q", np.concatenate(parts).tobytes())


def _event(event: events.KVCacheEvent) -> op.AnyEvent:
    match event:
        case events.BlockStored():
            return op.Stored(event.keys, event.parent, tuple(event.tokens), event.block_size, event.group)
        case events.BlockRemoved():
            return op.Removed(event.key, event.group)
        case events.AllBlocksCleared():
            return op.Cleared()
