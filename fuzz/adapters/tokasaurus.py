"""tokasaurus: a prefix tree of exact tokens that is published at admission.

Its `BlockAllocator` and its `ManagerState.deallocate` run as released; the rest of its manager
is played here. A prompt is granted whole, since its full pages enter the tree at admission
and later hits rest on that promise. Steps go to the device in the order of admission, and
freed blocks are reused at once: the stream orders that. Block 0 of the pool is block 1 here.

The manager never cancels a prompt that is not computed yet, but under pressure it bumps
one. The release alone is judged without that; `tokasaurus==0.0.4+discards` is judged with it.
"""

import itertools
from functools import cache, partial
from types import SimpleNamespace
from typing import Any

from kvproof.fuzz.adapters.port import Adapter
from kvproof.fuzz.adapters.progress import Progress
from kvproof.fuzz.targets.fetch import fetch
from kvproof.fuzz.targets.load import load, module
from kvproof.spec import operations as op
from kvproof.spec.vocabulary import BlockIds, CacheConfig, Capabilities, GroupRows

VERSION = "0.0.4"


class TokasaurusAdapter(Adapter):
    """Plays tokasaurus' manager around its allocator."""

    name = "tokasaurus"

    def __init__(self, version: str = VERSION, *, discards: bool = False) -> None:
        self._allocator, self._types = _modules(version)
        self.capabilities = Capabilities(
            stream_ordered=True,
            depth=2,
            operations=("lookup", "abort", "preempt"),
            features=("ahead", "discards") if discards else ("ahead",),
        )

    def configure(self, config: CacheConfig, seed: int) -> None:
        self._config = config
        # Its eviction goes by the clock: a counter makes replays exact.
        self._allocator.time = SimpleNamespace(time=partial(next, itertools.count(1.0)))
        self._blocks: Any = self._allocator.BlockAllocator(config.blocks, config.block_size)
        indices = self._allocator.BatchIndexAllocator(config.max_requests)
        self._manager = SimpleNamespace(block_allocator=self._blocks, batch_index_allocator=indices)
        self._progress: dict[str, Progress] = {}
        self._sequences: dict[str, Any] = {}
        self._lives = itertools.count(1)

    def submit(self, operation: op.Submit) -> None:
        self._progress[operation.request] = Progress.of(operation, self._config)

    def lookup(self, request: str) -> op.Found:
        found = self._blocks.prefix_match(self._progress[request].tokens)
        return op.Found(len(found) * self._config.block_size, (_row([block.idx for block in found]),))

    def admit(self, request: str, n: int, lookahead: int) -> op.Granted | op.Refused:
        progress = self._progress[request]
        name = f"{request}-{next(self._lives)}"
        prompt = list(progress.tokens)
        try:
            taken, hit = self._blocks.allocate_with_prefix_match(name, prompt)
        except self._allocator.NoSpaceException:
            return op.Refused()
        sequence = self._types.Sequence(name, progress.limit, prompt, sampling_params=None)
        sequence.kv_indices, sequence.prompt_scheduled = taken, hit
        sequence.batch_index = self._manager.batch_index_allocator.allocate()
        self._sequences[request] = sequence
        progress.scheduled = len(prompt)
        return op.Granted(self._rows(request), hit)

    def extend(self, request: str, n: int, lookahead: int) -> op.Granted | op.Refused:
        progress, sequence = self._progress[request], self._sequences[request]
        stop = progress.stop(n)
        try:
            new = self._blocks.allocate_up_to_length(sequence.id, sequence.kv_indices, stop)
        except self._allocator.NoSpaceException:
            return op.Refused()
        sequence.kv_indices.extend(new)
        progress.scheduled = stop
        return op.Granted(self._rows(request))

    def row(self, request: str, group: int) -> BlockIds:
        return self._rows(request)[group]

    def _rows(self, request: str) -> GroupRows:
        return (_row(self._sequences[request].kv_indices),)

    def dispatch(self, operation: op.Dispatch) -> op.Dispatched:
        for entry in operation.entries:
            sequence = self._sequences[entry.request]
            sequence.prompt_scheduled = sequence.prompt_total()
            self._progress[entry.request].dispatch()
        return op.Dispatched()

    def retire(self, operation: op.Retire) -> op.Retired:
        for output in operation.outputs:
            self._progress[output.request].learn(output.sampled)
            self._sequences[output.request].seq_output.completion_ids.extend(output.sampled)
        return op.Retired()

    def finish(self, request: str) -> None:
        if request in self._sequences:
            self.preempt(request)
        del self._progress[request]

    def preempt(self, request: str) -> None:
        self._types.ManagerState.deallocate(self._manager, self._sequences.pop(request))
        self._progress[request].end()


def _row(indices: list[int]) -> BlockIds:
    return tuple(index + 1 for index in indices)


@cache
def _modules(version: str) -> tuple[Any, Any]:
    package = fetch(f"tokasaurus=={version}")
    monitoring = module("monitoring", track_time_decorator=lambda: lambda call: call, StatsTracker=object)
    allocator, types = load(
        package,
        ("tokasaurus.manager.allocator", "tokasaurus.manager.types"),
        absent=(
            "loguru",
            "tokenizers",
            "torch",
            "transformers",
            "tokasaurus.common_types",
            "tokasaurus.manager.stopping_predictor",
            "tokasaurus.server",
        ),
        given={"tokasaurus.manager.monitoring": monitoring},
    )
    return allocator, types


def target(rest: str) -> Adapter:
    """`tokasaurus`, `tokasaurus==VERSION`, and either with `+discards`. Raises `TargetError`."""
    version, _, bumps = rest.partition("+")
    return TokasaurusAdapter(version or VERSION, discards=bumps == "discards")
