"""The numpy kernels: every slot is written, read, checked and mapped as by a loop over tokens."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvproof.kernels import twins, words
from kvproof.kernels.backends.base import CLEAN, Report, SlotError
from kvproof.kernels.backends.numpy_backend import NumpyBackend
from kvproof.kernels.words import Geometry

BACKEND = NumpyBackend()
GEOMETRY = Geometry(layers=2, heads=3, words=2)
BLOCKS, SIZE = 5, 4


def ints(*values: int):
    return np.array(values, np.int64)


def digests(*values: int):
    return np.array(values, np.uint64)


def fresh():
    return BACKEND.new_cache(GEOMETRY, BLOCKS, SIZE)


def write(cache, slots, values):
    key, value = BACKEND.synthesize(digests(*values), GEOMETRY)
    return BACKEND.reshape_and_cache(key, value, cache, ints(*slots))


def written_by_loop(cache, slots, values):
    key, value = BACKEND.synthesize(digests(*values), GEOMETRY)
    for i, slot in enumerate(slots):
        if 0 <= slot < BLOCKS * SIZE:
            cache[:, slot // SIZE, 0, slot % SIZE] = key[i]
            cache[:, slot // SIZE, 1, slot % SIZE] = value[i]
    return cache


def test_a_new_cache_is_poison():
    assert fresh().shape == (2, BLOCKS, 2, SIZE, 3, 2)
    assert set(fresh().tobytes()) == {0xFF}


@given(st.lists(st.integers(-3, BLOCKS * SIZE + 2), max_size=12))
def test_a_write_equals_a_loop_over_tokens_and_reports_what_is_wrong(slots):
    cache = fresh()
    report = write(cache, slots, range(100, 100 + len(slots)))
    assert (cache == written_by_loop(fresh(), slots, range(100, 100 + len(slots)))).all()
    outside = tuple(i for i, slot in enumerate(slots) if slot < -1 or slot >= BLOCKS * SIZE)
    inside = [(i, slot) for i, slot in enumerate(slots) if 0 <= slot < BLOCKS * SIZE]
    assert report == Report(outside, tuple(i for i, slot in inside if slot in slots[:i]))
    assert report.clean == (report == CLEAN)


@pytest.mark.parametrize("slot", [-1, -2, BLOCKS * SIZE, 2**40])
def test_padding_and_slots_outside_touch_nothing(slot):
    cache = fresh()
    report = write(cache, [slot], [7])
    assert (cache == fresh()).all()
    assert report.clean == (slot == -1)


def test_a_duplicate_slot_is_reported():
    assert write(fresh(), [5, 6, 5], [1, 2, 3]) == Report(conflicts=(2,))


def test_a_write_of_nothing_is_nothing():
    assert write(fresh(), [], []) == CLEAN
    with pytest.raises(ValueError, match="2 slots for 1 keys"):
        write(fresh(), [1, 2], [1])


def test_a_view_of_some_blocks_is_refused():
    with pytest.raises(ValueError, match="contiguous"):
        write(fresh()[:, 1:], [1], [1])


def test_one_layer_is_written_as_part_of_all():
    whole, single = fresh(), BACKEND.new_cache(Geometry(1, 3, 2), BLOCKS, SIZE)
    write(whole, [9, 4], [1, 2])
    key, value = BACKEND.synthesize(digests(1, 2), GEOMETRY)
    BACKEND.reshape_and_cache(key[:, :1], value[:, :1], single, ints(9, 4))
    assert (single[0] == whole[0]).all()


@given(st.lists(st.integers(0, BLOCKS * SIZE - 1), max_size=8, unique=True))
def test_gather_reads_what_was_written(slots):
    cache = fresh()
    write(cache, slots, range(len(slots)))
    key, value = BACKEND.gather(cache, ints(*slots))
    wanted = BACKEND.synthesize(digests(*range(len(slots))), GEOMETRY)
    assert (key == wanted[0]).all() and (value == wanted[1]).all()


@pytest.mark.parametrize("slot", [-1, BLOCKS * SIZE])
def test_a_read_outside_is_refused(slot):
    with pytest.raises(SlotError):
        BACKEND.gather(fresh(), ints(0, slot))


def test_verify_counts_the_wrong_words_of_each_layer():
    cache = fresh()
    write(cache, [4, 5, 6], [10, 11, 12])
    cache[1, 1, 0, 1, 2, 0] ^= 1
    cache[1, 1, 1, 1, 0, 1] = 0
    counts = BACKEND.verify_blocks(cache, ints(1, 1, 1, 2), ints(0, 1, 2, 0), digests(10, 11, 99, 13))
    all_words = 2 * 3 * 2
    assert counts.tolist() == [[0, 0, all_words, all_words], [0, 2, all_words, all_words]]


def test_verify_of_right_contents_counts_nothing():
    cache = fresh()
    write(cache, [4, 5], [10, 11])
    assert not BACKEND.verify_blocks(cache, ints(1, 1), ints(0, 1), digests(10, 11)).any()


@pytest.mark.parametrize(("block", "offset"), [(-1, 0), (BLOCKS, 0), (0, SIZE), (1, -1)])
def test_a_check_outside_is_refused(block, offset):
    with pytest.raises(SlotError):
        BACKEND.verify_blocks(fresh(), ints(block), ints(offset), digests(1))


def test_a_copy_takes_the_first_tokens_of_every_layer():
    cache = fresh()
    write(cache, [4, 5, 6], [10, 11, 12])
    assert BACKEND.copy_blocks(cache, ints(1), ints(3), ints(2)) == CLEAN
    counts = BACKEND.verify_blocks(cache, ints(3, 3), ints(0, 1), digests(10, 11))
    assert not counts.any()
    assert (cache[:, 3, :, 2:] == words.POISON).all()


def test_dependent_and_outside_copies_are_reported():
    chain = BACKEND.copy_blocks(fresh(), ints(1, 2), ints(2, 3), ints(1, 1))
    assert chain == Report(conflicts=(1,))
    same_target = BACKEND.copy_blocks(fresh(), ints(1, 2), ints(3, 3), ints(1, 1))
    assert same_target == Report(conflicts=(0, 1))
    assert BACKEND.copy_blocks(fresh(), ints(1, 9, 1), ints(2, 3, 4), ints(1, 1, 5)) == Report((1, 2))


rows_of_blocks = st.lists(st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=4), min_size=1, max_size=4)


@given(rows_of_blocks, st.integers(1, 32), st.data())
def test_slot_mapping_equals_the_formula_without_overflow(rows, block_size, data):
    table = np.zeros((len(rows), 4), np.int32)
    for i, row in enumerate(rows):
        table[i, : len(row)] = row
    lengths = np.array([len(row) for row in rows], np.int32)
    places = [
        (row, data.draw(st.integers(0, len(rows[row]) * block_size - 1)) if row >= 0 else 0)
        for row in data.draw(st.lists(st.integers(-1, len(rows) - 1), max_size=8))
    ]
    slots = BACKEND.compute_slot_mapping(
        table, lengths, ints(*(row for row, _ in places)), ints(*(p for _, p in places)), block_size
    )
    assert slots.tolist() == [
        rows[row][p // block_size] * block_size + p % block_size if row >= 0 else -1 for row, p in places
    ]


@pytest.mark.parametrize(("row", "position"), [(0, 8), (0, -1), (2, 0), (-2, 0)])
def test_a_mapping_outside_the_table_is_refused(row, position):
    table = np.array([[3, 4, 0], [5, 0, 0]], np.int32)
    with pytest.raises(SlotError):
        BACKEND.compute_slot_mapping(table, np.array([2, 1], np.int32), ints(row), ints(position), 4)


# --- fingerprints -----------------------------------------------------------------------------------


def test_fingerprints_are_those_of_the_plain_twin_for_any_range():
    cache = BACKEND.new_cache(Geometry(2, 2, 3), 4, 5)
    cache[:] = np.random.default_rng(1).integers(0, 2**64, cache.shape, np.uint64)
    blocks, starts, ends = (np.array(each) for each in ([3, 0, 3, 2], [0, 1, 2, 4], [5, 4, 2, 5]))
    found = BACKEND.fingerprint_blocks(cache, blocks, starts, ends)
    for layer in range(2):
        for i, (block, start, end) in enumerate(zip(blocks, starts, ends, strict=True)):
            assert tuple(found[layer, i].tolist()) == twins.fingerprint(cache[layer, block], start, end)
    assert (found[:, 2] == 0).all() and (found[:, :2] != 0).all()


@pytest.mark.parametrize(("block", "start", "end"), [(4, 0, 1), (-1, 0, 1), (1, -1, 1), (1, 0, 6)])
def test_a_fingerprint_of_tokens_that_the_cache_does_not_have_is_refused(block, start, end):
    cache = BACKEND.new_cache(Geometry(1, 1, 1), 4, 5)
    with pytest.raises(SlotError):
        BACKEND.fingerprint_blocks(cache, np.array([block]), np.array([start]), np.array([end]))
