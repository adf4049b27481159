"""Random moves of tokens and blocks of any element, in any layout, compared with numpy."""

from collections.abc import Iterator

import numpy as np

from kvproof.kernels.calls import Counted, Kernels
from kvproof.kernels.drawing import (
    KINDS,
    Array,
    Case,
    bytes_of,
    equal,
    ints,
    new_cache,
    new_tokens,
    one,
    slots_of,
    twin_of,
)


def compare_layouts(case: Case) -> Iterator[str]:
    random, kernels = case.random, case.kernels
    kind = KINDS[one(random, 0, len(KINDS) - 1)]
    layers, blocks, sides, size, heads = (one(random, 1, most) for most in (2, 5, 2, 5, 3))
    dims = int(random.choice([1, 3, 8, 16, 46]))
    shape = layers, blocks, sides, size, heads, dims
    cache = new_cache(random, shape, kind)
    tokens = new_tokens(random, (one(random, 0, 9), layers, sides, heads, dims), kind)
    slots = slots_of(case, len(tokens), blocks * size)
    yield from _compare_packed(kernels, tokens[:, :1, :1], slots, blocks, size)
    yield from _compare_columns(kernels, tokens[:, :1, :1], slots, blocks, size)
    wanted, inside = twin_of(cache), np.flatnonzero((slots >= 0) & (slots < blocks * size))
    third = twin_of(cache)
    _, firsts = np.unique(slots[inside], return_index=True)
    single = inside[firsts] if len(firsts) == len(inside) else inside[:0]
    counted = kernels.reshape_and_cache(tokens, cache, slots)
    outside = int(((slots < -1) | (slots >= blocks * size)).sum())
    yield from equal("counts of a write", counted, Counted(outside, len(inside) - len(firsts)))
    if len(single) == len(inside):
        for i in single:
            wanted[:, slots[i] // size, :, slots[i] % size] = tokens[i]
        yield from equal("the cache after a write", bytes_of(cache), bytes_of(wanted))
        if case.torch:
            case.torch.write(tokens[inside], third, slots[inside])
            yield from equal("torch's cache after a write", bytes_of(third), bytes_of(wanted))
    read = new_tokens(random, tokens.shape, kind)[: len(inside)]
    should = twin_of(read)
    yield from equal("counts of a read", kernels.gather_slots(read, cache, slots[inside]), Counted())
    should[:] = cache[:, slots[inside] // size, :, slots[inside] % size]
    yield from equal("tokens read", bytes_of(read), bytes_of(should))
    if case.torch:
        third = case.torch.read(cache, slots[inside])
        yield from equal("torch's tokens", third.tobytes(), should.tobytes())
    yield from _compare_block_moves(case, cache)


def _compare_packed(kernels: Kernels, tokens: Array, slots: Array, blocks: int, size: int) -> Iterator[str]:
    """Keys in a cache `[blocks, heads, dims/x, block_size, x]`: x elements are one of 16 bytes."""
    x = 16 // tokens.itemsize
    heads, dims = tokens.shape[3], tokens.shape[4] // x * x
    if dims == 0 or len(np.unique(slots)) < len(slots):
        return
    memory = np.zeros((blocks, heads, dims // x, size, x), tokens.dtype)
    wanted = memory.copy()
    packed = tokens[..., :dims].copy().view("V16")
    cache = memory.view("V16")[None, :, None, :, :, :, 0].transpose(0, 1, 2, 5, 3, 4)
    kernels.reshape_and_cache(packed, cache, slots)
    for i, slot in enumerate(slots.tolist()):
        if 0 <= slot < blocks * size:
            wanted[slot // size, :, :, slot % size] = tokens[i, 0, 0, :, :dims].reshape(heads, -1, x)
    yield from equal("packed keys", bytes_of(memory), bytes_of(wanted))


def _compare_columns(kernels: Kernels, tokens: Array, slots: Array, blocks: int, size: int) -> Iterator[str]:
    """Values in a cache `[blocks, heads, dims, block_size]`: a token's elements lie apart."""
    inside = np.flatnonzero((slots >= 0) & (slots < blocks * size))
    if len(np.unique(slots[inside])) < len(inside):
        return
    memory = np.zeros((blocks, *tokens.shape[3:], size), tokens.dtype)
    wanted = memory.copy()
    cache = memory[None, :, None].transpose(0, 1, 2, 5, 3, 4)
    kernels.reshape_and_cache(tokens, cache, slots)
    for i in inside:
        wanted[slots[i] // size, :, :, slots[i] % size] = tokens[i, 0, 0]
    yield from equal("values in columns", bytes_of(memory), bytes_of(wanted))
    read = np.zeros_like(tokens[inside])
    yield from equal("counts of columns", kernels.gather_slots(read, cache, slots[inside]), Counted())
    yield from equal("values read from columns", read.tobytes(), tokens[inside].tobytes())


def _compare_block_moves(case: Case, cache: Array) -> Iterator[str]:
    random, kernels = case.random, case.kernels
    blocks, size = cache.shape[1], cache.shape[3]
    order = random.permutation(blocks).astype(np.int64)
    sources, targets = order[: blocks // 2], order[blocks // 2 :][: blocks // 2]
    tokens = ints(random, 0, size + 1, len(sources))
    wanted, third = twin_of(cache), twin_of(cache)
    for source, target, count in zip(sources, targets, tokens, strict=True):
        wanted[:, target, :, :count] = cache[:, source, :, :count]
    yield from equal(
        "counts of copies", kernels.copy_blocks(cache, cache, sources, targets, tokens), Counted()
    )
    yield from equal("the cache after copies", bytes_of(cache), bytes_of(wanted))
    if case.torch:
        case.torch.copy(third, sources, targets, tokens)
        yield from equal("torch's cache after copies", bytes_of(third), bytes_of(wanted))
    yield from _compare_other_target(case, cache)
    ends = sum(s * (n - 1) for s, n in zip(cache.strides[3:], cache.shape[3:], strict=True))
    if ends + cache.itemsize == np.prod(cache.shape[3:]) * cache.itemsize:
        zeroed = np.append(order[:1], random.choice([-1, blocks, 2**40], one(random, 0, 1)))
        found = kernels.zero_blocks(cache, zeroed)
        yield from equal("counts of zeroing", found, Counted(len(zeroed) - 1))
        wanted[:, order[0]] = 0
        yield from equal("the cache after zeroing", bytes_of(cache), bytes_of(wanted))
        if case.torch:
            case.torch.zero(third, order[:1])
            yield from equal("torch's cache after zeroing", bytes_of(third), bytes_of(wanted))


def _compare_other_target(case: Case, cache: Array) -> Iterator[str]:
    """Copies into an array of other strides and with more blocks; one block of the copies may be nowhere."""
    random, kernels, blocks = case.random, case.kernels, cache.shape[1]
    target = _elsewhere(cache, one(random, 0, 3))
    wanted, count = twin_of(target), one(random, 1, blocks)
    sources = ints(random, 0, blocks, count)
    targets = random.permutation(target.shape[1])[:count].astype(np.int64)
    tokens = ints(random, 0, cache.shape[3] + 1, count)
    if random.random() < 0.3:
        indices, end = ((sources, blocks), (targets, target.shape[1]))[one(random, 0, 1)]
        indices[0] = random.choice([-1, end])
    right = (sources >= 0) & (sources < blocks) & (targets >= 0) & (targets < target.shape[1])
    for i in np.flatnonzero(right):
        wanted[:, targets[i], :, : tokens[i]] = cache[:, sources[i], :, : tokens[i]]
    counted = kernels.copy_blocks(cache, target, sources, targets, tokens)
    yield from equal("counts of copies to another array", counted, Counted(int((~right).sum())))
    yield from equal("the other array after copies", bytes_of(target), bytes_of(wanted))


def _elsewhere(cache: Array, more: int) -> Array:
    """Zeroes in blocks of the cache's form, `more` elements further apart; a block more, unless its sides lie
    in pools."""
    _, blocks, sides, *_ = cache.shape
    layer, block, side, *inner = cache.strides
    apart = more * cache.itemsize
    if sides == 1 or side < block:
        blocks, block = blocks + 1, block + apart
        layer = blocks * block
    else:
        layer += apart
    shape, strides = (cache.shape[0], blocks, *cache.shape[2:]), (layer, block, side, *inner)
    span = sum(stride * (size - 1) for stride, size in zip(strides, shape, strict=True))
    return np.ndarray(shape, cache.dtype, np.zeros(span + cache.itemsize, np.uint8), 0, strides)
