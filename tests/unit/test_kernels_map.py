"""Slots beyond 2^31 elements: a sparse map of that size, of which a few pages are touched."""

import mmap

import numpy as np
import pytest

from kvproof.kernels import builds
from kvproof.kernels.calls import Counted, Kernels
from kvproof.kernels.faults import all_faults
from kvproof.kernels.library import CpuLibrary

# An odd row is moved by single bytes, so that offsets count bytes.
ROW, SIZE = 4095, 16
BLOCKS = 2**31 // (ROW * SIZE) + 40
GUARD = 2**31 + 2**20
"""Below the cache, where an offset that wrapped would lead."""
BIG = (1, BLOCKS, 1, SIZE, 1, ROW)


@pytest.fixture
def cache():
    if builds.compiler() is None:
        pytest.skip("no C++ compiler")
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
    try:
        memory = mmap.mmap(-1, GUARD + BLOCKS * SIZE * ROW, flags=flags)
    except OSError as error:
        pytest.skip(f"no sparse map of 4 GiB: {error}")
    return np.frombuffer(memory, np.uint8)[GUARD:].reshape(BIG)


def written_right(library, cache):
    """Of 64 tokens at both ends, how many lie at their slots."""
    slots = np.concatenate([np.arange(32), BLOCKS * SIZE - 1 - np.arange(32)]).astype(np.int64)
    tokens = np.random.default_rng(0).integers(1, 256, (64, 1, 1, 1, ROW), np.uint8)
    kernels = Kernels(library)
    assert kernels.reshape_and_cache(tokens, cache, slots) == Counted()
    found = cache[0, slots // SIZE, 0, slots % SIZE]
    right = int((found == tokens[:, 0, 0]).all(axis=(1, 2)).sum())
    read = np.empty_like(tokens)
    kernels.gather_slots(read, cache, slots)
    assert np.array_equal(read, tokens)
    return right


def test_tokens_beyond_two_to_the_31_elements_are_written_to_their_slots(cache):
    assert cache.size > 2**31
    assert written_right(CpuLibrary(builds.build_cpu()), cache) == 64


@pytest.mark.parametrize("fault", [each for each in all_faults() if each.gate == "map"], ids=lambda f: f.name)
def test_a_planted_fault_is_found_by_the_map(cache, fault):
    # It writes and reads at the same wrong place: whoever reads by kernel alone sees nothing.
    planted = builds.build(fault.plant(), builds.PRELUDE, (*builds.OPTIONS, "-O0"))
    assert written_right(CpuLibrary(planted, fault.plant()), cache) == 32
