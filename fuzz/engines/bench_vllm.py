"""How a bench drives a release of vLLM. One release per process.

The calls are those of its scheduler, directly and with no arguments that it would not give.
What the scheduler drains is drained outside the measured calls.
"""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from kvproof.fuzz.adapters.vllm_release import release
from kvproof.fuzz.engines.bench_drivers import config_of
from kvproof.fuzz.engines.bench_rows import BLOCK_SIZE, MAX_LEN
from kvproof.spec import operations as op


class VllmDriver:
    """vLLM. A release that hashes in its manager hashes before the measured calls, too."""

    def __init__(self, version: str) -> None:
        """Raises `TargetError`, `TargetSkipped`."""
        self._release = release(version)
        self._running = self._release.status("RUNNING")
        kind = type(self.build(1))
        self._takes_hit = "num_new_computed_tokens" in inspect.signature(kind.allocate_slots).parameters
        self._records = hasattr(kind, "record_prefix_cache_stats")
        self._starts = hasattr(kind, "new_step_starts")
        self._drains = hasattr(kind, "take_new_block_ids")
        self._clears_hashes = hasattr(kind, "free_block_hashes")

    def build(self, blocks: int) -> Any:
        return self._release.manager(config_of(blocks))

    def request(self, manager: Any, name: str, tokens: Sequence[int]) -> Any:
        request = self._plain(name, tokens)
        if not hasattr(request, "block_hashes"):
            manager.get_computed_blocks(request)
        if self._drains:
            manager.take_new_block_ids()
        return request

    def _plain(self, name: str, tokens: Sequence[int]) -> Any:
        return self._release.request(op.Submit(name, tuple(tokens)), MAX_LEN, BLOCK_SIZE, None)

    def admit(self, manager: Any, request: Any) -> tuple[int, Any]:
        if self._starts:
            manager.new_step_starts()
        found = manager.get_computed_blocks(request)
        hit = found[1]
        if len(found) > 2:
            request.shared_prefix_boundary = found[2]
        if self._takes_hit:
            new = manager.allocate_slots(
                request, request.num_tokens - hit, num_new_computed_tokens=hit, new_computed_blocks=found[0]
            )
        else:
            new = manager.allocate_slots(request, request.num_tokens - hit, new_computed_blocks=found[0])
        if self._records:
            manager.record_prefix_cache_stats(request, hit)
        request.status = self._running
        request.num_computed_tokens = request.num_tokens
        return hit, new

    def free(self, manager: Any, request: Any) -> None:
        manager.free(request)
        if self._clears_hashes:
            manager.free_block_hashes(request)

    def append(self, request: Any, token: int) -> None:
        request.append_output_token_ids(token)

    def complete(self, manager: Any, requests: Sequence[Any], token: int) -> None:
        for request in requests:
            request.num_computed_tokens += 1
        for request in requests:
            request.append_output_token_ids(token)
        if self._starts:
            manager.new_step_starts()

    def hashing(self, tokens: Sequence[int]) -> Callable[[], int]:
        """By appending to a request of one token, or by the first look-up where that hashes."""
        request = self._plain("hashed", tokens[:1])
        if hasattr(request, "block_hashes"):
            rest = list(tokens[1:])

            def append_all() -> int:
                request.append_output_token_ids(rest)
                return len(request.block_hashes)

            return append_all
        whole, manager = self._plain("hashed", tokens), self.build(1)

        def look_up() -> int:
            manager.get_computed_blocks(whole)
            return len(manager.req_to_block_hashes["hashed"])

        return look_up
