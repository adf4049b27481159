"""nano-vllm-voxcpm: rolling hashes of full blocks, published at allocation.

Its `BlockManager` and `Sequence` run as released, its scheduler is played: a prompt is
granted whole, `can_allocate` and `can_append` guard what they guard there, and a prompt that
is cached in full recomputes its last token in a shared block. Only the digest differs: BLAKE2b
stands in for xxHash, both 64 bits wide. Block 0 of the pool is block 1 here.
"""

import hashlib
from functools import cache
from typing import Any

from kvproof.fuzz.adapters.port import Adapter
from kvproof.fuzz.adapters.progress import Progress
from kvproof.fuzz.targets.fetch import fetch
from kvproof.fuzz.targets.load import load, module
from kvproof.spec import operations as op
from kvproof.spec.vocabulary import BlockIds, CacheConfig, Capabilities, GroupRows

VERSION = "2.0.5"


class VoxcpmAdapter(Adapter):
    """Plays the scheduler around the block manager."""

    name = "nano-vllm-voxcpm"
    # It demands multiples of 256; its test for a new block makes no sense for blocks of one token.
    capabilities = Capabilities(
        stream_ordered=True,
        idempotent=True,
        max_hit="len",
        block_sizes=(2, 3, 4),
        operations=("abort", "preempt"),
        features=("ahead", "adapters"),
    )

    def __init__(self, version: str = VERSION) -> None:
        self._manager, self._sequence = _modules(version)

    def configure(self, config: CacheConfig, seed: int) -> None:
        self._config = config
        self._blocks: Any = self._manager.BlockManager(config.blocks, config.block_size)
        self._progress: dict[str, Progress] = {}
        self._sequences: dict[str, Any] = {}
        self._adapters: dict[op.Adapter | None, int | None] = {None: None}

    def submit(self, operation: op.Submit) -> None:
        name, adapter = operation.request, operation.extras.adapter
        number = self._adapters.setdefault(adapter, len(self._adapters))
        progress = self._progress[name] = Progress.of(operation, self._config)
        self._sequences[name] = self._sequence.Sequence(
            name,
            progress.tokens,
            self._config.block_size,
            lora_name=adapter.name if adapter else None,
            adapter_id=number,
        )

    def admit(self, request: str, n: int, lookahead: int) -> op.Granted | op.Refused:
        sequence = self._sequences[request]
        if not self._blocks.can_allocate(sequence):
            return op.Refused()
        self._blocks.allocate(sequence)
        self._progress[request].scheduled = len(sequence)
        return op.Granted(self._rows(request), sequence.num_cached_tokens)

    def extend(self, request: str, n: int, lookahead: int) -> op.Granted | op.Refused:
        sequence, progress = self._sequences[request], self._progress[request]
        # Its loop is synchronous: a token is computed once it is known.
        if progress.pending or not self._blocks.can_append(sequence):
            return op.Refused()
        self._blocks.may_append(sequence)
        progress.scheduled = len(sequence)
        return op.Granted(self._rows(request))

    def row(self, request: str, group: int) -> BlockIds:
        return self._rows(request)[group]

    def _rows(self, request: str) -> GroupRows:
        return (tuple(block + 1 for block in self._sequences[request].block_table),)

    def dispatch(self, operation: op.Dispatch) -> op.Dispatched:
        for entry in operation.entries:
            self._progress[entry.request].dispatch()
        return op.Dispatched()

    def retire(self, operation: op.Retire) -> op.Retired:
        for output in operation.outputs:
            self._progress[output.request].learn(output.sampled)
            for token in output.sampled:
                self._sequences[output.request].append_token(token)
        return op.Retired()

    def finish(self, request: str) -> None:
        self.preempt(request)
        del self._progress[request], self._sequences[request]

    def preempt(self, request: str) -> None:
        self._blocks.deallocate(self._sequences[request])
        self._progress[request].end()


class _Digest:
    """`xxhash.xxh64`, in what is used of it."""

    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=8)

    def update(self, data: bytes) -> None:
        self._hash.update(data)

    def intdigest(self) -> int:
        return int.from_bytes(self._hash.digest(), "little")


@cache
def _modules(version: str) -> tuple[Any, Any]:
    names = ("nanovllm_voxcpm.engine.block_manager", "nanovllm_voxcpm.engine.sequence")
    package = fetch(f"nano-vllm-voxcpm=={version}")
    manager, sequence = load(package, names, given={"xxhash": module("xxhash", xxh64=_Digest)})
    return manager, sequence


def target(rest: str) -> Adapter:
    """`nano-vllm-voxcpm` and `nano-vllm-voxcpm==VERSION`. Raises `TargetError`."""
    return VoxcpmAdapter(rest or VERSION)
