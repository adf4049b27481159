"""Every access of the device source is watched: it does nothing wrong, and what is planted is found."""

import numpy as np
import pytest

from kvproof.kernels import builds, differential
from kvproof.kernels.backends.checked_backend import CheckedBackend
from kvproof.kernels.backends.cpu_backend import CpuBackend
from kvproof.kernels.calls import Kernels
from kvproof.kernels.checked import CheckedLibrary, Wrong
from kvproof.kernels.faults import all_faults, of_gate
from kvproof.kernels.library import Launch
from kvproof.kernels.misuses import MISUSES, torn
from kvproof.kernels.source import read_source
from kvproof.kernels.words import Geometry

KINDS = len(differential.COMPARISONS)
SPREAD = Launch(grid=8, block=4)
pytestmark = pytest.mark.skipif(builds.compiler() is None, reason="no C++ compiler")


def ints(*values: int):
    return np.array(values, np.int64)


@pytest.fixture(scope="module")
def built():
    return builds.build_checked()


@pytest.fixture
def library(built):
    return CheckedLibrary(built)


def kinds(library):
    return {finding.wrong for finding in library.findings}


# --- the source as it is -----------------------------------------------------------------------


def test_random_cases_equal_numpy_and_nothing_is_found(library):
    lines = [
        line
        for seed in range(60 * KINDS)
        for line in differential.differences(seed, library, conflicts=False)
    ]
    assert lines == [] and library.findings == []
    # Were the compiler's calls not taken, nothing would be found either.
    assert library.accesses > 1_000_000


def decode(library, threads=16):
    """Attention over a cache and a table whose unused parts were never written."""
    random = np.random.default_rng(1)
    blocks, size, heads, dims = 100, 4, 2, 8
    # The last one's end lies beyond what its row can hold.
    lengths = ints(70, 130, 5, 170)
    memory = np.zeros((blocks, 2, size, heads, dims), np.float32)
    written = np.zeros(memory.shape, bool)
    table = np.full((4, 40), 7, np.int32)
    entries = np.zeros(table.shape, bool)
    free = iter(random.permutation(blocks).tolist())
    for row, length in enumerate(lengths.tolist()):
        for column in range(min(40, -(-length // size))):
            table[row, column], entries[row, column] = block, _ = next(free), True
            end = min(size, length - column * size)
            memory[block, :, :end] = random.standard_normal((2, end, heads, dims))
            written[block, :, :end] = True
    library.keep(memory, written)
    library.keep(table, entries)
    query = random.standard_normal((4, 4, dims)).astype(np.float32)
    kernels = Kernels(library, Launch(grid=2, block=threads))
    return kernels.paged_attention_decode(query, memory[:, 0], memory[:, 1], table, lengths, scale=0.3)


def test_attention_reads_only_what_was_written(library):
    results = [decode(library) for _ in range(5)]
    assert library.findings == []
    assert len({output.tobytes() for output, _ in results}) == 1
    # Ten positions behind the row, for each of four heads.
    assert {counted.outside for _, counted in results} == {40}


def write_shifted(library):
    """Rows of 16 bytes, which lie together as tokens and 24 bytes apart in the cache."""
    cache = np.zeros((1, 4, 2, 4, 1, 24), np.uint8)[..., :16]
    tokens = np.ones((3, 1, 2, 1, 16), np.uint8)
    Kernels(library, SPREAD).reshape_and_cache(tokens, cache, ints(3, 6, 9))
    return cache


def test_rows_that_lie_apart_are_moved_by_what_divides_their_distance(library):
    assert write_shifted(library).sum() == 3 * 2 * 16
    assert library.findings == []


# --- planted faults ------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", of_gate("checked"), ids=lambda f: f.name)
def test_a_planted_fault_is_found_by_watching(fault):
    source = fault.plant()
    library = CheckedLibrary(builds.build_checked(source), source, most_accesses=4_000_000)
    wanted = Wrong[fault.finding]
    decode(library)
    write_shifted(library)
    for seed in range(40 * KINDS):
        if wanted in kinds(library):
            break
        differential.differences(seed, library, conflicts=False)
    assert wanted in kinds(library)


@pytest.mark.parametrize("name", ["no-barrier-before-chunk", "no-barrier-after-weights"])
def test_a_missing_barrier_is_found_with_every_seed(name):
    [fault] = [each for each in all_faults() if each.name == name]
    source = fault.plant()
    built = builds.build_checked(source)
    for seed in range(10):
        library = CheckedLibrary(built, source, seed=seed * 100)
        decode(library)
        assert Wrong.RACE in kinds(library)


# --- launches that are wrong by what they are given ------------------------------------------------


def cache_of(*shape: int):
    return np.zeros((1, *shape), np.uint64)


def tokens_like(cache, count: int, value: int):
    return np.full((count, cache.shape[0], cache.shape[2], *cache.shape[4:]), value, np.uint64)


def test_a_slot_given_twice_is_a_race(library):
    cache = cache_of(4, 2, 4, 1, 4)
    kernels = Kernels(library, Launch(grid=16, block=4))
    assert kernels.reshape_and_cache(tokens_like(cache, 3, 1), cache, ints(5, 6, 5)).conflicts == 1
    assert kinds(library) == {Wrong.RACE}
    assert "unordered with reshape_and_cache_16" in str(library.findings[0])


def test_independent_copies_are_silent(library):
    cache = cache_of(5, 2, 4, 1, 4)
    Kernels(library, SPREAD).copy_blocks(cache, cache, ints(1, 2), ints(3, 4), ints(4, 4))
    assert library.findings == []


def test_a_read_of_what_no_kernel_wrote_is_found_once_it_is_kept(library):
    cache = cache_of(4, 2, 4, 1, 4)
    library.keep(cache)
    kernels = Kernels(library, SPREAD)
    kernels.reshape_and_cache(tokens_like(cache, 2, 1), cache, ints(5, 6))
    read = tokens_like(cache, 1, 0)
    kernels.gather_slots(read, cache, ints(6))
    assert library.findings == []
    kernels.gather_slots(read, cache, ints(7))
    assert kinds(library) == {Wrong.UNINITIALISED}


def test_a_row_that_lies_outside_every_array_is_not_written(library):
    backend = CpuBackend(library, SPREAD)
    memory = np.zeros(64, np.uint64)
    library.watch(memory[:8], True)
    call = backend._prepare("x", "synthesize", {"layers": 1, "heads": 1, "words": 4})
    digests = np.zeros(4, np.uint64)
    library.watch(digests, False)
    start = memory.__array_interface__["data"][0]
    call(SPREAD, key=start, value=start + 256, digests=digests.__array_interface__["data"][0], tokens=4)
    assert kinds(library) == {Wrong.OUT_OF_BOUNDS}
    assert memory[:8].all() and not memory[8:].any()


# --- several launches in flight ----------------------------------------------------------------------


@pytest.mark.parametrize("fault", of_gate("launch"), ids=lambda fault: fault.name)
def test_a_mistaken_launch_is_found_with_every_seed_and_tears_contents(built, fault):
    seen = []
    for seed in range(30):
        library = CheckedLibrary(built, seed=seed)
        seen.append(torn(MISUSES[fault.name](library, True)))
        assert kinds(library) == {Wrong[fault.finding]}
    assert fault.torn and sum(seen) >= 3


@pytest.mark.parametrize("fault", of_gate("launch"), ids=lambda fault: fault.name)
def test_the_same_launch_without_the_mistake_is_silent(built, fault):
    for seed in range(30):
        library = CheckedLibrary(built, seed=seed)
        assert not torn(MISUSES[fault.name](library, False))
        assert library.findings == []


def test_unordered_launches_on_different_blocks_are_silent(built):
    for seed in range(10):
        library = CheckedLibrary(built, seed=seed)
        cache, kernels = cache_of(4, 2, 4, 1, 8), Kernels(library, Launch(grid=8, block=1))
        with library.together():
            kernels.reshape_and_cache(tokens_like(cache, 4, 1), cache, ints(4, 5, 6, 7), watch=False)
            library.on(1)
            kernels.reshape_and_cache(tokens_like(cache, 4, 2), cache, ints(8, 9, 10, 11), watch=False)
        assert (cache[0, 1] == 1).all() and (cache[0, 2] == 2).all()
        assert library.findings == []


def test_launches_of_one_stream_are_ordered(library):
    cache = cache_of(4, 2, 4, 1, 8)
    kernels = Kernels(library, SPREAD)
    with library.together():
        for value in (1, 2, 3):
            kernels.reshape_and_cache(tokens_like(cache, 4, value), cache, ints(4, 5, 6, 7), watch=False)
    assert (cache[0, 1] == 3).all() and library.findings == []


def test_the_backend_hands_out_what_was_found():
    backend = CheckedBackend()
    geometry = Geometry(2, 2, 2)
    cache = backend.new_cache(geometry, 4, 4)
    key, value = backend.synthesize(np.arange(3, dtype=np.uint64), geometry)
    assert backend.reshape_and_cache(key, value, cache, ints(1, 2, -1)).clean
    assert backend.take_findings() == ()
    assert backend.reshape_and_cache(key, value, cache, ints(1, 2, 1)).conflicts == (2,)
    assert {finding.wrong for finding in backend.take_findings()} == {Wrong.RACE}
    assert backend.take_findings() == ()


def test_a_build_that_is_not_watched_is_refused():
    options = tuple(each for each in builds.CHECKED if each != "-fsanitize=thread")
    source = read_source()
    built = builds.build(source, builds.CHECKED_PRELUDE, options, builds.CHECKED_RUNTIME)
    with pytest.raises(builds.BuildError, match="don't arrive"):
        CheckedLibrary(built)


def test_memory_that_is_not_whole_cannot_be_kept(library):
    with pytest.raises(ValueError, match="contiguous"):
        library.keep(cache_of(4, 2, 4, 1, 8)[:, 1:, :1])
