"""Random calls of the kernels that compute: fp8 conversion bit by bit, attention within a tolerance."""

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from kvproof.kernels import twins
from kvproof.kernels.calls import Counted
from kvproof.kernels.drawing import (
    KINDS,
    Array,
    Case,
    Random,
    bytes_of,
    equal,
    ints,
    new_cache,
    one,
    random_bytes,
    slots_of,
    twin_of,
)

TOLERANCE: Final = 1e-6
"""Of attention against float64, as a share of a row's largest output; keys and values have variance 1."""
DOUBLE: Final = 1e-13
"""Of torch's attention in float64 against numpy's, where queries have variance 1."""


def _stored(values: npt.NDArray[np.float32], kind: Any) -> Array:
    """Values as elements of a kind."""
    if kind is np.uint16:
        return (values.view(np.uint32) >> 16).astype(np.uint16)
    return twins.e4m3_of(values) if kind is np.uint8 else values.astype(kind)


def _meant(elements: Array) -> npt.NDArray[np.float64]:
    """What elements of a kind mean."""
    if elements.dtype == np.uint16:
        return twins.bf16_values(elements).astype(np.float64)
    if elements.dtype == np.uint8:
        return twins.e4m3_values()[elements].astype(np.float64)
    return elements.astype(np.float64)


def compare_quantized(case: Case) -> Iterator[str]:
    random, kernels = case.random, case.kernels
    kind = KINDS[one(random, 0, 2)]
    shape = (2, 3, 2, 4, one(random, 1, 3), one(random, 1, 9))
    tokens = random_bytes(random, (6, 2, 2, *shape[4:]), kind)
    cache = new_cache(random, shape, np.uint8)
    wanted = twin_of(cache)
    slots = slots_of(case, 6, 12)
    # A view: scales may lie apart.
    scales = random.choice(np.array([0.5, 1, 2, 3], np.float32), (2, 2 * shape[4]))[:, ::2]
    if random.random() < 0.5:
        unusual = np.array([0, -0.0, 1e-45, 1e-30, 1e30, -1, np.inf, np.nan], np.float32)
        scales[one(random, 0, 1), one(random, 0, shape[4] - 1)] = random.choice(unusual)
    # Some heads are zeros.
    tokens[random.random(tokens.shape[:-1]) < 0.2] = 0
    counted = kernels.quantize_and_cache(tokens, cache, slots, scales)
    outside = int(((slots < -1) | (slots >= 12)).sum())
    yield from equal("counts of quantizing", counted, Counted(outside))
    values = twins.bf16_values(tokens) if kind is np.uint16 else tokens.astype(np.float32)
    if len(np.unique(slots[slots >= 0])) < (slots >= 0).sum():
        return
    codes = twins.quantized(values, scales)
    if case.torch:
        yield from equal("torch's bytes", case.torch.quantized(tokens, scales), codes)
    for i in np.flatnonzero((slots >= 0) & (slots < 12)):
        wanted[:, slots[i] // 4, :, slots[i] % 4] = codes[i]
    yield from equal("quantized bytes", bytes_of(cache), bytes_of(wanted))


def compare_attention(case: Case) -> Iterator[str]:
    random, kernels = case.random, case.kernels
    kind = KINDS[one(random, 0, 3)]
    heads, group, dims = one(random, 1, 3), one(random, 1, 3), int(random.choice([8, 32, 46]))
    blocks, size, rows = 40, one(random, 1, 7), 2
    shape = (1, blocks, 2, size, heads, dims)
    memory = new_cache(random, shape, kind)[0]
    memory[:] = _stored(random.standard_normal(memory.shape).astype(np.float32), kind)
    # A view: its rows lie apart.
    table = np.stack([random.permutation(blocks)[:27] for _ in range(rows)]).astype(np.int32)[:, :20]
    lengths = ints(random, 1, 20 * size + 1, rows) * (random.random(rows) < 0.9)
    window = int(random.choice([0, 0, 1, 9, 70]))
    # The deviation of a row's scores; where keys have something in common, their mean is as far from 0.
    steep = int(random.choice([1, 20, 1000]))
    if random.random() < 0.5:
        memory[:, 0, ..., 0] = _stored(np.full(1, 20, np.float32), kind)[0]
    query = steep * random.standard_normal((rows, heads * group, dims)).astype(np.float32)
    scale = dims**-0.5
    key_scale, value_scale = float(random.choice([1, 0.5])), float(random.choice([1, 0.25, 3]))
    # A position that is not to be read would show, whether its entry is nothing or another row's.
    readable = np.zeros((blocks, size), bool)
    ranges, missed = _positions(lengths, window), 0
    for row, positions in enumerate(ranges):
        if len(positions) and random.random() < 0.3:
            # One entry is empty, or all from the first to it.
            first, *entries = positions[[0, 0, one(random, 0, len(positions) - 1), -1]] // size
            entry = random.choice(entries)
            table[row, random.choice([first, entry]) : entry + 1] = random.choice([-1, blocks, 2**31 - 1])
        there = (table[row, positions // size] >= 0) & (table[row, positions // size] < blocks)
        missed += int((~there).sum()) * heads * group
        ranges[row] = positions = positions[there]
        readable[table[row, positions // size], positions % size] = True
        if random.random() < 0.5:
            table[row, -(-lengths[row] // size) :] = 2**31 - 1
    tokens = memory.transpose(0, 2, 1, 3, 4)
    tokens[~readable] = np.full(1, -1, np.int64).view(kind)[0]
    for row, positions in enumerate(ranges):
        if len(positions) and random.random() < 0.4:
            places = table[row, positions // size], positions % size
            _spoil(random, tokens, places, query[row], steep)
    meant = _meant(memory)
    found, counted = kernels.paged_attention_decode(
        query,
        *(memory[:, 0], memory[:, 1], table, lengths),
        scale=scale,
        window=window,
        key_scale=key_scale,
        value_scale=value_scale,
    )
    yield from equal("counts of attention", counted, Counted(missed))
    for row, positions in enumerate(ranges):
        if not len(positions):
            yield from equal(f"attention of row {row} over nothing", found[row], np.zeros_like(found[row]))
            continue
        taken = meant[table[row, positions // size], :, positions % size] * [[[key_scale]], [[value_scale]]]
        wanted = twins.attention(query[row].astype(np.float64), taken[:, 0], taken[:, 1], scale)
        error = _error(found[row], wanted)
        if not error <= TOLERANCE:
            yield f"attention of row {row} is off by {error:.2e} of the largest output"
        if case.torch:
            third = case.torch.attention(query[row].astype(np.float64), taken[:, 0], taken[:, 1], scale)
            if not _error(third, wanted) <= DOUBLE * steep:
                yield f"torch's attention of row {row} differs"


def _spoil(
    random: Random, tokens: Array, places: tuple[Array, Array], query: npt.NDArray[np.float32], steep: int
) -> None:
    """Puts something that is no number into a row's `tokens [blocks, block_size, 2, heads, dims]`."""
    blocks, offsets = places
    head, dim = (one(random, 0, size - 1) for size in tokens.shape[3:])
    where, last = one(random, 0, len(blocks) - 1), len(blocks) - 1
    poison = np.full(1, -1, np.int64).view(tokens.dtype)[0]
    above, below = _stored(np.array([np.inf, -np.inf], np.float32), tokens.dtype.type)
    what = int(random.choice([0, 1, 2, 2, 3])) if tokens.dtype != np.uint8 else 0
    if what == 0:
        # As a slot that was never written.
        tokens[blocks[where], offsets[where]] = poison
    elif what == 1:
        tokens[blocks[where], offsets[where], 0, head, dim] = random.choice([above, below])
    elif what == 2:
        # Scores of minus infinity, for more than is weighed at once if the row has more.
        many, first = one(random, min(last, 64), last), query[head * (len(query) // tokens.shape[3]), dim]
        tokens[blocks[:many], offsets[:many], 0, head, dim] = below if first > 0 else above
    elif steep < 1000:
        # Not where a weight may be lost: nothing of infinity is no number.
        tokens[blocks[where], offsets[where], 1, head, dim] = random.choice([above, below])


def _error(found: Array, wanted: npt.NDArray[np.float64]) -> float:
    """The greatest difference as a share of the largest number wanted; infinity where what is no finite
    number differs."""
    finite = np.isfinite(wanted)
    if not np.array_equal(np.where(finite, 0, found), np.where(finite, 0, wanted), equal_nan=True):
        return np.inf
    if not finite.any():
        return 0.0
    return float(np.abs(found[finite] - wanted[finite]).max() / np.abs(wanted[finite]).max())


def _positions(lengths: npt.NDArray[np.int64], window: int) -> list[npt.NDArray[np.int64]]:
    """The positions that each row reads."""
    return [np.arange(max(0, n - window) if window else 0, n) for n in lengths.tolist()]
