"""The kernels in numpy: the plain version that the others are compared with, and fast on tiny pools."""

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from kvproof.kernels import twins, words
from kvproof.kernels.backends.base import CLEAN, Backend, Cache, Indices, Report, SlotError
from kvproof.kernels.words import Geometry, Words


@lru_cache(maxsize=64)
def _places(shape: tuple[int, ...]) -> tuple[Indices, Indices]:
    """Where words lie in a flat cache: the first word of every slot, and from there all words of
    a token, `[2, 1, words of key or value]`."""
    layers, blocks, _, block_size, heads, size = shape
    token = heads * size
    half = block_size * token
    first = np.arange(blocks)[:, None] * (2 * half) + np.arange(block_size) * token
    layer = np.arange(layers)[:, None] * (blocks * 2 * half) + np.arange(token)
    rest = np.arange(2)[:, None] * half + layer.reshape(-1)
    return first.reshape(-1), rest[:, None, :]


class NumpyBackend(Backend):
    """Arrays of numpy."""

    name = "numpy"

    def new_cache(self, geometry: Geometry, blocks: int, block_size: int) -> Cache:
        layers, heads, size = geometry
        return np.full((layers, blocks, 2, block_size, heads, size), words.POISON, np.uint64)

    def synthesize(self, digests: Words, geometry: Geometry) -> tuple[Words, Words]:
        contents = words.contents(digests, geometry)
        return contents[0], contents[1]

    def reshape_and_cache(self, key: Words, value: Words, cache: Cache, slot_mapping: Indices) -> Report:
        first, rest = _places(cache.shape)
        slots = slot_mapping.tolist()
        if len(key) != len(slots) or len(value) != len(slots):
            raise ValueError(f"{len(slots)} slots for {len(key)} keys and {len(value)} values.")
        if not slots:
            return CLEAN
        report = CLEAN
        if min(slots) < 0 or max(slots) >= len(first) or len(set(slots)) < len(slots):
            report, written = sort_out(slots, len(first))
            key, value, slot_mapping = key[written], value[written], slot_mapping[written]
        where = first[slot_mapping][:, None] + rest
        flat = _flat(cache)
        flat[where[0]] = key.reshape(where.shape[1:])
        flat[where[1]] = value.reshape(where.shape[1:])
        return report

    def gather(self, cache: Cache, slots: Indices) -> tuple[Words, Words]:
        first, rest = _places(cache.shape)
        _check_inside(slots, len(first))
        layers, _, _, _, heads, size = cache.shape
        found = _flat(cache)[first[slots][:, None] + rest].reshape(2, len(slots), layers, heads, size)
        return found[0], found[1]

    def verify_blocks(self, cache: Cache, blocks: Indices, offsets: Indices, digests: Words) -> Indices:
        layers, count, _, block_size, heads, size = cache.shape
        if not len(blocks) == len(offsets) == len(digests):
            raise ValueError(f"{len(blocks)} blocks, {len(offsets)} offsets and {len(digests)} digests.")
        _check_inside(blocks, count)
        _check_inside(offsets, block_size)
        slots = blocks * block_size + offsets
        first, rest = _places(cache.shape)
        found = _flat(cache)[first[slots][:, None] + rest]
        wrong = found != words.contents(digests, Geometry(layers, heads, size)).reshape(found.shape)
        if not wrong.any():
            return np.zeros((layers, len(slots)), np.int64)
        per_layer = wrong.reshape(2, len(slots), layers, heads * size)
        return np.asarray(per_layer.sum(axis=(0, 3), dtype=np.int64).T)

    def fingerprint_blocks(self, cache: Cache, blocks: Indices, starts: Indices, ends: Indices) -> Words:
        size = cache.shape[3]
        if not len(blocks) == len(starts) == len(ends):
            raise ValueError(f"{len(blocks)} blocks, {len(starts)} starts and {len(ends)} ends.")
        _check_inside(blocks, cache.shape[1])
        if len(starts) and (min(starts.tolist()) < 0 or max(ends.tolist()) > size):
            raise SlotError(f"tokens {min(starts.tolist())}…{max(ends.tolist()) - 1} of {size}.")
        sums = twins.token_fingerprints(cache[:, blocks])
        offsets = np.arange(size)
        outside = (offsets < starts[:, None]) | (offsets >= ends[:, None])
        if outside.any():
            sums[:, outside] = 0
        return np.asarray(sums.sum(axis=2))

    def copy_blocks(self, cache: Cache, sources: Indices, targets: Indices, tokens: Indices) -> Report:
        _, blocks, _, block_size, _, _ = cache.shape
        outside, conflicts = [], []
        copies = list(zip(sources.tolist(), targets.tolist(), tokens.tolist(), strict=True))
        for i, (source, target, count) in enumerate(copies):
            others = copies[:i] + copies[i + 1 :]
            if not (0 <= source < blocks and 0 <= target < blocks and 0 <= count <= block_size):
                outside.append(i)
                continue
            if any(other[1] in (source, target) for other in others):
                conflicts.append(i)
            cache[:, target, :, :count] = cache[:, source, :, :count]
        return Report(tuple(outside), tuple(conflicts))

    def compute_slot_mapping(
        self,
        table: npt.NDArray[np.int32],
        num_blocks: npt.NDArray[np.int32],
        rows: Indices,
        positions: Indices,
        block_size: int,
    ) -> Indices:
        if block_size < 1:
            raise ValueError(f"a block of {block_size} tokens.")
        if len(rows) != len(positions) or len(num_blocks) < len(table):
            raise ValueError(f"{len(rows)} rows, {len(positions)} positions; {len(num_blocks)} lengths.")
        slots = np.full(len(rows), -1, np.int64)
        real = rows != -1
        rows, positions = rows[real], positions[real]
        _check_inside(rows, len(table))
        columns = positions // block_size
        if ((positions < 0) | (columns >= np.minimum(num_blocks[rows], table.shape[1]))).any():
            raise SlotError("a position lies behind its row's end.")
        blocks = table[rows, columns].astype(np.int64)
        if (blocks < 0).any():
            raise SlotError("a position lies in no block.")
        slots[real] = blocks * block_size + positions % block_size
        return slots


def _flat(cache: Cache) -> Words:
    if not cache.flags.c_contiguous:
        raise ValueError("a cache is contiguous; a view of some blocks would be written as a copy.")
    flat: Words = cache.reshape(-1)
    return flat


def _check_inside(indices: Indices, end: int) -> None:
    found = indices.tolist()
    if found and (min(found) < 0 or max(found) >= end):
        raise SlotError(f"{min(found)}…{max(found)} is not inside 0…{end - 1}.")


def sort_out(slots: list[int], end: int) -> tuple[Report, list[int]]:
    """What is wrong with these slots, and the indices of those to write."""
    outside, conflicts, written = [], [], []
    seen = set()
    for i, slot in enumerate(slots):
        if slot == -1:
            continue
        if not 0 <= slot < end:
            outside.append(i)
            continue
        if slot in seen:
            conflicts.append(i)
        seen.add(slot)
        written.append(i)
    return Report(tuple(outside), tuple(conflicts)), written
