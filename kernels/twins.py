"""Plain versions of kernels that no backend of numpy has: by definition, a token at a time."""

from typing import Any

import numpy as np
import numpy.typing as npt

from kvproof.kernels import words
from kvproof.kernels.backends.base import SlotError
from kvproof.kernels.words import Words

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float64]


def slot_of(
    row: list[int], position: int, block_size: int, ratio: int, world: int, rank: int, interleave: int
) -> int:
    """The slot of a position in a row of kernel blocks, on one of `world` ranks, or −1.

    `block_size` tokens are a manager block, which is `ratio` kernel blocks. The position's virtual
    block holds `block_size · world` positions, dealt out to the ranks `interleave` at a time.
    Raises `SlotError` where the row names no block.
    """
    virtual, within = divmod(position, block_size * world)
    portion, rest = divmod(within, interleave)
    if portion % world != rank:
        return -1
    local = portion // world * interleave + rest
    size = block_size // ratio
    block = row[virtual * ratio + local // size]
    if block < 0:
        raise SlotError(f"position {position} lies in block {block}.")
    return block * size + local % size


def fingerprint(block: Words, start: int, end: int) -> tuple[int, int]:
    """The 128-bit sum of the tokens `start … end − 1` of a block `[2, block_size, heads, words]`."""
    low = high = 0
    for (side, offset, head, word), content in np.ndenumerate(block):
        if start <= offset < end:
            key = words.place_key(offset, side, head, word)
            turned = (key << 32 | key >> 32) & words.MASK
            low += words.mix64(((int(content) ^ key) + words.OFFSET) & words.MASK)
            high += words.mix64(((int(content) ^ turned) + words.CHAIN) & words.MASK)
    return low & words.MASK, high & words.MASK


def e4m3_values() -> npt.NDArray[np.float32]:
    """What each byte means as e4m3: 4 bits of exponent with bias 7, no infinity."""
    codes = np.arange(128)
    exponent, mantissa = codes >> 3, codes & 7
    values = np.where(
        exponent > 0, np.ldexp(1 + mantissa / 8, exponent - 7), np.ldexp(mantissa / 8, np.full(128, -6))
    )
    values[127] = np.nan
    return np.concatenate([values, -values]).astype(np.float32)


def e4m3_of(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint8]:
    """The nearest e4m3 byte, ties to the even one; beyond 448 it is 448, and a NaN stays one."""
    numbers = e4m3_values()[:127].astype(np.float64)
    size = np.minimum(np.abs(values.astype(np.float64)), numbers[-1])
    above = np.searchsorted(numbers, np.where(np.isnan(size), 0, size)).clip(1, 126)
    down, up = size - numbers[above - 1], numbers[above] - size
    nearest = np.where((down < up) | ((down == up) & (above % 2 == 1)), above - 1, above)
    codes = np.where(np.isnan(size), 127, nearest)
    return np.asarray(codes + 128 * np.signbit(values), np.uint8)


def quantized(values: npt.NDArray[np.float32], scales: npt.NDArray[np.float32]) -> npt.NDArray[np.uint8]:
    """The e4m3 bytes of values `[…, heads, dims]` divided by `scales [heads]`, which may have more axes.

    A NaN keeps its sign; one that the division makes, as of 0 by 0, has none.
    """
    with np.errstate(all="ignore"):
        quotients = values / scales[..., None]
        quotients[np.isnan(quotients)] = np.nan
        return e4m3_of(np.where(np.isnan(values), values, quotients))


def bf16_values(bits: npt.NDArray[np.uint16]) -> npt.NDArray[np.float32]:
    """What bits of bf16 mean: the upper half of an fp32's."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def attention(query: Floats, key: Floats, value: Floats, scale: float) -> Floats:
    """Of queries `[query_heads, dims]` over keys and values `[positions, heads, dims]`: the softmax of
    their scores, whatever is no number among them. Over no position it is 0."""
    group = query.shape[0] // key.shape[1]
    result = np.zeros_like(query)
    if not len(key):
        return result
    # A product of matrices may leave out what is multiplied by 0.
    with np.errstate(invalid="ignore"):
        for head in range(query.shape[0]):
            scores = (key[:, head // group] * query[head]).sum(axis=1) * scale
            weights = np.exp(scores - scores.max())
            shares = weights / weights.sum()
            result[head] = (shares[:, None] * value[:, head // group]).sum(axis=0)
    return result


def fingerprint_arrays(cache: Words) -> Words:
    """`fingerprint` of every whole block of a cache, `[layers, blocks, 2]`, in arrays."""
    return np.asarray(token_fingerprints(cache).sum(axis=2))


def token_fingerprints(cache: Words) -> Words:
    """What each token of a cache adds to its block's fingerprint, `[layers, blocks, block_size, 2]`."""
    _, _, _, size, heads, count = cache.shape
    # A token takes the part that a layer has in a place of contents.
    keys = words.place_keys(words.Geometry(size, heads, count))[:, 0]
    turned = keys << np.uint64(32) | keys >> np.uint64(32)
    low = words.mix64_array((cache ^ keys) + np.uint64(words.OFFSET))
    high = words.mix64_array((cache ^ turned) + np.uint64(words.CHAIN))
    return np.stack([low.sum(axis=(2, 4, 5)), high.sum(axis=(2, 4, 5))], axis=-1)
