"""Claim digests and contents: bijective, separated by place and field, equal in all forms."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvproof.kernels import words
from kvproof.kernels.words import Geometry

word64 = st.integers(0, 2**64 - 1)
GEOMETRY = Geometry(layers=3, heads=2, words=4)
PLACES = [
    (layer, kv, head, word) for layer in range(3) for kv in range(2) for head in range(2) for word in range(4)
]


@given(word64)
def test_unmix_inverts_mix_both_ways(value):
    assert words.unmix64(words.mix64(value)) == value
    assert words.mix64(words.unmix64(value)) == value


@given(st.lists(word64))
def test_arrays_mix_as_integers_do(values):
    array = np.array(values, np.uint64)
    assert words.mix64_array(array).tolist() == [words.mix64(value) for value in values]
    assert words.unmix64_array(array).tolist() == [words.unmix64(value) for value in values]
    assert array.tolist() == values


def test_mixing_is_that_of_splitmix64():
    # The first outputs of splitmix64 with seed 0, as published with its reference code.
    steps = [words.CHAIN * i & words.MASK for i in (1, 2, 3)]
    assert [words.mix64(step) for step in steps] == [
        0xE220A8397B1DCDAF,
        0x6E789E6AA1B965F4,
        0x06C45D188009454F,
    ]


def test_a_single_bit_changes_about_half_of_all_bits():
    flips = [(words.mix64(12345) ^ words.mix64(12345 ^ 1 << bit)).bit_count() for bit in range(64)]
    assert 28 < sum(flips) / 64 < 36


@given(word64, st.sampled_from(PLACES))
def test_a_word_names_its_writer(digest, place):
    assert words.recover(words.word_of(digest, *place), *place) == digest


@given(st.lists(word64, max_size=5))
def test_contents_are_the_single_words(digests):
    contents = words.contents(np.array(digests, np.uint64), GEOMETRY)
    assert contents.shape == (2, len(digests), 3, 2, 4)
    for token, digest in enumerate(digests):
        for layer, kv, head, word in PLACES:
            assert contents[kv, token, layer, head, word] == words.word_of(digest, layer, kv, head, word)
    recovered = words.recover_array(contents, GEOMETRY)
    assert all((recovered[:, token] == digest).all() for token, digest in enumerate(digests))


def test_places_of_a_token_differ():
    contents = words.contents(np.array([7], np.uint64), Geometry(4, 8, 16))
    assert len(np.unique(contents)) == contents.size


def test_place_keys_stay_apart_up_to_the_stated_limits():
    corners = itertools.product((0, 1, 63), (0, 1), (0, 1, 4095), (0, 1, 65535))
    keys = [words.place_key(*place) for place in corners]
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize("geometry", [(0, 1, 1), (1, 4097, 1), (1, 1, 65537)])
def test_a_geometry_beyond_the_limits_is_refused(geometry):
    with pytest.raises(ValueError, match="geometry"):
        words.place_keys(Geometry(*geometry))


def test_neither_zero_nor_poison_is_the_content_of_a_plain_digest():
    for digest in (0, words.MASK, words.root_digest(b"")):
        contents = words.contents(np.array([digest], np.uint64), GEOMETRY)
        assert not (contents == 0).any()
        assert not (contents == words.POISON).any()


def test_without_the_offset_a_zeroed_word_would_be_accepted():
    # The control: digest 0 at place 0 would demand mix64(0), which is 0.
    assert words.mix64(0 ^ words.place_key(0, 0, 0, 0)) == 0
    assert words.word_of(0, 0, 0, 0, 0) != 0


def test_a_chain_depends_on_root_order_token_and_extra():
    root = words.root_digest(b"r")
    base = words.chain(root, [1, 2, 3], [0, 0, 0])
    assert words.chain(root, [1, 2, 3], [0, 0, 0]) == base
    assert base[0] == words.extend(root, 1)
    others = [
        words.chain(words.root_digest(b"s"), [1, 2, 3], [0, 0, 0]),
        words.chain(root, [2, 1, 3], [0, 0, 0]),
        words.chain(root, [1, 2, 4], [0, 0, 0]),
        words.chain(root, [1, 2, 3], [0, 0, words.extra_digest(b"x")]),
    ]
    assert len({chain[-1] for chain in [base, *others]}) == 5
    with pytest.raises(ValueError, match="shorter"):
        words.chain(root, [1, 2], [0])


def test_the_unknown_token_is_a_token_of_its_own():
    root = words.root_digest(b"r")
    assert len({words.extend(root, token) for token in (-1, 0, 1)}) == 3


def test_root_and_extra_digests_are_of_different_kinds():
    assert words.root_digest(b"x") != words.mix64(words.extra_digest(b"x"))
