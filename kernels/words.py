"""Claim digests and the contents that are made from them.

A claim's digest is 64 bits; a cache word is a bijection of it, different at every place of a
token. So equal claims have equal contents wherever they lie, and one wrong word names the
claim that was written. The digest is only what is written: claims themselves are exact.
"""

from collections.abc import Iterable
from functools import lru_cache
from hashlib import blake2b
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint64]

MASK: Final = 2**64 - 1
POISON: Final = MASK
"""What a word holds before anything was written: every byte is 0xFF."""

# The finalizer of splitmix64.
MIX_A: Final = 0xBF58476D1CE4E5B9
MIX_B: Final = 0x94D049BB133111EB
UNMIX_A: Final = pow(MIX_A, -1, 2**64)
UNMIX_B: Final = pow(MIX_B, -1, 2**64)

CHAIN: Final = 0x9E3779B97F4A7C15
PLACE: Final = 0xD1B54A32D192ED03
# mix64(0) is 0: without this summand a zeroed word is the right content of some digest.
OFFSET: Final = 0x8CB92BA72F3D8DD7


class Geometry(NamedTuple):
    """A token's contents: key and value of `heads` heads with `words` words each, in every layer."""

    layers: int
    heads: int
    words: int


def mix64(value: int) -> int:
    """A bijection of the 64-bit words that spreads every bit."""
    value = (value ^ value >> 30) * MIX_A & MASK
    value = (value ^ value >> 27) * MIX_B & MASK
    return value ^ value >> 31


def unmix64(value: int) -> int:
    """The inverse of `mix64`."""
    value = (value ^ value >> 31 ^ value >> 62) * UNMIX_B & MASK
    value = (value ^ value >> 27 ^ value >> 54) * UNMIX_A & MASK
    return value ^ value >> 30 ^ value >> 60


def _constant(value: int) -> Words:
    # An array of no dimension is cheaper in numpy's functions than a scalar.
    return np.array(value, np.uint64)


_S27, _S30, _S31 = _constant(27), _constant(30), _constant(31)
_S54, _S60, _S62 = _constant(54), _constant(60), _constant(62)
_MIX_A, _MIX_B, _OFFSET = _constant(MIX_A), _constant(MIX_B), _constant(OFFSET)
_UNMIX_A, _UNMIX_B = _constant(UNMIX_A), _constant(UNMIX_B)


def mix64_array(values: Words) -> Words:
    """`mix64` of every element, as a new array."""
    mixed: Words = np.right_shift(values, _S30)
    np.bitwise_xor(mixed, values, out=mixed)
    np.multiply(mixed, _MIX_A, out=mixed)
    shifted = np.right_shift(mixed, _S27)
    np.bitwise_xor(mixed, shifted, out=mixed)
    np.multiply(mixed, _MIX_B, out=mixed)
    np.right_shift(mixed, _S31, out=shifted)
    np.bitwise_xor(mixed, shifted, out=mixed)
    return mixed


def unmix64_array(values: Words) -> Words:
    """`unmix64` of every element, as a new array."""
    mixed: Words = (values ^ values >> _S31 ^ values >> _S62) * _UNMIX_B
    mixed = (mixed ^ mixed >> _S27 ^ mixed >> _S54) * _UNMIX_A
    mixed = mixed ^ mixed >> _S30 ^ mixed >> _S60
    return mixed


def _blake(data: bytes, purpose: bytes) -> int:
    return int.from_bytes(blake2b(data, digest_size=8, person=purpose).digest(), "little")


def root_digest(data: bytes) -> int:
    """Where a chain starts: the digest of everything that a whole request's contents depend on."""
    return mix64(_blake(data, b"root"))


def extra_digest(data: bytes) -> int:
    """The digest of what a position depends on besides its token; 0 stands for nothing."""
    return _blake(data, b"extra")


@lru_cache(maxsize=65_536)
def _token_part(token: int) -> int:
    return mix64((token + 1) & MASK)


@lru_cache(maxsize=65_536)
def _extra_part(extra: int) -> int:
    return 3 * mix64((extra + 7) & MASK)


def extend(digest: int, token: int, extra: int = 0) -> int:
    """The digest of a position, from that of the position before it (a root's for the first)."""
    return mix64((digest * CHAIN + _token_part(token) + _extra_part(extra)) & MASK)


def chain(root: int, tokens: Iterable[int], extras: Iterable[int]) -> list[int]:
    """The digest of every position of a sequence."""
    digests = []
    for token, extra in zip(tokens, extras, strict=True):
        root = extend(root, token, extra)
        digests.append(root)
    return digests


def place_key(layer: int, kv: int, head: int, word: int) -> int:
    """What distinguishes a word's place inside a token: `kv` is 0 for the key and 1 for the value.

    Different for all places with fewer than 4,096 heads and 65,536 words.
    """
    return (((layer * 2 + kv) << 12 | head) << 16 | word) * PLACE & MASK


def word_of(digest: int, layer: int, kv: int, head: int, word: int) -> int:
    """The content of one place of a token."""
    return mix64(((digest ^ place_key(layer, kv, head, word)) + OFFSET) & MASK)


def recover(content: int, layer: int, kv: int, head: int, word: int) -> int:
    """The digest whose content this would be at this place: the inverse of `word_of`."""
    return ((unmix64(content) - OFFSET) & MASK) ^ place_key(layer, kv, head, word)


def check_geometry(geometry: Geometry) -> None:
    """Raises `ValueError` for a geometry whose places would not be told apart."""
    if min(geometry) < 1 or geometry.heads > 2**12 or geometry.words > 2**16:
        raise ValueError(f"a geometry has 1 or more layers, 1–4096 heads and 1–65536 words, not {geometry}.")


@lru_cache(maxsize=64)
def place_keys(geometry: Geometry) -> Words:
    """`place_key` of every place of a token, `[2, 1, layers, heads, words]`; not to be written."""
    layers, heads, words = geometry
    check_geometry(geometry)
    keys = [
        place_key(layer, kv, head, word)
        for kv in range(2)
        for layer in range(layers)
        for head in range(heads)
        for word in range(words)
    ]
    table = np.array(keys, np.uint64).reshape(2, 1, layers, heads, words)
    table.flags.writeable = False
    return table


def contents(digests: Words, geometry: Geometry) -> Words:
    """The contents of `n` tokens, `[2, n, layers, heads, words]`: first all keys, then all values."""
    places = np.bitwise_xor(place_keys(geometry), digests.reshape(1, -1, 1, 1, 1))
    return mix64_array(np.add(places, _OFFSET, out=places))


def recover_array(words: Words, geometry: Geometry) -> Words:
    """`recover` for all words of `n` tokens in the shape of `contents`."""
    return (unmix64_array(words) - _OFFSET) ^ place_keys(geometry)
