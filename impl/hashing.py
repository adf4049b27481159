"""Keys of full blocks: a digest chain over a canonical encoding of the claim (REQ-3.1, 3.2).

`root = H(format, adapter, salt)`, `key[i] = H(key[i−1], or root ‖ tokens of block i ‖ its
extras)`. A block has exactly `block_size` tokens of eight bytes, little-endian; every other
field carries a tag and its length. So different inputs have different encodings, and keys
are the same in every process.
"""

import hashlib
import sys
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final, Protocol

from kvproof.impl import arithmetic
from kvproof.impl.errors import InvalidCount, UnknownHash

FORMAT: Final = "kvproof block key 1"
TOKEN_BYTES: Final = 8

AdapterId = tuple[str, int, str]
"""Identity of a LoRA adapter: name, id, path."""
ItemSpan = tuple[str, int, int]
"""A multimodal item: identity, first position, number of positions."""
EmbeddingAt = tuple[int, int]
"""A prompt embedding: position, content id."""


class Digest(Protocol):
    """What a hash function returns."""

    def digest(self) -> bytes: ...


class WeakDigest:
    """A hash of three bits, so that tests meet collisions."""

    def __init__(self, data: bytes) -> None:
        self._value = hashlib.sha256(data).digest()[0] & 7

    def digest(self) -> bytes:
        return bytes((self._value,))


def hash_function(name: str, digest_size: int = 32) -> Callable[[bytes], Digest]:
    """The hash called `name`: sha256 (the default), blake2b of 16 or 32 bytes, weak (tests only)."""
    match name, digest_size:
        case "sha256", 32:
            return hashlib.sha256
        case "blake2b", 16 | 32:
            return partial(hashlib.blake2b, digest_size=digest_size)
        case "weak", _:
            return WeakDigest
    raise UnknownHash(name, digest_size)


def field(tag: bytes, value: str | int) -> bytes:
    """A tagged field with its length in front. Numbers are written in decimal."""
    data = str(value).encode("utf-8", "surrogatepass")
    return b"%b%d:%b," % (tag, len(data), data)


def fields(tags: bytes, values: Sequence[str | int]) -> bytes:
    """One field per value; the tags are single letters."""
    return b"".join(field(tags[i : i + 1], value) for i, value in enumerate(values))


class BlockHasher:
    """Computes the keys of one block size with one hash function. Has no state of its own."""

    def __init__(self, name: str, block_size: int, digest_size: int = 32) -> None:
        if block_size < 1:
            raise InvalidCount("the block size", block_size, "at least 1")
        self.block_size = block_size
        self.stride = block_size * TOKEN_BYTES
        self.function = hash_function(name, digest_size)
        self._format = fields(b"fhdb", (FORMAT, name, digest_size, block_size))

    def root(self, adapter: AdapterId | None, cache_salt: str) -> bytes:
        """What the first block's key is chained to."""
        identity = fields(b"nip", adapter) if adapter is not None else b"-"
        return self.function(self._format + identity + field(b"s", cache_salt)).digest()

    def block_extras(self, items: Sequence[ItemSpan], embeddings: Sequence[EmbeddingAt]) -> dict[int, bytes]:
        """The encoded extras of the blocks that have any, by logical index."""
        extras: dict[int, bytes] = {}
        for index, data in self._item_parts(items):
            extras[index] = extras.get(index, b"") + data
        for position, content in embeddings:
            index = arithmetic.block_index(position, self.block_size)
            offset = arithmetic.block_offset(position, self.block_size)
            extras[index] = extras.get(index, b"") + fields(b"ec", (offset, content))
        return extras

    def _item_parts(self, items: Sequence[ItemSpan]) -> Iterator[tuple[int, bytes]]:
        """Items cut at block ends: identity, first place in the block, offset in the item, positions."""
        for identity, start, length in items:
            position, end = start, start + length
            while position < end:
                index = arithmetic.block_index(position, self.block_size)
                offset = arithmetic.block_offset(position, self.block_size)
                count = arithmetic.positions_in_block(position, end, self.block_size)
                yield index, fields(b"mpol", (identity, offset, position - start, count))
                position += count

    def extend(
        self, hashes: list[bytes], root: bytes, tokens: "array[int]", extras: Mapping[int, bytes]
    ) -> None:
        """Append the keys of all full blocks of `tokens` that `hashes` lacks."""
        first = len(hashes)
        last = arithmetic.full_blocks(len(tokens), self.block_size)
        data = little_endian(tokens[first * self.block_size : last * self.block_size])
        parent = hashes[-1] if hashes else root
        function, stride = self.function, self.stride
        if not extras:
            for start in range(0, len(data), stride):
                parent = function(parent + data[start : start + stride]).digest()
                hashes.append(parent)
            return
        for index in range(first, last):
            start = (index - first) * stride
            parent = function(parent + data[start : start + stride] + extras.get(index, b"")).digest()
            hashes.append(parent)


def little_endian(tokens: "array[int]") -> bytes:
    """The tokens as eight bytes each. The array is a copy and may be swapped."""
    assert tokens.typecode == "q" and tokens.itemsize == TOKEN_BYTES, "tokens are 64-bit integers"
    if sys.byteorder == "big":
        tokens.byteswap()
    return tokens.tobytes()
