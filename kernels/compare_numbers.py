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
    equal,
    ints,
    new_cache,
    one,
    random_bytes,
    slots_of,
)

TOLERANCE: Final = 1e-6
"""Of attention against float64, as a share of a row's largest output; inputs have variance 1."""
DOUBLE: Final = 1e-13
"""Of torch's attention in float64 against numpy's."""


def _numbers(random: Random, shape: tuple[int, ...], kind: Any) -> tuple[Array, npt.NDArray[np.float64]]:
    """Elements of a kind with mean 0 and variance 1, and what they mean."""
    values = random.standard_normal(shape).astype(np.float32)
    if kind is np.uint16:
        bits = (values.view(np.uint32) >> 16).astype(np.uint16)
        return bits, twins.bf16_values(bits).astype(np.float64)
    if kind is np.uint8:
        codes = twins.e4m3_of(values)
        return codes, twins.e4m3_values()[codes].astype(np.float64)
    made = values.astype(kind)
    return made, made.astype(np.float64)


def compare_quantized(case: Case) -> Iterator[str]:
    random, kernels = case.random, case.kernels
    kind = KINDS[one(random, 0, 2)]
    shape = (2, 3, 2, 4, one(random, 1, 3), one(random, 1, 9))
    tokens = random_bytes(random, (6, 2, 2, *shape[4:]), kind)
    cache = new_cache(random, shape, np.uint8)
    wanted = cache.copy()
    slots = slots_of(case, 6, 12)
    # A view: scales may lie apart.
    scales = random.choice(np.array([0.5, 1, 2, 3], np.float32), (2, 2 * shape[4]))[:, ::2]
    counted = kernels.quantize_and_cache(tokens, cache, slots, scales)
    outside = int(((slots < -1) | (slots >= 12)).sum())
    yield from equal("counts of quantizing", counted, Counted(outside))
    values = twins.bf16_values(tokens) if kind is np.uint16 else tokens.astype(np.float32)
    if len(np.unique(slots[slots >= 0])) < (slots >= 0).sum():
        return
    with np.errstate(all="ignore"):
        codes = twins.e4m3_of(values / scales[:, :, None])
    if case.torch:
        yield from equal("torch's bytes", case.torch.quantized(tokens, scales), codes)
    for i in np.flatnonzero((slots >= 0) & (slots < 12)):
        wanted[:, slots[i] // 4, :, slots[i] % 4] = codes[i]
    yield from equal("quantized bytes", cache, wanted)


def compare_attention(case: Case) -> Iterator[str]:
    random, kernels = case.random, case.kernels
    kind = KINDS[one(random, 0, 3)]
    heads, group, dims = one(random, 1, 3), one(random, 1, 3), int(random.choice([8, 32, 46]))
    blocks, size, rows = 40, one(random, 1, 7), 2
    shape = (1, blocks, 2, size, heads, dims)
    memory = new_cache(random, shape, kind)[0]
    memory[:], meant = _numbers(random, memory.shape, kind)
    # A view: its rows lie apart.
    table = np.stack([random.permutation(blocks)[:27] for _ in range(rows)]).astype(np.int32)[:, :20]
    lengths = ints(random, 1, 20 * size + 1, rows) * (random.random(rows) < 0.9)
    window = int(random.choice([0, 1, 9, 70]))
    query = random.standard_normal((rows, heads * group, dims)).astype(np.float32)
    scale = dims**-0.5
    key_scale, value_scale = float(random.choice([1, 0.5])), float(random.choice([1, 0.25, 3]))
    # A position that is not to be read would show, whether its entry is nothing or another row's.
    readable = np.zeros((blocks, size), bool)
    ranges, missed = _positions(lengths, window), 0
    for row, positions in enumerate(ranges):
        if random.random() < 0.2:
            table[row, one(random, 0, 19)] = random.choice([-1, blocks, 2**31 - 1])
        there = (table[row, positions // size] >= 0) & (table[row, positions // size] < blocks)
        missed += int((~there).sum()) * heads * group
        ranges[row] = positions = positions[there]
        readable[table[row, positions // size], positions % size] = True
        if random.random() < 0.5:
            table[row, -(-lengths[row] // size) :] = 2**31 - 1
    memory.transpose(0, 2, 1, 3, 4)[~readable] = np.full(1, -1, np.int64).view(kind)[0]
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
        error = np.abs(found[row] - wanted).max() / np.abs(wanted).max()
        if not error <= TOLERANCE:
            yield f"attention of row {row} is off by {error:.2e} of the largest output"
        if case.torch:
            third = case.torch.attention(query[row].astype(np.float64), taken[:, 0], taken[:, 1], scale)
            if not np.abs(third - wanted).max() <= DOUBLE * np.abs(wanted).max():
                yield f"torch's attention of row {row} differs"


def _positions(lengths: npt.NDArray[np.int64], window: int) -> list[npt.NDArray[np.int64]]:
    """The positions that each row reads."""
    return [np.arange(max(0, n - window) if window else 0, n) for n in lengths.tolist()]
