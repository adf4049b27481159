"""A cache of more than 2^31 elements, of which a few rows are touched: offsets of 32 bits would wrap."""

from typing import Final

import numpy as np

from kvproof.kernels.calls import Counted, Kernels
from kvproof.kernels.memory import Array

# An odd row is moved by single bytes, so that offsets count bytes.
ROW: Final = 4095
BLOCK_SIZE: Final = 16
BLOCKS: Final = 2**31 // (ROW * BLOCK_SIZE) + 40
GUARD: Final = 2**31 + 2**20
"""Elements below the cache, where an offset that wrapped would lead."""
ELEMENTS: Final = GUARD + BLOCKS * BLOCK_SIZE * ROW
TOKENS: Final = 64


def cache_in(memory: Array) -> Array:
    """The cache in a memory of `ELEMENTS` bytes."""
    return memory[GUARD:].reshape(1, BLOCKS, 1, BLOCK_SIZE, 1, ROW)


def written_right(kernels: Kernels, cache: Array) -> int:
    """Of 64 tokens at both ends, how many lie at their slots. What is read by kernel must be what was
    written, right or wrong."""
    half = np.arange(TOKENS // 2)
    slots = np.concatenate([half, BLOCKS * BLOCK_SIZE - 1 - half]).astype(np.int64)
    tokens = np.random.default_rng(0).integers(1, 256, (TOKENS, 1, 1, 1, ROW), np.uint8)
    memory = kernels.memory
    assert kernels.reshape_and_cache(memory.taken(tokens), cache, slots) == Counted()
    # One by one, and as slices: not by a kernel that computes offsets.
    found = [
        memory.host(cache[0, slot // BLOCK_SIZE, 0, slot % BLOCK_SIZE]).reshape(-1) for slot in slots.tolist()
    ]
    read = memory.full(tokens.shape, 0, np.uint8)
    assert kernels.gather_slots(read, cache, slots) == Counted()
    assert np.array_equal(memory.host(read), tokens)
    return sum(
        np.array_equal(row, token) for row, token in zip(found, tokens.reshape(TOKENS, ROW), strict=True)
    )
