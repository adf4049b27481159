"""Slots beyond 2^31 elements: a sparse map of that size, of which a few pages are touched."""

import mmap

import numpy as np
import pytest

from kvproof.kernels import beyond, builds
from kvproof.kernels.calls import Kernels
from kvproof.kernels.faults import of_gate
from kvproof.kernels.library import CpuLibrary


@pytest.fixture
def cache():
    if builds.compiler() is None:
        pytest.skip("no C++ compiler")
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
    try:
        memory = mmap.mmap(-1, beyond.ELEMENTS, flags=flags)
    except OSError as error:
        pytest.skip(f"no sparse map of 4 GiB: {error}")
    return beyond.cache_in(np.frombuffer(memory, np.uint8))


def test_tokens_beyond_two_to_the_31_elements_are_written_to_their_slots(cache):
    assert cache.size > 2**31
    assert beyond.written_right(Kernels(CpuLibrary(builds.build_cpu())), cache) == beyond.TOKENS


@pytest.mark.parametrize("fault", of_gate("map"), ids=lambda fault: fault.name)
def test_a_planted_fault_is_found_by_the_map(cache, fault):
    # It writes and reads at the same wrong place: whoever reads by kernel alone sees nothing.
    planted = builds.build(fault.plant(), builds.PRELUDE, (*builds.OPTIONS, "-O0"))
    kernels = Kernels(CpuLibrary(planted, fault.plant()))
    assert beyond.written_right(kernels, cache) == beyond.TOKENS // 2
