"""What is written for the host's arrays runs on another memory; here that memory is the host's too."""

from array import array

import numpy as np
import pytest

from kvproof.kernels import builds, differential
from kvproof.kernels.calls import Kernels
from kvproof.kernels.faults import all_faults
from kvproof.kernels.library import CpuLibrary, Launch
from kvproof.kernels.mirror import ALIGNED, GUARD, MirrorLibrary, StrayWriteError
from kvproof.kernels.source import read_source

KINDS = len(differential.COMPARISONS)
pytestmark = pytest.mark.skipif(builds.compiler() is None, reason="no C++ compiler")


class Elsewhere:
    """Buffers that aren't aligned as the host's arrays are."""

    def allocate(self, size):
        return np.empty(size + 8, np.uint8)[8:]

    def address(self, buffer):
        return buffer.__array_interface__["data"][0]

    def send(self, buffer, data):
        buffer[: len(data)] = data

    def fetch(self, buffer, size):
        return buffer[:size].copy()


def mirror(source=None):
    options = builds.FAST if source is None else (*builds.OPTIONS, "-O0")
    built = builds.build(source or read_source(), builds.PRELUDE, options)
    return MirrorLibrary(CpuLibrary(built, source), Elsewhere())


def fault(name):
    return next(each for each in all_faults() if each.name == name)


@pytest.mark.parametrize("kind", range(KINDS), ids=list(differential.COMPARISONS))
def test_random_cases_equal_numpy(kind):
    library = mirror()
    seeds = range(kind, 20 * KINDS, KINDS)
    assert [line for seed in seeds for line in differential.differences(seed, library)] == []


def test_a_planted_fault_is_found_there_too():
    source = fault("copy-rounds-down").plant()
    library = mirror(source)
    assert any(differential.differences(seed, library) for seed in range(40 * KINDS))


TOKENS = np.ones((2, 1, 1, 1, 8), np.uint8)


@pytest.mark.parametrize("name", ["minus-one-as-index", "slot-past-the-cache"])
def test_a_write_outside_the_arrays_is_seen(name):
    kernels, cache = Kernels(mirror(fault(name).plant())), np.zeros((1, 2, 1, 2, 1, 8), np.uint8)
    with pytest.raises(StrayWriteError, match="8 bytes"):
        kernels.reshape_and_cache(TOKENS, cache, np.array([-1, 4], np.int64), watch=False)
    assert not cache.any()


def test_a_write_to_what_is_only_read_is_seen():
    kernels, cache = Kernels(mirror()), np.zeros((1, 2, 1, 2, 1, 8), np.uint8)
    kernels._written = kernels._read
    with pytest.raises(StrayWriteError, match="16 bytes"):
        kernels.reshape_and_cache(TOKENS, cache, np.array([1, 3], np.int64), watch=False)
    assert not cache.any()


class Recorder:
    """A library that only remembers what it was told."""

    def __init__(self, inner):
        self.signatures = inner.signatures
        self.told = []

    watch = None

    def launch(self, kernel, parameters, launch):
        self.told.append(list(parameters))


def test_addresses_move_with_their_alignment_and_distance():
    inner = Recorder(CpuLibrary(builds.build_cpu()))
    library = MirrorLibrary(inner, Elsewhere())
    memory = np.zeros(64, np.uint64)
    fields = inner.signatures["synthesize"].fields
    values = dict.fromkeys(fields, 0)
    at = memory.__array_interface__["data"][0]
    values |= {"key": at + 8, "value": at + 256, "digests": at + 16}
    library.watch(memory, True)
    library.launch("synthesize", array("q", [values[field] for field in fields]), Launch())
    told = dict(zip(fields, inner.told[0], strict=True))
    assert told["value"] - told["key"] == 248 and told["digests"] - told["key"] == 8
    assert told["key"] != values["key"] and told["key"] % ALIGNED == values["key"] % ALIGNED
    assert told["tokens"] == 0


class Aligned:
    """Buffers as a GPU gives them, and how large they were wanted."""

    def __init__(self):
        self.sizes = []

    def allocate(self, size):
        self.sizes.append(size)
        whole = np.empty(size + ALIGNED, np.uint8)
        start = -whole.__array_interface__["data"][0] % ALIGNED
        return whole[start : start + size]

    address, send, fetch = Elsewhere.address, Elsewhere.send, Elsewhere.fetch


@pytest.mark.parametrize(("guard", "buffers"), [(GUARD, 1), (0, 2)])
def test_without_a_guard_an_array_ends_with_its_buffer(guard, buffers):
    inner, remote = Recorder(CpuLibrary(builds.build_cpu())), Aligned()
    library = MirrorLibrary(inner, remote, guard)
    memory = np.zeros(300, np.uint64)
    low = memory.__array_interface__["data"][0] % ALIGNED
    arrays = memory[:100], memory[102:203]
    for array_of in arrays:
        library.watch(array_of, True)
    library.launch("synthesize", array("q", [0] * len(inner.signatures["synthesize"].fields)), Launch())
    assert len(remote.sizes) == buffers
    if not guard:
        assert remote.sizes == [low + 800, (low + 816) % ALIGNED + 808]


@pytest.mark.parametrize("kind", range(KINDS), ids=list(differential.COMPARISONS))
def test_random_cases_equal_numpy_without_a_guard_too(kind):
    library = MirrorLibrary(CpuLibrary(builds.build_cpu()), Aligned(), 0)
    seeds = range(kind, 10 * KINDS, KINDS)
    assert [line for seed in seeds for line in differential.differences(seed, library)] == []


def test_what_was_registered_ends_with_its_launch():
    inner = Recorder(CpuLibrary(builds.build_cpu()))
    library = MirrorLibrary(inner, Elsewhere())
    memory = np.zeros(64, np.uint64)
    at = memory.__array_interface__["data"][0]
    fields = inner.signatures["synthesize"].fields
    parameters = array("q", [at if field == "key" else 0 for field in fields])
    library.watch(memory, True)
    library.launch("synthesize", parameters, Launch())
    library.launch("synthesize", parameters, Launch())
    place = fields.index("key")
    assert inner.told[0][place] != at and inner.told[1][place] == at
