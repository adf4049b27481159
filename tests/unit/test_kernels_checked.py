"""Every access of the device source is watched: it does nothing wrong, and what is planted is found."""

import numpy as np
import pytest

from kvproof.kernels import builds, differential
from kvproof.kernels.backends.checked_backend import CheckedBackend
from kvproof.kernels.backends.cpu_backend import CpuBackend
from kvproof.kernels.backends.source_backend import word_strides
from kvproof.kernels.calls import Kernels
from kvproof.kernels.checked import CheckedLibrary, WatchedMemory, Wrong
from kvproof.kernels.faults import all_faults, of_gate
from kvproof.kernels.layouts import strided
from kvproof.kernels.library import Call, Launch, address
from kvproof.kernels.memory import bounds, own_bytes
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


# --- views of memory ------------------------------------------------------------------------------


def test_blocks_may_be_copied_between_two_views_of_one_pool_that_lie_in_turns(library):
    pool = np.arange(8 * 2 * 4 * 8, dtype=np.uint64).reshape(1, 8, 2, 4, 1, 8)
    wanted = pool.copy()
    wanted[:, 3] = wanted[:, 2]
    Kernels(library, SPREAD).copy_blocks(pool[:, 0::2], pool[:, 1::2], ints(1), ints(1), ints(4))
    assert library.findings == [] and np.array_equal(pool, wanted)


def test_keys_may_be_copied_to_the_values_that_lie_between_them(library):
    cache = np.arange(4 * 4 * 2 * 2 * 8, dtype=np.float32).reshape(1, 4, 4, 2, 2, 8).swapaxes(2, 3)
    wanted = cache.copy()
    wanted[:, 2, 1] = cache[:, 0, 0]
    Kernels(library, SPREAD).copy_blocks(cache[:, :, :1], cache[:, :, 1:], ints(0), ints(2), ints(4))
    assert library.findings == [] and np.array_equal(cache, wanted)


def test_tokens_may_lie_between_the_rows_of_the_cache(library):
    rows = np.arange(16 * 2 * 8, dtype=np.uint64).reshape(8, 2, 1, 2, 1, 8)
    tokens = rows[:, 1]
    cache = rows[:, 0].reshape(2, 4, 1, 2, 1, 8).transpose(2, 0, 3, 1, 4, 5)
    assert np.shares_memory(rows, cache)
    Kernels(library, SPREAD).reshape_and_cache(tokens, cache, np.arange(8)[::-1].copy())
    assert library.findings == [] and np.array_equal(rows[::-1, 0], rows[:, 1])


def own(values):
    low, high = bounds(values)
    mask = own_bytes(values)
    return list(range(high - low)) if mask is None else np.flatnonzero(mask).tolist()


def test_the_bytes_of_a_view_are_its_elements():
    memory = np.zeros((4, 6), np.uint16)
    for view in (
        memory,
        memory.T,
        memory[::-1],
        memory[1:3, ::-2],
        memory[:, 2:3],
        np.broadcast_to(memory[0], (3, 6)),
    ):
        low = bounds(view)[0]
        wanted = {
            address(view[at : at + 1, to : to + 1]) - low + byte
            for at in range(view.shape[0])
            for to in range(view.shape[1])
            for byte in range(2)
        }
        assert own(view) == sorted(wanted)


def test_what_lies_together_has_no_gaps():
    memory = np.zeros((4, 6), np.uint16)
    assert own_bytes(memory) is own_bytes(memory.T) is own_bytes(memory[1:3, ::-1]) is None


def test_a_write_between_the_rows_of_a_view_does_not_happen(library):
    memory = np.zeros((4, 3), np.uint64)
    rows = memory[:, :2]
    digests = np.zeros(5, np.uint64)
    library.watch(digests, False)
    library.watch(rows, True)
    at = address(rows)
    sizes = {"tokens": 5, "layers": 1, "heads": 1, "words": 1}
    Call(library, "synthesize", {"key": at, "value": at + 48, "digests": address(digests), **sizes})(SPREAD)
    assert kinds(library) == {Wrong.OUT_OF_BOUNDS}
    assert rows.all() and not memory[:, 2].any()


# --- what a launch may write -----------------------------------------------------------------------


def overwrite(library, digests):
    """Digests are the kernel's input, and it writes contents over them."""
    values = np.zeros((len(digests), 1), np.uint64)
    library.watch(digests, False)
    library.watch(values, True)
    at = {"digests": address(digests), "key": address(digests), "value": address(values)}
    sizes = {"tokens": len(digests), "layers": 1, "heads": 1, "words": 1}
    Call(library, "synthesize", at | sizes)(Launch())


def test_an_input_is_not_written_though_it_is_kept(library):
    digests = np.zeros(4, np.uint64)
    library.keep(digests, np.ones(4, bool))
    overwrite(library, digests)
    assert kinds(library) == {Wrong.WRITE_TO_CONST} and not digests.any()


def test_an_input_is_not_written_though_another_launch_of_the_group_may(library):
    digests = np.full(4, 7, np.uint64)
    with library.together():
        overwrite(library, digests)
        Kernels(library).zero_blocks(digests.reshape(1, 1, 1, 4, 1, 1), ints(0))
    assert kinds(library) == {Wrong.WRITE_TO_CONST} and not digests.any()
    assert {finding.kernel for finding in library.findings} == {"synthesize"}


def test_a_launch_has_only_what_was_registered_for_it(library):
    words = np.zeros(8, np.uint64)
    library.watch(words, True)
    call = CpuBackend(library)._prepare("x", "synthesize", {"layers": 1, "heads": 1, "words": 1})
    overwrite(library, np.zeros(1, np.uint64))
    library.findings.clear()
    call(Launch(), key=address(words), value=address(words), digests=address(words), tokens=1)
    assert kinds(library) == {Wrong.OUT_OF_BOUNDS}


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


@pytest.mark.parametrize("readers", [1, 3, 5, 8])
def test_a_write_that_awaits_all_readers_but_one_is_found_with_every_seed(built, readers):
    for seed in range(60):
        library = CheckedLibrary(built, seed=seed)
        read_and_load(library, readers, awaited=readers - 1)
        assert kinds(library) == {Wrong.RACE}


def test_a_write_that_awaits_all_readers_is_silent(built):
    for seed in range(20):
        library = CheckedLibrary(built, seed=seed)
        read_and_load(library, 8, awaited=8)
        assert library.findings == []


def read_and_load(library, readers: int, awaited: int):
    """Streams read a block, and one loads it that awaits the last of them."""
    cache, host, kernels = cache_of(4, 2, 4, 1, 8), cache_of(4, 2, 4, 1, 8), Kernels(library, SPREAD)
    events = []
    with library.together():
        for stream in range(readers):
            library.on(stream)
            kernels.gather_slots(tokens_like(cache, 4, 0), cache, ints(4, 5, 6, 7))
            events.append(library.record())
        library.on(readers)
        for event in events[readers - awaited :]:
            library.wait(event)
        kernels.copy_blocks(host, cache, ints(0), ints(1), ints(4))


@pytest.mark.parametrize("adders", [1, 2, 4])
def test_a_plain_write_that_awaits_all_atomic_adders_but_one_is_found_with_every_seed(built, adders):
    for seed in range(60):
        library = CheckedLibrary(built, seed=seed)
        add_and_zero(library, adders, awaited=adders - 1)
        assert kinds(library) == {Wrong.RACE}


def test_a_plain_write_that_awaits_all_atomic_adders_is_silent(built):
    for seed in range(20):
        library = CheckedLibrary(built, seed=seed)
        add_and_zero(library, 4, awaited=4)
        assert library.findings == []


def add_and_zero(library, adders: int, awaited: int):
    """Streams add to the same sums, and one zeroes them that awaits the last of the others."""
    cache, sums = cache_of(2, 2, 4, 1, 4), np.zeros((1, 1, 2), np.uint64)
    values = {"cache": cache, "blocks": ints(1), "starts": ints(0), "ends": ints(4), "digests": sums}
    values["errors"] = np.zeros(2, np.uint64)
    places = {name: address(each) for name, each in values.items()}
    events = []
    with library.together():
        for stream in range(adders):
            library.on(stream)
            for name, each in values.items():
                library.watch(each, name in ("digests", "errors"))
            Call(library, "fingerprint_blocks", places | {"count": 1} | word_strides(strided(cache, 0)))(
                SPREAD
            )
            events.append(library.record())
        library.on(adders)
        for event in events[adders - awaited :]:
            library.wait(event)
        Kernels(library).zero_blocks(sums.reshape(1, 1, 1, 2, 1, 1), ints(0))


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


def test_an_array_for_a_kernel_to_fill_is_unwritten_until_it_has(library):
    cache = cache_of(4, 2, 4, 1, 4)
    read = WatchedMemory(library).empty((2, 1, 2, 1, 4), np.uint64)
    kernels = Kernels(library, SPREAD)
    kernels.gather_slots(read, cache, ints(5, -1))
    kernels.reshape_and_cache(read[:1], cache, ints(3))
    assert library.findings == []
    kernels.reshape_and_cache(read[1:], cache, ints(2))
    assert kinds(library) == {Wrong.UNINITIALISED}


def test_what_is_kept_is_forgotten_with_its_memory(library):
    memory = WatchedMemory(library)
    kept = [memory.empty((4,), np.uint64) for _ in range(3)]
    library.keep(cache_of(4, 2, 4, 1, 8)[0, 1])
    assert len(library._kept) == 3
    del kept
    assert not library._kept


def test_memory_that_is_not_whole_cannot_be_kept(library):
    with pytest.raises(ValueError, match="contiguous"):
        library.keep(cache_of(4, 2, 4, 1, 8)[:, 1:, :1])
