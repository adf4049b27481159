"""How fast the `cpu` build is beside numpy and, where it is installed, torch.

`python -m kvproof.kernels.bench` prints a table; figures of one run compare, those of two don't.
"""

import importlib.util
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from kvproof.kernels import twins
from kvproof.kernels.backends.base import Backend
from kvproof.kernels.backends.cpu_backend import CpuBackend
from kvproof.kernels.backends.numpy_backend import NumpyBackend
from kvproof.kernels.calls import Kernels
from kvproof.kernels.words import Geometry


def seconds(call: Callable[[], object], budget: float = 0.2) -> float:
    """The least time of a call, over as many rounds as the budget allows."""
    call()
    end, least = time.perf_counter() + budget, float("inf")
    while time.perf_counter() < end:
        began = time.perf_counter()
        call()
        least = min(least, time.perf_counter() - began)
    return least


def steps(backend: Backend, geometry: Geometry, blocks: int, size: int, tokens: int) -> dict[str, float]:
    """Seconds for each call of a step that writes `tokens` tokens to random slots."""
    random = np.random.default_rng(0)
    cache = backend.new_cache(geometry, blocks, size)
    digests = random.integers(0, 2**64, tokens, np.uint64)
    table = random.permutation(blocks)[: -(-tokens // size)].astype(np.int32)[None]
    lengths = np.array([table.shape[1]], np.int32)
    rows, positions = np.zeros(tokens, np.int64), np.arange(tokens)
    slots = backend.compute_slot_mapping(table, lengths, rows, positions, size)
    key, value = backend.synthesize(digests, geometry)
    backend.reshape_and_cache(key, value, cache, slots)
    places = slots // size, slots % size
    return {
        "slots": seconds(lambda: backend.compute_slot_mapping(table, lengths, rows, positions, size)),
        "synthesize": seconds(lambda: backend.synthesize(digests, geometry)),
        "write": seconds(lambda: backend.reshape_and_cache(key, value, cache, slots)),
        "verify": seconds(lambda: backend.verify_blocks(cache, *places, digests)),
    }


def print_steps(title: str, geometry: Geometry, blocks: int, size: int, tokens: int) -> None:
    """Microseconds and nanoseconds per word of each call, numpy beside cpu."""
    words = 2 * tokens * geometry.layers * geometry.heads * geometry.words
    found = [steps(backend, geometry, blocks, size, tokens) for backend in (NumpyBackend(), CpuBackend())]
    print(f"{title}: {tokens} tokens, {words:,} words    numpy µs (ns/word)     cpu µs (ns/word)")
    for name in found[0]:
        columns = [f"{each[name] * 1e6:11.1f} ({each[name] * 1e9 / words:7.2f})" for each in found]
        print(f"  {name:12} {'   '.join(columns)}   {found[0][name] / found[1][name]:6.1f}×")
    print(f"  {'all':12} " + "   ".join(f"{sum(each.values()) * 1e6:11.1f}" for each in found))


def print_fingerprints() -> None:
    """Nanoseconds per word of fingerprints; the twin in numpy's arrays."""
    backend, geometry = CpuBackend(), Geometry(4, 8, 32)
    cache = backend.new_cache(geometry, 64, 16)
    blocks = np.arange(64)
    starts, ends = np.zeros(64, np.int64), np.full(64, 16)
    mine = seconds(lambda: backend.fingerprint_blocks(cache, blocks, starts, ends))
    plain = seconds(lambda: twins.fingerprint_arrays(cache))
    scale = 1e9 / cache.size
    print(f"fingerprint: numpy {plain * scale:.2f}, cpu {mine * scale:.2f} ns/word, {plain / mine:.1f}×")


def print_moves() -> None:
    """Bytes read and written per second by `reshape_and_cache`, beside a copy and torch's `index_copy_`."""
    kernels = Kernels(CpuBackend().library)
    random = np.random.default_rng(0)
    tokens, heads, dims, size = 4096, 8, 128, 16
    slots = random.permutation(tokens).astype(np.int64)
    print("reshape_and_cache (one side), GB/s read + written     NHD     HND    copy    torch index_copy_")
    for kind in (np.float32, np.float16, np.uint8):
        source = np.zeros((tokens, 1, 1, heads, dims), kind)
        nhd = np.zeros((1, tokens // size, 1, size, heads, dims), kind)
        hnd = np.zeros((1, tokens // size, 1, heads, size, dims), kind).transpose(0, 1, 2, 4, 3, 5)
        times = [
            seconds(partial(kernels.reshape_and_cache, source, cache, slots, watch=False))
            for cache in (nhd, hnd)
        ]
        times.append(seconds(partial(np.copyto, nhd.reshape(source.shape), source)))
        if importlib.util.find_spec("torch"):
            times.append(seconds(_index_copy(source, nhd, slots)))
        rates = [2 * source.nbytes / each / 1e9 for each in times]
        print(f"  {np.dtype(kind).name:50} " + "   ".join(f"{rate:5.1f}" for rate in rates))


def _index_copy(source: Any, cache: Any, slots: Any) -> Callable[[], object]:
    import torch

    torch.set_num_threads(1)
    target = torch.from_numpy(cache.reshape(source.shape))
    given, indices = torch.from_numpy(source), torch.from_numpy(slots)
    return lambda: target.index_copy_(0, indices, given)


if __name__ == "__main__":
    print_steps("a fuzz step", Geometry(2, 2, 2), 9, 4, 8)
    print_steps("a prefill", Geometry(8, 8, 32), 128, 16, 1024)
    print_fingerprints()
    print_moves()
