"""How a bench drives a manager: the few calls in which ours and others' differ.

Pool, look-up, allocation and reset are called by the same names everywhere and are measured
directly. Requests and managers are whatever the contender has.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from kvproof.fuzz.engines.bench_rows import BLOCK_SIZE, MAX_LEN
from kvproof.impl.hashing import BlockHasher
from kvproof.impl.manager import KVCacheManager
from kvproof.impl.request import Request
from kvproof.spec.vocabulary import CacheConfig


def config_of(blocks: int) -> CacheConfig:
    """One full-attention group, prefix caching on, events off."""
    return CacheConfig(blocks=blocks, block_size=BLOCK_SIZE, max_len=MAX_LEN, events=False)


class Driver(Protocol):
    """Plays the scheduler around one contender's manager."""

    def build(self, blocks: int) -> Any:
        """An empty manager of so many usable blocks."""

    def request(self, manager: Any, name: str, tokens: Sequence[int]) -> Any:
        """A request whose keys are known."""

    def admit(self, manager: Any, request: Any) -> tuple[int, Any]:
        """Look up, allocate and compute the whole prompt: tokens hit, and what the allocation gave."""

    def free(self, manager: Any, request: Any) -> None:
        """The request is over."""

    def append(self, request: Any, token: int) -> None:
        """A token was sampled."""

    def complete(self, manager: Any, requests: Sequence[Any], token: int) -> None:
        """A step in which each request was granted a token goes to the device and returns."""

    def hashing(self, tokens: Sequence[int]) -> Callable[[], int]:
        """A call that makes all keys of a request with these tokens, and gives their number."""


class OurDriver:
    """Ours. Dispatching and retiring belong to the price of a prompt and of a step."""

    def __init__(self) -> None:
        self._step = 0
        self._hasher = BlockHasher("sha256", BLOCK_SIZE)

    def build(self, blocks: int) -> KVCacheManager:
        self._step = 0
        return KVCacheManager(config_of(blocks))

    def request(self, manager: KVCacheManager, name: str, tokens: Sequence[int]) -> Request:
        return Request(name, tokens, hasher=manager.hasher, max_tokens=MAX_LEN)

    def admit(self, manager: KVCacheManager, request: Request) -> tuple[int, Any]:
        blocks, hit = manager.get_computed_blocks(request)
        new = manager.allocate_slots(request, request.num_tokens - hit, blocks)
        self._step += 1
        manager.mark_dispatched(self._step, (request,))
        manager.retire_step(self._step)
        return hit, new

    def free(self, manager: KVCacheManager, request: Request) -> None:
        manager.free(request)

    def append(self, request: Request, token: int) -> None:
        request.append_tokens((token,))

    def complete(self, manager: KVCacheManager, requests: Sequence[Request], token: int) -> None:
        self._step += 1
        manager.mark_dispatched(self._step, requests)
        for request in requests:
            request.append_tokens((token,))
        manager.retire_step(self._step)

    def hashing(self, tokens: Sequence[int]) -> Callable[[], int]:
        request = Request("hashed", tokens[:1], hasher=self._hasher, max_tokens=MAX_LEN)

        def hash_all() -> int:
            request.append_tokens(tokens[1:])
            return len(request.block_hashes)

        return hash_all


def driver(contender: str) -> Driver:
    """The driver of `kvproof` or `vllm==0.13.0`. Raises `TargetError`, `TargetSkipped`."""
    if contender == "kvproof":
        return OurDriver()
    from kvproof.fuzz.engines.bench_vllm import VllmDriver

    return VllmDriver(contender.removeprefix("vllm=="))
