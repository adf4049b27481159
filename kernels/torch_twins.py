"""What torch can express of the kernels, on arrays of numpy whose memory it shares: a further implementation.

Contents are moved as integers of their width. Words of 64 bits are computed as signed ones, which
wrap alike. What torch has no way to say (writes of padding or outside, counts) is left out by who calls.
"""

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from kvproof.kernels import words
from kvproof.kernels.backends.base import SlotError
from kvproof.kernels.words import Geometry

Array = npt.NDArray[Any]
Indices = npt.NDArray[np.int64]

_SIGNED: Final = {1: np.uint8, 2: np.int16, 4: np.int32, 8: np.int64}


def bits(values: Array) -> torch.Tensor:
    """The same memory as integers."""
    return torch.from_numpy(values.view(_SIGNED[values.itemsize]))


def write(tokens: Array, cache: Array, slots: Indices) -> None:
    """Each token to its slot, which lies inside: by `index_copy_` where slots are one axis."""
    size, target = cache.shape[3], bits(cache).permute(1, 3, 0, 2, 4, 5)
    index, rows = torch.from_numpy(slots), bits(tokens)
    if target.stride(0) == size * target.stride(1):
        target.flatten(0, 1).index_copy_(0, index, rows)
    else:
        target[index // size, index % size] = rows


def read(cache: Array, slots: Indices) -> Array:
    """Tokens of slots that lie inside, as integers."""
    size, source = cache.shape[3], bits(cache).permute(1, 3, 0, 2, 4, 5)
    index = torch.from_numpy(slots)
    if source.stride(0) == size * source.stride(1):
        return np.asarray(source.flatten(0, 1).index_select(0, index).numpy())
    return np.asarray(source[index // size, index % size].numpy())


def copy(cache: Array, sources: Indices, targets: Indices, tokens: Indices) -> None:
    """The first tokens of blocks to other blocks, one copy after the other."""
    blocks = bits(cache)
    for source, target, count in zip(sources.tolist(), targets.tolist(), tokens.tolist(), strict=True):
        blocks[:, target, :, :count] = blocks[:, source, :, :count]


def zero(cache: Array, blocks: Indices) -> None:
    """Whole blocks become zero."""
    bits(cache).index_fill_(1, torch.from_numpy(blocks), 0)


def slots_of(
    table: npt.NDArray[np.int32],
    rows: Indices,
    positions: Indices,
    block_size: int,
    *,
    ratio: int,
    world: int,
    rank: int,
    interleave: int,
) -> Array:
    """The slot of each (row, position) on a rank, or −1. Raises `SlotError` where a row names no block."""
    row, position = torch.from_numpy(rows), torch.from_numpy(positions)
    virtual, within = position // (block_size * world), position % (block_size * world)
    portion = within // interleave
    local = portion // world * interleave + within % interleave
    size = block_size // ratio
    column = virtual * ratio + local // size
    block = torch.from_numpy(table.astype(np.int64))[row.clamp(min=0), column]
    ours = (portion % world == rank) & (row >= 0)
    if (block[ours] < 0).any():
        raise SlotError("a position lies in a block below 0.")
    return np.asarray(torch.where(ours, block * size + local % size, -1).numpy())


# --- contents -----------------------------------------------------------------------------------


def _signed(value: int) -> int:
    return value - 2**64 if value >> 63 else value


def _shifted(values: torch.Tensor, count: int) -> torch.Tensor:
    """Shifted right with zeros from above."""
    return (values >> count) & ((1 << 64 - count) - 1)


def _mixed(values: torch.Tensor) -> torch.Tensor:
    values = (values ^ _shifted(values, 30)) * _signed(words.MIX_A)
    values = (values ^ _shifted(values, 27)) * _signed(words.MIX_B)
    return values ^ _shifted(values, 31)


def _places(geometry: Geometry) -> torch.Tensor:
    """The keys of all places of a token, `[2, layers, heads, words]`."""
    layer = torch.arange(geometry.layers).reshape(1, -1, 1, 1)
    side = torch.arange(2).reshape(-1, 1, 1, 1)
    head = torch.arange(geometry.heads).reshape(1, 1, -1, 1)
    word = torch.arange(geometry.words).reshape(1, 1, 1, -1)
    return (((layer * 2 + side) << 12 | head) << 16 | word) * _signed(words.PLACE)


def contents(digests: words.Words, geometry: Geometry) -> words.Words:
    """Keys and values `[2, n, layers, heads, words]` from digests."""
    given = torch.from_numpy(digests.view(np.int64)).reshape(1, -1, 1, 1, 1)
    made = _mixed((given ^ _places(geometry).unsqueeze(1)) + _signed(words.OFFSET))
    return np.asarray(made.numpy()).view(np.uint64)


def fingerprints(cache: words.Words) -> words.Words:
    """The 128-bit sum of every whole block, `[layers, blocks, 2]`."""
    _, _, _, size, heads, count = cache.shape
    keys = _places(Geometry(size, heads, count))
    turned = keys << 32 | _shifted(keys, 32)
    found = torch.from_numpy(cache.view(np.int64))
    low, high = (
        _mixed((found ^ keys) + _signed(words.OFFSET)),
        _mixed((found ^ turned) + _signed(words.CHAIN)),
    )
    sums = torch.stack([each.sum(dim=(2, 3, 4, 5)) for each in (low, high)], dim=-1)
    return np.asarray(sums.numpy()).view(np.uint64)


# --- numbers --------------------------------------------------------------------------------------


def quantized(tokens: Array, scales: npt.NDArray[np.float32]) -> npt.NDArray[np.uint8]:
    """The e4m3 bytes of tokens `[n, layers, sides, heads, dims]` divided by `scales [sides, heads]`."""
    given = torch.from_numpy(tokens.view(np.int16) if tokens.dtype == np.uint16 else tokens)
    wide = (given.view(torch.bfloat16) if tokens.dtype == np.uint16 else given).float()
    # Beyond the largest number torch has a NaN, and we have the largest number.
    divided = (wide / torch.from_numpy(scales).unsqueeze(-1)).clamp(-448, 448)
    # A NaN keeps its sign, and one that the division makes has none.
    divided = torch.where(wide.isnan(), wide, torch.where(divided.isnan(), torch.nan, divided))
    return np.asarray(divided.to(torch.float8_e4m3fn).view(torch.uint8).numpy())


def attention(query: Array, key: Array, value: Array, scale: float) -> Array:
    """Of queries `[query_heads, dims]` over keys and values `[positions, heads, dims]`, in float64."""
    group = query.shape[0] // key.shape[1]
    of, keys, values = (torch.from_numpy(np.ascontiguousarray(each)) for each in (query, key, value))
    keys, values = (each.repeat_interleave(group, dim=1).transpose(0, 1) for each in (keys, values))
    weights = torch.softmax(torch.einsum("hd,hpd->hp", of, keys) * scale, dim=-1)
    return np.asarray(torch.einsum("hp,hpd->hd", weights, values).numpy())
