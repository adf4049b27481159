"""What is measured of the kernels: each with realistic arrays, and the bytes that it must move.

Bytes are those read and written that the call can't do without, so that a share of what a plain copy
moves in the same run compares machines. Random slots, as a pool that has been in use gives them.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np

from kvproof.kernels.backends.source_backend import word_strides
from kvproof.kernels.calls import Kernels
from kvproof.kernels.layouts import strided
from kvproof.kernels.library import Call, Launch
from kvproof.kernels.memory import Array


class Work(NamedTuple):
    """A call, the bytes that it reads and writes, and the kernel that is measured."""

    kernel: str
    form: str
    call: Callable[[], object]
    moved: int


class Size(NamedTuple):
    """Of a cache and what is written to it."""

    tokens: int
    layers: int
    heads: int = 8
    dims: int = 128
    block_size: int = 16

    @property
    def blocks(self) -> int:
        """Blocks that just hold all tokens."""
        return self.tokens // self.block_size

    @property
    def elements(self) -> int:
        """Of keys and values together."""
        return self.tokens * self.layers * 2 * self.heads * self.dims


ELEMENTS: Final[dict[str, type[np.generic]]] = {"fp32": np.uint32, "bf16": np.uint16, "fp8": np.uint8}
"""What is moved, by its width, as bits."""
SOME: Final = 0x3F3F
"""Bits of a number in bf16, of equal bytes: a memory is set to those without a kernel."""


def _caches(kernels: Kernels, size: Size, kind: type[np.generic]) -> dict[str, Array]:
    """A cache `[layers, blocks, sides, block_size, heads, dims]` in each layout."""
    layers, blocks, length, heads, dims = (
        size.layers, size.blocks, size.block_size, size.heads, size.dims,
    )  # fmt: skip
    full = kernels.memory.full
    return {
        "NHD": full((layers, blocks, 2, length, heads, dims), 0, kind),
        "HND": full((layers, blocks, 2, heads, length, dims), 0, kind).transpose(0, 1, 2, 4, 3, 5),
    }


def moving(kernels: Kernels, size: Size) -> Iterator[Work]:
    """Writes, reads, copies and zeroing of tokens, for every element and layout."""
    random = np.random.default_rng(0)
    slots = kernels.memory.taken(random.permutation(size.tokens).astype(np.int64))
    order = random.permutation(size.blocks).astype(np.int64)
    half = size.blocks // 2
    sources, targets = (kernels.memory.taken(each) for each in (order[:half], order[half : 2 * half]))
    lengths = kernels.memory.taken(np.full(half, size.block_size, np.int64))
    for name, kind in ELEMENTS.items():
        # Every byte alike, so that a memory is set without a kernel.
        one = int.from_bytes(b"\1" * np.dtype(kind).itemsize, "little")
        tokens = kernels.memory.full((size.tokens, size.layers, 2, size.heads, size.dims), one, kind)
        moved = 2 * size.elements * np.dtype(kind).itemsize
        for layout, cache in _caches(kernels, size, kind).items():
            form = f"{name} {layout}"
            yield Work(
                *("reshape_and_cache", form),
                partial(kernels.reshape_and_cache, tokens, cache, slots, watch=False),
                moved,
            )
            yield Work("gather_slots", form, partial(kernels.gather_slots, tokens, cache, slots), moved)
            if layout == "NHD":
                copies = partial(kernels.copy_blocks, cache, cache, sources, targets, lengths)
                yield Work("copy_blocks", form, copies, moved * half // size.blocks)
                zeroing = partial(kernels.zero_blocks, cache, sources)
                yield Work("zero_blocks", form, zeroing, moved // 2 * half // size.blocks)


def computing(kernels: Kernels, size: Size) -> Iterator[Work]:
    """Conversion to fp8, attention, and the kernels that make and check contents."""
    random, memory = np.random.default_rng(1), kernels.memory
    shape = (size.tokens, size.layers, 2, size.heads, size.dims)
    slots = memory.taken(random.permutation(size.tokens).astype(np.int64))
    tokens, scales = memory.full(shape, SOME, np.uint16), memory.full((2, size.heads), 1, np.float32)
    quantized = _caches(kernels, size, np.uint8)["NHD"]
    quantize = partial(kernels.quantize_and_cache, tokens, quantized, slots, scales)
    yield Work("quantize_and_cache", "bf16 to fp8", quantize, 3 * size.elements)
    yield _attending(kernels, size, random)
    yield from _contents(kernels, size, random)


def _contents(kernels: Kernels, size: Size, random: np.random.Generator) -> Iterator[Work]:
    """What makes, checks and adds up words; a head's are as many as its elements of bf16 fill."""
    memory, spread = kernels.memory, kernels.spread
    taken, at = memory.taken, memory.address
    layers, heads, words = size.layers, size.heads, size.dims // 4
    made = memory.full((2, size.tokens, layers, heads, words), 0, np.uint64)
    cache = memory.full((layers, size.blocks, 2, size.block_size, heads, words), 0, np.uint64)
    slots, digests = random.permutation(size.tokens), random.integers(0, 2**64, size.tokens, np.uint64)
    there: dict[str, Array] = {"digests": taken(digests), "slots": taken(slots)}
    there |= {"blocks": taken(slots // size.block_size), "offsets": taken(slots % size.block_size)}
    there |= {"all": taken(np.arange(size.blocks)), "starts": memory.full((size.blocks,), 0, np.int64)}
    there |= {"ends": memory.full((size.blocks,), size.block_size, np.int64)}
    there |= {"errors": memory.full((2,), 0, np.uint64)}
    there |= {name: memory.full((layers, size.tokens), 0, np.uint64) for name in ("counts", "firsts")}
    sums = memory.full((layers, size.blocks, 2), 0, np.uint64)
    # They are looked for by address from now on, so they must live as long as the calls.
    keep = partial(_keeping, [made, cache, sums, *there.values()])
    given = {name: at(values) for name, values in there.items() if name not in ("slots", "all")}
    whole = word_strides(strided(cache, at(cache))) | {"cache": at(cache), "errors": given["errors"]}
    moved = 2 * size.elements
    key, value = at(made[0]), at(made[1])
    sizes = {"tokens": size.tokens, "layers": layers, "heads": heads, "words": words}
    synthesize = Call(
        kernels.library, "synthesize", {**sizes, "key": key, "value": value, "digests": given["digests"]}
    )
    yield Work("synthesize", "bf16", keep(synthesize, spread), moved)
    synthesize(spread)
    kernels.reshape_and_cache(made.transpose(1, 2, 0, 3, 4), cache, there["slots"], watch=False)
    names = ("blocks", "offsets", "digests", "counts", "firsts")
    fields = {name: given[name] for name in names}
    results = {"tokens": size.tokens, "results": size.tokens}
    yield Work(
        *("verify_blocks", "bf16"),
        keep(Call(kernels.library, "verify_blocks", {**whole, **fields, **results}), spread),
        moved,
    )
    fields = {"blocks": at(there["all"]), "starts": given["starts"], "ends": given["ends"]}
    fields |= {"digests": at(sums), "count": size.blocks}
    fingerprint = Call(kernels.library, "fingerprint_blocks", {**whole, **fields})
    yield Work("fingerprint_blocks", "bf16", keep(fingerprint, spread), moved)


def _keeping(arrays: list[Array], call: Call, spread: Launch) -> Callable[[], object]:
    def run() -> None:
        call(spread)
        assert arrays, "kept"

    return run


def _attending(kernels: Kernels, size: Size, random: np.random.Generator) -> Work:
    """Rows of 1,024 positions, or of as many as there are, with four query heads to each key head."""
    memory, length = kernels.memory, min(1024, size.tokens)
    rows = size.tokens // length
    table = random.permutation(size.blocks).astype(np.int32).reshape(rows, -1)
    key, value = (
        memory.full((size.blocks, size.block_size, size.heads, size.dims), SOME, np.uint16) for _ in range(2)
    )
    query = memory.full((rows, 4 * size.heads, size.dims), 1, np.float32)
    lengths = memory.taken(np.full(rows, length, np.int64))
    call = partial(
        kernels.paged_attention_decode, query, key, value, memory.taken(table), lengths, scale=size.dims**-0.5
    )
    return Work("paged_attention_decode", "bf16", call, 4 * size.tokens * size.heads * size.dims)


def plain_copy(kernels: Kernels, size: Size, copy: Callable[[Any, Any], object]) -> Work:
    """The bytes of bf16 keys and values, from one array to another: the ceiling of what moves."""
    source, target = (kernels.memory.full((size.elements,), SOME, np.uint16) for _ in range(2))
    return Work("copy", "plain", partial(copy, target, source), 4 * size.elements)
