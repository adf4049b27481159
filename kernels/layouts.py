"""How arrays lie in memory, and what the moving kernels are told of it.

Layouts are strides. Tokens are `[token, layer, side, head, unit]`, a cache is
`[layer, block, side, offset, head, unit]`, whatever the order of these axes in memory: NHD, HND,
key and value interleaved or in pools of their own. A packed key cache (`[…, dims/x, offset, x]`)
is one whose element is the `x` contiguous ones.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any, Final, NamedTuple

UNITS: Final = (16, 8, 4, 2, 1)
"""Widths in bytes that the kernels move at a time."""

TOKEN_AXES: Final = ("token_stride", "token_layer_stride", "token_side_stride", "token_head_stride")
CACHE_AXES: Final = ("layer_stride", "block_stride", "side_stride", "offset_stride", "head_stride")


class LayoutError(ValueError):
    """Arrays that don't fit each other, or that no kernel can address."""


class Strided(NamedTuple):
    """An array: its address, its shape, and in bytes its strides and its element's size."""

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    itemsize: int


def strided(values: Any, address: int | None = None) -> Strided:
    """How an array lies in memory; its address is given where it isn't one of numpy."""
    if address is None:
        address = values.ctypes.data
    return Strided(address, values.shape, values.strides, values.itemsize)


def pair(key: Strided, value: Strided, axis: int) -> Strided:
    """Two arrays of one form as one, with a new axis of 2: its stride is the distance between them."""
    if key[1:] != value[1:]:
        raise LayoutError(f"keys {key.shape} and values {value.shape} lie differently.")
    shape = (*key.shape[:axis], 2, *key.shape[axis:])
    distance = value.address - key.address
    return Strided(key.address, shape, (*key.strides[:axis], distance, *key.strides[axis:]), key.itemsize)


@dataclass(frozen=True, eq=False, slots=True)
class Moves:
    """A moving kernel's suffix (bytes at a time) and the fields that don't change between calls.

    One object for one form of arrays while it is in use, so it is compared by identity.
    """

    unit: int
    fields: dict[str, int]


class Form(NamedTuple):
    """What a plan depends on: an array without its address, but for how that is aligned."""

    alignment: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    itemsize: int


def forms(*arrays: Strided) -> tuple[Form, ...]:
    """The arrays' forms. The stride of an axis of size 1 means nothing, and is 0.

    Where one of them is empty no element is touched, and all lie together: the strides that an empty
    array comes with say nothing.
    """
    if any(0 in array.shape for array in arrays):
        arrays = tuple(array._replace(strides=_together(array)) for array in arrays)
    return tuple(
        Form(
            array.address % UNITS[0],
            array.shape,
            tuple(stride if size > 1 else 0 for size, stride in zip(array.shape, array.strides, strict=True)),
            array.itemsize,
        )
        for array in arrays
    )


def _together(array: Strided) -> tuple[int, ...]:
    inner = [array.shape[axis + 1 :] for axis in range(len(array.shape))]
    return tuple(array.itemsize * prod(max(1, size) for size in sizes) for sizes in inner)


def in_elements(array: Strided, row: bool = True) -> tuple[int, ...]:
    """An array's strides in elements. Raises `LayoutError` where they aren't whole, where an element isn't
    at a multiple of its size, and where those of a row, the last axis, lie apart though they mustn't."""
    address, shape, strides, itemsize = array
    return _in_elements(address % UNITS[0], shape, strides, itemsize, row)


@lru_cache(maxsize=256)
def _in_elements(
    alignment: int, shape: tuple[int, ...], strides: tuple[int, ...], size: int, row: bool
) -> tuple[int, ...]:
    (found,) = forms(Strided(alignment, shape, strides, size))
    if _rest(found, found.strides, size):
        where = f"{strides} bytes apart, the first {alignment} behind a multiple of {UNITS[0]}"
        raise LayoutError(f"elements of {size} bytes lie {where}.")
    if row and shape[-1] > 1 and found.strides[-1] != size:
        raise LayoutError(f"elements of {size} bytes lie {strides[-1]} bytes apart in a row.")
    return tuple(stride // size for stride in found.strides)


def token_moves(tokens: Strided, cache: Strided) -> Moves:
    """What `reshape_and_cache` and `gather_slots` are told of two arrays. Raises `LayoutError`."""
    return _token_moves(*forms(tokens, cache))


def block_moves(source: Strided, target: Strided) -> Moves:
    """What `copy_blocks` is told of a cache and the array that it copies to. Raises `LayoutError`."""
    return _block_moves(*forms(source, target))


def zero_moves(cache: Strided) -> Moves:
    """What `zero_blocks` is told of a cache. Raises `LayoutError` where a block's side lies apart."""
    return _zero_moves(*forms(cache))


@lru_cache(maxsize=256)
def _token_moves(tokens: Form, cache: Form) -> Moves:
    if len(tokens.shape) != 5 or len(cache.shape) != 6:
        raise LayoutError(f"tokens have 5 axes and a cache has 6, not {tokens.shape} and {cache.shape}.")
    layers, blocks, sides, block_size, heads, dims = cache.shape
    if tokens.shape[1:] != (layers, sides, heads, dims) or tokens.itemsize != cache.itemsize:
        raise LayoutError(f"tokens {tokens.shape} don't fit a cache {cache.shape}, or their elements differ.")
    inner = _inner(heads, dims, tokens, cache)
    unit = inner.unit
    fields = {"layers": layers, "sides": sides, "heads": inner.heads, "units": inner.units}
    fields |= {"cache_blocks": blocks, "block_size": block_size}
    fields |= {"token_unit_stride": inner.first_stride, "unit_stride": inner.second_stride}
    fields |= _in_units(TOKEN_AXES, tokens.strides[:4], unit) | _in_units(CACHE_AXES, cache.strides[:5], unit)
    return Moves(unit, fields)


@lru_cache(maxsize=256)
def _block_moves(source: Form, target: Form) -> Moves:
    if len(source.shape) != 6 or source.shape[:1] + source.shape[2:] != target.shape[:1] + target.shape[2:]:
        raise LayoutError(f"blocks of {source.shape} don't fit {target.shape}.")
    if source.itemsize != target.itemsize or source.strides[2:] != target.strides[2:]:
        raise LayoutError("a block lies differently in the two arrays.")
    layers, _, sides, block_size, heads, dims = source.shape
    inner = _inner(heads, dims, source, target)
    unit = inner.unit
    if inner.first_stride != 1:
        raise LayoutError("the elements of a head don't lie together.")
    fields = {"layers": layers, "sides": sides, "heads": inner.heads, "units": inner.units}
    fields |= {"block_size": block_size}
    fields |= {"source_blocks": source.shape[1], "target_blocks": target.shape[1]}
    fields |= _in_units(CACHE_AXES[2:], source.strides[2:5], unit)
    fields |= _in_units(("source_layer_stride", "source_block_stride"), source.strides[:2], unit)
    fields |= _in_units(("target_layer_stride", "target_block_stride"), target.strides[:2], unit)
    return Moves(unit, fields)


@lru_cache(maxsize=256)
def _zero_moves(cache: Form) -> Moves:
    if len(cache.shape) != 6:
        raise LayoutError(f"a cache has 6 axes, not {cache.shape}.")
    layers, blocks, sides, *inner = cache.shape
    size = prod(inner) * cache.itemsize
    ends = sum(stride * (n - 1) for stride, n in zip(cache.strides[3:], inner, strict=True))
    if size and ends + cache.itemsize != size:
        raise LayoutError("a block's side doesn't lie together.")
    unit = next(u for u in UNITS if size % u == 0 and not _rest(cache, cache.strides[:3], u))
    fields = {"layers": layers, "sides": sides, "cache_blocks": blocks, "units": size // unit}
    return Moves(unit, fields | _in_units(CACHE_AXES[:3], cache.strides[:3], unit))


class _Inner(NamedTuple):
    """The two inner axes in a kernel's units, and the units of the innermost axis in each array."""

    unit: int
    heads: int
    units: int
    first_stride: int
    second_stride: int


def _inner(heads: int, dims: int, first: Form, second: Form) -> _Inner:
    """The widest unit for two arrays; where a token's heads lie together in both, they become one."""
    size, both = first.itemsize, (first, second)
    if any(array.strides[-1] != size and dims > 1 for array in both):
        if size not in UNITS or any(_rest(array, array.strides, size) for array in both):
            raise LayoutError(f"elements of {size} bytes that lie apart, and not at multiples of their size.")
        return _Inner(size, heads, dims, first.strides[-1] // size, second.strides[-1] // size)
    outer = -1
    if all(array.strides[-2] == dims * size or heads == 1 for array in both):
        heads, dims, outer = 1, heads * dims, -2
    for unit in UNITS:
        if dims * size % unit == 0 and not any(_rest(array, array.strides[:outer], unit) for array in both):
            return _Inner(unit, heads, dims * size // unit, 1, 1)
    raise AssertionError("everything is a multiple of one byte")


def _rest(array: Form, strides: Iterable[int], unit: int) -> bool:
    """Whether something isn't a multiple of the unit, so that an access of that width would be misaligned."""
    return any(number % unit for number in (array.alignment, *strides))


def _in_units(names: tuple[str, ...], strides: tuple[int, ...], unit: int) -> dict[str, int]:
    return {name: stride // unit for name, stride in zip(names, strides, strict=True)}
