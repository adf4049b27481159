"""The GPU as the place of a trial, through CuPy."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any, Final

import numpy as np

from kvproof.kernels import beyond
from kvproof.kernels.backends.cupy_backend import SPREAD, CupyLibrary, CupyMemory, binary_for, find_cupy
from kvproof.kernels.calls import Kernels
from kvproof.kernels.library import Launch, Library
from kvproof.kernels.memory import Array
from kvproof.kernels.mirror import GUARD, MirrorLibrary, Raw
from kvproof.kernels.misuses import torn
from kvproof.kernels.places import SAMPLES, NotHereError, Place
from kvproof.kernels.works import Size

REPEATS: Final = 20
"""Launches between two events, so that what a launch takes on the host doesn't count."""
LARGE: Final = Size(tokens=32_768, layers=4)
SMALL: Final = Size(tokens=8_192, layers=2)
# Few threads, so that a launch takes milliseconds and two of them are sure to meet.
SLOW: Final = Launch(grid=4, block=32, lanes=32)


class GpuCopies:
    """Buffers on the GPU."""

    def __init__(self, cupy: Any) -> None:
        self._cupy = cupy

    def allocate(self, size: int) -> Any:
        return self._cupy.empty((size,), np.uint8)

    def address(self, buffer: Any) -> int:
        return int(buffer.data.ptr)

    def send(self, buffer: Any, data: Raw) -> None:
        buffer[: len(data)].set(data)

    def fetch(self, buffer: Any, size: int) -> Raw:
        return np.asarray(self._cupy.asnumpy(buffer[:size]), np.uint8)


class CudaPlace(Place):
    """CuPy's current device. Raises `BuildError` where CuPy or a GPU is missing (`AbsentError`), or what
    it loads."""

    name = "cuda"

    def __init__(self, cubins: Path | None = None, *, pooled: bool = True) -> None:
        """From a folder of artefacts, if one is given. Unless `pooled`, every array is an allocation of
        its own, so that a memory checker sees where it ends.
        """
        self.cupy = cupy = find_cupy()
        self._guard = GUARD if pooled else 0
        if not pooled:
            cupy.cuda.set_allocator(None)
        built = binary_for(cupy, cubins)
        self.library, self.memory, self.spread = CupyLibrary(cupy, built), CupyMemory(cupy), SPREAD
        properties = cupy.cuda.runtime.getDeviceProperties(cupy.cuda.Device().id)
        self.free = int(cupy.cuda.runtime.memGetInfo()[0])
        self.size = LARGE if self.free > 16 << 30 else SMALL
        self.title = (
            f"{properties['name'].decode()}, driver {cupy.cuda.runtime.driverGetVersion()}, "
            f"CuPy {cupy.__version__}, {built.name} {hashlib.sha256(built.read_bytes()).hexdigest()[:12]}"
        )

    def mirrored(self) -> Library:
        return MirrorLibrary(self.library, GpuCopies(self.cupy), self._guard)

    def copy(self, target: Any, source: Any) -> None:
        target.data.copy_from_device_async(source.data, source.nbytes)

    def seconds(self, call: Callable[[], object]) -> float:
        cuda, found = self.cupy.cuda, []
        call()
        for _ in range(SAMPLES):
            began, ended = cuda.Event(), cuda.Event()
            began.record()
            for _ in range(REPEATS):
                call()
            ended.record()
            ended.synchronize()
            found.append(cuda.get_elapsed_time(began, ended) / 1000 / REPEATS)
        return float(median(found))

    def huge(self) -> Array:
        if self.free < beyond.ELEMENTS + (1 << 30):
            raise NotHereError(f"{beyond.ELEMENTS >> 20:,} MiB of memory aren't free")
        return self.memory.empty((beyond.ELEMENTS,), np.uint8)

    def torn(self, rounds: int, *, event: bool) -> int:
        cuda, count = self.cupy.cuda, 2048
        first, second = cuda.Stream(non_blocking=True), cuda.Stream(non_blocking=True)
        kernels = Kernels(self.library, SLOW, self.memory, waits=False)
        cache = self.memory.full((1, count // 16, 2, 16, 8, 128), 0, np.uint16)
        ones, twos = (self.memory.full((count, 1, 2, 8, 128), each, np.uint16) for each in (0x0101, 0x0202))
        # From both ends, so that they meet in the middle.
        slots = np.arange(count)
        up, down = self.memory.taken(slots), self.memory.taken(slots[::-1].copy())
        seen = 0
        for _ in range(rounds):
            cuda.Device().synchronize()
            with first:
                kernels.reshape_and_cache(ones, cache, up, watch=False)
            if event:
                second.wait_event(first.record())
            with second:
                kernels.reshape_and_cache(twos, cache, down, watch=False)
            first.synchronize(), second.synchronize()
            seen += torn(self.memory.host(cache))
        return seen

    def share(self) -> str:
        try:
            import torch
        except ImportError as error:
            raise NotHereError("torch is not installed") from error
        if not torch.cuda.is_available():
            raise NotHereError(f"torch {torch.__version__} has no GPU")
        early = sum(_written_wrong(self, torch, ordered=True) for _ in range(5))
        assert not early, f"on torch's stream {early} of 5 writes were early or wrong"
        apart = sum(_written_wrong(self, torch, ordered=False) for _ in range(5))
        return f"torch {torch.__version__}: right on its stream 5 of 5, on another {5 - apart} of 5"


def _written_wrong(place: CudaPlace, torch: Any, ordered: bool) -> bool:
    """Whether a kernel that writes what torch computes on a stream of its own wrote something else.

    Without order it is free to run before torch has computed it.
    """
    from contextlib import nullcontext

    from kvproof.kernels.sharing import array_of, on_stream

    kernels = Kernels(place.library, place.spread, place.memory, waits=False)
    slots = place.memory.taken(np.arange(512))
    matrix = torch.randn(4096, 4096, device="cuda")
    cache = torch.zeros(1, 32, 1, 16, 8, 128, device="cuda", dtype=torch.bfloat16)
    keys = torch.zeros(512, 1, 1, 8, 128, device="cuda", dtype=torch.bfloat16)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        product = matrix
        for _ in range(20):
            product = torch.tanh(product @ matrix)
        keys.copy_(product[:512, :1024].reshape(keys.shape))
        assert array_of(keys).data.ptr == keys.data_ptr()
        with on_stream(place.cupy) if ordered else nullcontext():
            kernels.reshape_and_cache(array_of(keys), array_of(cache), slots, watch=False)
    torch.cuda.synchronize()
    return not torch.equal(cache[0, :, 0].reshape(keys.shape), keys)
