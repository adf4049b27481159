"""Where a trial of the kernels runs: this machine's processor, or its GPU."""

import mmap
import platform
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from statistics import median
from typing import Any, Final

import numpy as np

from kvproof.kernels import beyond
from kvproof.kernels.backends.source_backend import SourceBackend
from kvproof.kernels.builds import build_checked, build_cpu
from kvproof.kernels.calls import Kernels
from kvproof.kernels.checked import CheckedLibrary
from kvproof.kernels.library import CpuLibrary, Launch, Library, address
from kvproof.kernels.memory import Array, HostMemory, Memory
from kvproof.kernels.mirror import MirrorLibrary, Raw
from kvproof.kernels.misuses import torn, unordered_launches
from kvproof.kernels.works import Size

SAMPLES: Final = 5


class NotHereError(Exception):
    """What a check needs isn't on this machine; says what."""


class Place(ABC):
    """A memory, a build that runs on it, and what only its machine can say."""

    name: str
    title: str
    """What the figures were measured on."""
    library: Library
    memory: Memory
    spread: Launch
    size: Size
    """What is moved when it is measured."""

    def kernels(self, *, waits: bool = True) -> Kernels:
        """Calls on arrays of the place's memory."""
        return Kernels(self.library, self.spread, self.memory, waits=waits)

    def backend(self) -> SourceBackend:
        """A backend on the place's memory."""
        return SourceBackend(self.library, self.memory, self.spread)

    @abstractmethod
    def mirrored(self) -> Library:
        """The same build, for arrays of the host."""

    @abstractmethod
    def copy(self, target: Any, source: Any) -> None:
        """A plain copy from one array to another."""

    @abstractmethod
    def seconds(self, call: Callable[[], object]) -> float:
        """How long the device takes for a call: the median of several."""

    @abstractmethod
    def huge(self) -> Array:
        """A memory of `beyond.ELEMENTS` bytes. Raises `NotHereError` where it isn't to be had."""

    @abstractmethod
    def torn(self, rounds: int, *, event: bool) -> int:
        """In how many rounds two streams that write one cache leave something of both."""

    @abstractmethod
    def share(self) -> str:
        """That torch's memory is used as it is and in its order: a figure. Raises `AssertionError` or
        `NotHereError`."""


class HostCopies:
    """Another memory that is the host's too: what is sent there is copied."""

    def allocate(self, size: int) -> Raw:
        return np.empty(size, np.uint8)

    def address(self, buffer: Raw) -> int:
        return address(buffer)

    def send(self, buffer: Raw, data: Raw) -> None:
        buffer[: len(data)] = data

    def fetch(self, buffer: Raw, size: int) -> Raw:
        return buffer[:size].copy()


class CpuPlace(Place):
    """The build for this processor. Raises `BuildError` where there is no compiler (`AbsentError`), or it
    refuses."""

    name = "cpu"
    size = Size(tokens=2048, layers=1)

    def __init__(self) -> None:
        self.library, self.memory, self.spread = CpuLibrary(build_cpu()), HostMemory(), Launch()
        self.title = platform.processor() or platform.machine()

    def mirrored(self) -> Library:
        return MirrorLibrary(self.library, HostCopies())

    def copy(self, target: Any, source: Any) -> None:
        np.copyto(target, source)

    def seconds(self, call: Callable[[], object]) -> float:
        call()
        found = []
        for _ in range(SAMPLES):
            began = time.perf_counter()
            call()
            found.append(time.perf_counter() - began)
        return median(found)

    def huge(self) -> Array:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
        try:
            # Sparse: only what is touched takes memory.
            return np.frombuffer(mmap.mmap(-1, beyond.ELEMENTS, flags=flags), np.uint8)
        except OSError as error:
            raise NotHereError(f"no sparse map of 4 GiB: {error}") from error

    def torn(self, rounds: int, *, event: bool) -> int:
        built = build_checked()
        libraries = [CheckedLibrary(built, seed=seed) for seed in range(rounds)]
        return sum(torn(unordered_launches(library, not event)) for library in libraries)

    def share(self) -> str:
        try:
            import torch
        except ImportError as error:
            raise NotHereError("torch is not installed") from error
        from kvproof.kernels.sharing import array_of

        keys = torch.arange(6 * 2 * 8).reshape(6, 1, 1, 2, 8).to(torch.bfloat16)
        cache = torch.zeros(1, 2, 1, 4, 2, 8, dtype=torch.bfloat16)
        slots = np.array([7, 0, 5, 2, 1, 6], np.int64)
        self.kernels().reshape_and_cache(array_of(keys), array_of(cache), slots)
        written = cache[0, slots // 4, 0, slots % 4]
        assert torch.equal(written, keys[:, 0, 0]), "the tensor's memory is not what was written to"
        return f"torch {torch.__version__}, one memory"
