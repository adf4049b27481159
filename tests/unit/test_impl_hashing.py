"""Keys: canonical, injective, incremental."""

import hashlib
import subprocess
import sys
from array import array
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvproof.impl.errors import InvalidCount, InvalidExtras, UnknownHash
from kvproof.impl.hashing import BlockHasher, little_endian
from kvproof.impl.request import Request

SHA = BlockHasher("sha256", 4)


def keys(tokens=range(8), *, hasher=SHA, **extras: Any):
    return Request("r", tokens, hasher=hasher, max_tokens=100, **extras).block_hashes


def test_digests_are_pinned():
    everything = {
        "adapter": ("name", 7, "/path"),
        "cache_salt": "salt",
        "items": (("image", 2, 4),),
        "embeddings": ((6, 11),),
    }
    assert [key.hex()[:16] for key in keys()] == ["53f5ddc126b4f80e", "76c0ab8331456bdf"]
    assert [key.hex()[:16] for key in keys(**everything)] == ["13e59fa9b0e7a9ce", "e58e2d07f0620cc8"]
    assert [key.hex()[:16] for key in keys(hasher=BlockHasher("blake2b", 4))] == [
        "f413bab617c5b725",
        "68627044585cb542",
    ]
    assert [key.hex() for key in keys(hasher=BlockHasher("weak", 4))] == ["04", "06"]


def test_the_encoding_is_what_the_docstring_says():
    root = b"f19:kvproof block key 1,h6:sha256,d2:32,b1:4,n1:a,i1:1,p1:b,s2:cd,"
    tokens = b"".join(token.to_bytes(8, "little") for token in range(4))
    first = hashlib.sha256(hashlib.sha256(root).digest() + tokens + b"m1:x,p1:1,o1:0,l1:3,").digest()
    assert keys(range(4), adapter=("a", 1, "b"), cache_salt="cd", items=(("x", 1, 3),)) == [first]


def test_keys_are_the_same_in_another_process():
    code = (
        "from kvproof.impl.hashing import BlockHasher; from kvproof.impl.request import Request;"
        "r = Request('r', range(8), hasher=BlockHasher('sha256', 4), max_tokens=9, cache_salt='ä');"
        "print([key.hex() for key in r.block_hashes])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.strip() == str([key.hex() for key in keys(cache_salt="ä")])


DIFFERENT: dict[str, dict[str, Any]] = {
    "nothing": {},
    "salt": {"cache_salt": "X"},
    "adapter name": {"adapter": ("X", 0, "")},
    "adapter path": {"adapter": ("", 0, "X")},
    "adapter without text": {"adapter": ("", 0, "")},
    "adapter number": {"adapter": ("", 1, "")},
    "adapter name, path": {"adapter": ("X", 0, "Y")},
    "adapter name with path": {"adapter": ("XY", 0, "")},
    "adapter, salt": {"adapter": ("X", 0, ""), "cache_salt": "X"},
    "text like an encoding": {"cache_salt": "X,n1:X"},
    "lone surrogate": {"cache_salt": "\ud800"},
    "item": {"items": (("X", 0, 1),)},
    "longer item": {"items": (("X", 0, 2),)},
    "later item": {"items": (("X", 1, 1),)},
    "two items": {"items": (("X", 0, 1), ("X", 1, 1))},
    "items split late": {"items": (("X", 0, 3), ("X", 3, 1))},
    "items split early": {"items": (("X", 0, 1), ("X", 1, 3))},
    "text of two items": {"items": (("XX", 0, 1),)},
    "embedding": {"embeddings": ((0, 1),)},
    "other embedding": {"embeddings": ((0, 2),)},
    "later embedding": {"embeddings": ((1, 1),)},
    "negative embedding": {"embeddings": ((0, -1),)},
}


def test_different_inputs_have_different_keys():
    first = {name: keys(range(4), **extras)[0] for name, extras in DIFFERENT.items()}
    for one, other in combinations(first, 2):
        assert first[one] != first[other], (one, other)


def test_an_embedding_is_no_token():
    assert keys([5, 1, 2, 3]) != keys([0, 1, 2, 3], embeddings=((0, 5),))


def test_keys_of_another_block_size_or_hash_differ():
    assert keys(range(4))[0] != keys(range(8), hasher=BlockHasher("sha256", 8))[0]
    both = [BlockHasher("blake2b", 4, size).root(None, "") for size in (16, 32)]
    assert [len(root) for root in both] == [16, 32] and both[0] != both[1][:16]


def test_an_item_that_ends_at_a_block_start_leaves_that_block_alone():
    plain, item = SHA.block_extras((), ()), SHA.block_extras((("x", 1, 3),), ())
    assert plain == {} and list(item) == [0]
    assert list(SHA.block_extras((("x", 1, 4),), ())) == [0, 1]
    assert list(SHA.block_extras((("x", 4, 4),), ())) == [1]


def test_a_block_knows_where_in_the_item_it_stands():
    """Two long items of one identity, cut at different places, in blocks of equal tokens."""
    one = Request("a", [9] * 12, hasher=SHA, max_tokens=12, items=(("x", 0, 12),))
    extras = SHA.block_extras((("x", 0, 12),), ())
    assert len(set(extras.values())) == 3
    assert len(set(one.block_hashes)) == 3


def test_a_key_depends_on_the_whole_prefix():
    assert keys([1, *range(1, 8)])[1] != keys([2, *range(1, 8)])[1]
    assert keys(range(8))[0] == keys(range(5))[0]


tokens = st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=30)


@given(
    tokens=tokens,
    cuts=st.lists(st.integers(1, 30)),
    size=st.integers(1, 5),
    items=st.lists(st.tuples(st.integers(0, 6), st.integers(1, 9)), max_size=3),
)
def test_incremental_keys_equal_fresh_ones(tokens, cuts, size, items):
    hasher, spans, end = BlockHasher("sha256", size), [], 0
    for gap, length in items:
        spans.append(("x", end + gap, length))
        end += gap + length
    fresh = Request("r", tokens, hasher=hasher, max_tokens=30, items=spans, embeddings=((0, 1),))
    grown = Request("r", tokens[:1], hasher=hasher, max_tokens=30, items=spans, embeddings=((0, 1),))
    at = 1
    for cut in [*cuts, 30]:
        grown.append_tokens(tokens[at : at + cut])
        at += cut
    assert grown.block_hashes == fresh.block_hashes
    assert len(fresh.block_hashes) == len(tokens) // size


def test_given_keys_are_taken_and_extended():
    given_keys = keys(range(8))
    again = Request("r", range(8), hasher=SHA, max_tokens=20, block_hashes=given_keys)
    assert again.block_hashes == given_keys and again.block_hashes is not given_keys
    again.append_tokens(range(8, 12))
    assert again.block_hashes == keys(range(12))
    with pytest.raises(InvalidCount):
        Request("r", range(4), hasher=SHA, max_tokens=20, block_hashes=given_keys)


def test_tokens_are_little_endian_on_every_host(monkeypatch):
    assert little_endian(array("q", [1])) == bytes([1, 0, 0, 0, 0, 0, 0, 0])
    monkeypatch.setattr(sys, "byteorder", "big")
    assert little_endian(array("q", [1])) == bytes([0, 0, 0, 0, 0, 0, 0, 1])


def test_a_request_without_hasher_has_no_keys():
    request = Request("r", range(8), hasher=None, max_tokens=20)
    request.append_tokens(range(8))
    assert request.block_hashes == []


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"tokens": []}, InvalidCount),
        ({"tokens": range(101)}, InvalidCount),
        ({"items": (("x", 0, 0),)}, InvalidExtras),
        ({"items": (("x", -1, 2),)}, InvalidExtras),
        ({"items": (("x", 0, 2), ("y", 1, 2))}, InvalidExtras),
        ({"embeddings": ((-1, 2),)}, InvalidExtras),
        ({"embeddings": ((1, 2), (1, 2))}, InvalidExtras),
    ],
)
def test_contradictory_inputs_are_refused(arguments, error):
    with pytest.raises(error):
        keys(**arguments)


@pytest.mark.parametrize(("name", "digest"), [("md5", 32), ("sha256", 16), ("blake2b", 8)])
def test_an_unknown_hash_is_refused(name, digest):
    with pytest.raises(UnknownHash):
        BlockHasher(name, 4, digest)


def test_a_block_has_a_size():
    with pytest.raises(InvalidCount):
        BlockHasher("sha256", 0)


def test_refused_tokens_change_nothing():
    request = Request("r", range(8), hasher=SHA, max_tokens=10)
    request.num_pending_tokens = 1
    refused: list[tuple[list[Any], type[Exception]]] = [
        ([1, 2, 3], InvalidCount),
        ([1, "x"], TypeError),
        ([1, 1 << 63], OverflowError),
    ]
    for ids, error in refused:
        with pytest.raises(error):
            request.append_tokens(ids)
        assert (request.num_tokens, request.num_pending_tokens, len(request.tokens)) == (8, 1, 8)
    request.append_tokens([])
    assert request.num_pending_tokens == 1
    request.append_tokens([1])
    assert (request.num_tokens, request.num_pending_tokens) == (9, 0)
