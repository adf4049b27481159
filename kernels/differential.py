"""Random calls of every kernel, in random layouts and geometries, compared with numpy bit by bit.

`python -m kvproof.kernels.differential --cases 5000` runs them on the `cpu` build, with
`--build cpu-checked` on the one that is watched. A case is a seed.
"""

import argparse
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from kvproof.kernels import twins, words
from kvproof.kernels.backends.base import Report, SlotError
from kvproof.kernels.backends.cpu_backend import CpuBackend
from kvproof.kernels.backends.numpy_backend import NumpyBackend
from kvproof.kernels.builds import build_checked, build_cpu
from kvproof.kernels.calls import Counted, Kernels
from kvproof.kernels.checked import CheckedLibrary
from kvproof.kernels.library import CpuLibrary, Launch, Library
from kvproof.kernels.words import Geometry

Array = npt.NDArray[Any]
Random = np.random.Generator

LAUNCHES: Final = (
    Launch(),
    Launch(grid=1, block=7, lanes=2),
    Launch(grid=3, block=1, lanes=1),
    Launch(grid=5, block=32, lanes=8),
    Launch(grid=64, block=3, lanes=32),
)
KINDS: Final = (np.float32, np.float16, np.uint16, np.uint8, np.int8)
"""fp32, fp16, bf16 as its bits, fp8 as its bytes, int8."""
TOLERANCE: Final = 1e-6
"""Of attention against float64, as a share of a row's largest output; inputs have variance 1."""


class Case(NamedTuple):
    """What a comparison gets: the build's calls, and its own randomness."""

    kernels: Kernels
    backend: CpuBackend
    random: Random
    conflicts: bool
    """Whether a launch may write a place twice."""


def differences(seed: int, library: Library, conflicts: bool = True) -> list[str]:
    """Where the build and numpy differ in one case: no line, or one for each.

    Without `conflicts` nothing in a case is unordered, so a right build has no race in it.
    """
    name, compare = tuple(COMPARISONS.items())[seed % len(COMPARISONS)]
    random = np.random.default_rng(seed)
    launch = LAUNCHES[int(random.integers(len(LAUNCHES)))]
    case = Case(Kernels(library, launch), CpuBackend(library, launch), random, conflicts)
    return [f"case {seed} ({name}, {launch}): {what}" for what in compare(case)]


def _ints(random: Random, low: int, high: int, size: int) -> npt.NDArray[np.int64]:
    return random.integers(low, high, size)


def _one(random: Random, low: int, high: int) -> int:
    """A number of `low … high`."""
    return int(random.integers(low, high + 1))


def _words_of(random: Random, size: int) -> words.Words:
    return random.integers(0, 2**64, size, np.uint64)


# --- the backend's calls ---------------------------------------------------------------------


def _compare_backend(case: Case) -> Iterator[str]:
    """A short life of a cache on both backends."""
    random, mine, other = case.random, case.backend, NumpyBackend()
    geometry = Geometry(_one(random, 1, 3), _one(random, 1, 3), _one(random, 1, 5))
    blocks, size = _one(random, 1, 6), _one(random, 1, 6)
    caches = [backend.new_cache(geometry, blocks, size) for backend in (mine, other)]
    for _ in range(3):
        tokens = _one(random, 0, 10)
        digests = _words_of(random, tokens)
        slots = _slots(case, tokens, blocks * size)
        made = [backend.synthesize(digests, geometry) for backend in (mine, other)]
        yield from _equal("synthesize", made[0], made[1])
        written = [
            b.reshape_and_cache(*made[1], cache, slots)
            for b, cache in zip((mine, other), caches, strict=True)
        ]
        yield from _equal("the report of a write", written[0], written[1])
        # Which of two writes to a slot stays is not said.
        for i in written[1].conflicts:
            caches[0][:, slots[i] // size, :, slots[i] % size] = caches[1][
                :, slots[i] // size, :, slots[i] % size
            ]
        yield from _equal("the cache after a write", *caches)
        yield from _compare_reads(case, caches, slots, digests)
    yield from _compare_copies(case, caches)


def _compare_reads(case: Case, caches: list[Array], slots: Array, digests: words.Words) -> Iterator[str]:
    size = caches[0].shape[3]
    blocks, offsets = np.divmod(slots, size)
    pairs = tuple(zip((case.backend, NumpyBackend()), caches, strict=True))
    found: list[Any] = [_or_refusal(backend.gather, cache, slots) for backend, cache in pairs]
    yield from _equal("tokens read", *found)
    for demanded in (digests, digests + 1):
        found = [_or_refusal(backend.verify_blocks, c, blocks, offsets, demanded) for backend, c in pairs]
        yield from _equal("words that differ", *found)


def _compare_copies(case: Case, caches: list[Array]) -> Iterator[str]:
    random, blocks, size = case.random, caches[0].shape[1], caches[0].shape[3]
    count = _one(random, 0, 4)
    sources, targets = _ints(random, 0, blocks, count), _ints(random, 0, blocks, count)
    tokens = _ints(random, 0, size + 1, count)
    if not case.conflicts:
        # Each block at most once.
        order = random.permutation(blocks).astype(np.int64)
        count = min(count, blocks // 2)
        sources, targets, tokens = order[:count], order[blocks - count :], tokens[:count]
    if count and random.random() < 0.2:
        (sources, targets)[_one(random, 0, 1)][0] = random.choice([-1, blocks, 2**40])
    pairs = zip((case.backend, NumpyBackend()), caches, strict=True)
    reports = [backend.copy_blocks(cache, sources, targets, tokens) for backend, cache in pairs]
    yield from _equal("the report of copies", *reports)
    if not reports[1].conflicts:
        yield from _equal("the cache after copies", *caches)


def _or_refusal(call: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return call(*arguments)
    except SlotError:
        return "refused"


def _slots(case: Case, count: int, end: int) -> npt.NDArray[np.int64]:
    """Slots as a step writes them: mostly different, a fifth of padding, seldom a wrong or a double one."""
    random = case.random
    slots = random.permutation(end)[:count]
    slots = np.concatenate([slots, np.full(count - len(slots), -1)]).astype(np.int64)
    slots[random.random(count) < 0.2] = -1
    if count and random.random() < 0.2:
        slots[_one(random, 0, count - 1)] = random.choice([-2, end, end + 7, 2**40])
    if case.conflicts and count and random.random() < 0.2:
        slots[_one(random, 0, count - 1)] = slots[0]
    return slots


def _compare_first_words(case: Case) -> Iterator[str]:
    """Counts and first wrong word per block."""
    random, backend = case.random, case.backend
    geometry, blocks, size = Geometry(2, _one(random, 1, 3), _one(random, 1, 9)), 4, _one(random, 1, 4)
    cache = backend.new_cache(geometry, blocks, size)
    digests = _words_of(random, blocks * size)
    slots = np.arange(blocks * size)
    backend.reshape_and_cache(*NumpyBackend().synthesize(digests, geometry), cache, slots)
    wrong = [tuple(_one(random, 0, n - 1) for n in cache.shape) for _ in range(_one(random, 0, 6))]
    for place in wrong:
        cache[place] = ~cache[place] if random.random() < 0.5 else 0
    expected = NumpyBackend().synthesize(digests, geometry)
    differs = cache != np.stack(expected).reshape(2, blocks, size, *geometry).transpose(3, 1, 0, 2, 4, 5)
    order = random.permutation(blocks * size)
    counts, firsts = backend.compare_blocks(
        cache, order // size, order % size, digests[order], order // size, blocks
    )
    yield from _equal("counts per block", counts, differs.sum(axis=(2, 3, 4, 5)))
    least = np.full_like(firsts, words.MASK)
    for layer, block, side, offset, head, word in np.argwhere(differs).tolist():
        least_place = ((offset * 2 + side) << 12 | head) << 16 | word
        least[layer, block] = min(least[layer, block], least_place)
    yield from _equal("first words per block", firsts, least)


def _compare_fingerprints(case: Case) -> Iterator[str]:
    random, backend = case.random, case.backend
    shape = (2, 3, 2, _one(random, 1, 5), _one(random, 1, 3), _one(random, 1, 4))
    cache = _words_of(random, int(np.prod(shape))).reshape(shape)
    blocks = _ints(random, 0, 3, 4)
    ends = _ints(random, 0, shape[3] + 1, 4)
    starts = np.minimum(_ints(random, 0, shape[3] + 1, 4), ends)
    found = backend.fingerprint_blocks(cache, blocks, starts, ends)
    wanted = [
        [
            twins.fingerprint(cache[layer, b], s, e)
            for b, s, e in zip(blocks.tolist(), starts.tolist(), ends.tolist(), strict=True)
        ]
        for layer in range(2)
    ]
    yield from _equal("fingerprints", found, np.array(wanted, np.uint64))
    whole = backend.fingerprint_blocks(cache, blocks, np.zeros_like(ends), ends)
    front = backend.fingerprint_blocks(cache, blocks, np.zeros_like(ends), starts)
    yield from _equal("the sum of two parts", whole, front + found)
    full = backend.fingerprint_blocks(cache, np.arange(3), np.zeros(3, np.int64), np.full(3, shape[3]))
    yield from _equal("fingerprints of all blocks", full, twins.fingerprint_arrays(cache))


def _compare_mapping(case: Case) -> Iterator[str]:
    random = case.random
    ratio, small = _one(random, 1, 4), _one(random, 1, 6)
    size, world = ratio * small, _one(random, 1, 4)
    interleave = int(random.choice([n for n in range(1, size + 1) if size % n == 0]))
    table = random.integers(0, 2**31, (4, 3 * ratio), np.int32)
    lengths = _ints(random, 1, 4, 4).astype(np.int32) * ratio
    rows = _ints(random, -1, 4, _one(random, 0, 12))
    ends = np.where(rows < 0, 1, lengths[rows] // ratio * size * world)
    positions = (random.random(len(rows)) * ends).astype(np.int64)
    split = {"ratio": ratio, "world": world, "interleave": interleave}
    seen = np.zeros(len(rows), np.int64)
    for rank in range(world):
        slots = case.backend.compute_slot_mapping(table, lengths, rows, positions, size, rank=rank, **split)
        wanted = [
            twins.slot_of(table[row].tolist(), position, size, rank=rank, **split) if row >= 0 else -1
            for row, position in zip(rows.tolist(), positions.tolist(), strict=True)
        ]
        yield from _equal(f"slots on rank {rank}", slots.tolist(), wanted)
        seen += slots >= 0
    yield from _equal("ranks per position", seen, (rows >= 0).astype(np.int64))
    if world == 1:
        plain = NumpyBackend().compute_slot_mapping(table, lengths, rows, positions, small)
        yield from _equal("slots of kernel blocks", slots, plain)


# --- any element, any layout --------------------------------------------------------------------


def _random_bytes(random: Random, shape: tuple[int, ...], kind: Any) -> Array:
    count = int(np.prod(shape)) * np.dtype(kind).itemsize
    return np.frombuffer(random.bytes(count), kind).reshape(shape).copy()


def _new_cache(random: Random, shape: tuple[int, ...], kind: Any) -> Array:
    """A view `[layers, blocks, sides, block_size, heads, dims]` of memory in one of five orders."""
    layers, blocks, sides, size, heads, dims = shape
    order = _one(random, 0, 4)
    if order == 0:  # NHD, a pool for keys and one for values
        memory = _random_bytes(random, (layers, sides, blocks, size, heads, dims), kind)
        return memory.transpose(0, 2, 1, 3, 4, 5)
    if order == 1:  # HND
        memory = _random_bytes(random, (layers, blocks, sides, heads, size, dims), kind)
        return memory.transpose(0, 1, 2, 4, 3, 5)
    if order == 2:  # key and value of a head next to each other
        memory = _random_bytes(random, (layers, blocks, size, heads, sides, dims), kind)
        return memory.transpose(0, 1, 4, 2, 3, 5)
    if order == 3:  # rows with something else behind them, so that the next one begins anywhere
        wider = (*shape[:5], dims + int(random.choice([1, 4, max(1, 8 // np.dtype(kind).itemsize)])))
        return _random_bytes(random, wider, kind)[..., :dims]
    return _random_bytes(random, shape, kind)


def _new_tokens(random: Random, shape: tuple[int, ...], kind: Any) -> Array:
    """A view of tokens that may lie apart, as slices of something wider do."""
    count, layers, sides, heads, dims = shape
    before, behind = _one(random, 0, 3), _one(random, 0, 3)
    if random.random() < 0.5:
        return _random_bytes(random, (layers, count, sides, heads, before + dims + behind), kind)[
            ..., before : before + dims
        ].transpose(1, 0, 2, 3, 4)
    return _random_bytes(random, (count, layers, sides, heads + before, dims), kind)[:, :, :, before:]


def _compare_layouts(case: Case) -> Iterator[str]:
    random, kernels = case.random, case.kernels
    kind = KINDS[_one(random, 0, len(KINDS) - 1)]
    layers, blocks, sides, size, heads = (_one(random, 1, most) for most in (2, 5, 2, 5, 3))
    dims = int(random.choice([1, 3, 8, 16, 46]))
    shape = layers, blocks, sides, size, heads, dims
    cache = _new_cache(random, shape, kind)
    tokens = _new_tokens(random, (_one(random, 1, 9), layers, sides, heads, dims), kind)
    slots = _slots(case, len(tokens), blocks * size)
    yield from _compare_packed(kernels, tokens[:, :1, :1], slots, blocks, size)
    wanted, inside = cache.copy(), np.flatnonzero((slots >= 0) & (slots < blocks * size))
    _, firsts = np.unique(slots[inside], return_index=True)
    single = inside[firsts] if len(firsts) == len(inside) else inside[:0]
    counted = kernels.reshape_and_cache(tokens, cache, slots)
    outside = int(((slots < -1) | (slots >= blocks * size)).sum())
    yield from _equal("counts of a write", counted, Counted(outside, len(inside) - len(firsts)))
    if len(single) == len(inside):
        for i in single:
            wanted[:, slots[i] // size, :, slots[i] % size] = tokens[i]
        yield from _equal("the cache after a write", _bytes(cache), _bytes(wanted))
    read = _new_tokens(random, tokens.shape, kind)[: len(inside)]
    yield from _equal("counts of a read", kernels.gather_slots(read, cache, slots[inside]), Counted())
    found = cache[:, slots[inside] // size, :, slots[inside] % size]
    yield from _equal("tokens read", _bytes(read), _bytes(found))
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
    yield from _equal("packed keys", _bytes(memory), _bytes(wanted))


def _compare_block_moves(case: Case, cache: Array) -> Iterator[str]:
    random, kernels = case.random, case.kernels
    blocks, size = cache.shape[1], cache.shape[3]
    order = random.permutation(blocks).astype(np.int64)
    sources, targets = order[: blocks // 2], order[blocks // 2 :][: blocks // 2]
    tokens = _ints(random, 0, size + 1, len(sources))
    wanted = cache.copy()
    for source, target, count in zip(sources, targets, tokens, strict=True):
        wanted[:, target, :, :count] = cache[:, source, :, :count]
    kernels.copy_blocks(cache, cache, sources, targets, tokens)
    yield from _equal("the cache after copies", _bytes(cache), _bytes(wanted))
    ends = sum(s * (n - 1) for s, n in zip(cache.strides[3:], cache.shape[3:], strict=True))
    if ends + cache.itemsize == np.prod(cache.shape[3:]) * cache.itemsize:
        kernels.zero_blocks(cache, order[:1])
        wanted[:, order[0]] = 0
        yield from _equal("the cache after zeroing", _bytes(cache), _bytes(wanted))


# --- numbers ------------------------------------------------------------------------------------


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


def _compare_quantized(case: Case) -> Iterator[str]:
    random, kernels = case.random, case.kernels
    kind = KINDS[_one(random, 0, 2)]
    shape = (2, 3, 2, 4, _one(random, 1, 3), _one(random, 1, 9))
    tokens = _random_bytes(random, (6, 2, 2, *shape[4:]), kind)
    cache = _new_cache(random, shape, np.uint8)
    wanted = cache.copy()
    slots = _slots(case, 6, 12)
    scales = random.choice(np.array([0.5, 1, 2, 3], np.float32), shape[2:5:2])
    kernels.quantize_and_cache(tokens, cache, slots, scales)
    values = twins.bf16_values(tokens) if kind is np.uint16 else tokens.astype(np.float32)
    if len(np.unique(slots[slots >= 0])) < (slots >= 0).sum():
        return
    with np.errstate(all="ignore"):
        codes = twins.e4m3_of(values / scales[:, :, None])
    for i in np.flatnonzero((slots >= 0) & (slots < 12)):
        wanted[:, slots[i] // 4, :, slots[i] % 4] = codes[i]
    yield from _equal("quantized bytes", cache, wanted)


def _compare_attention(case: Case) -> Iterator[str]:
    random, kernels = case.random, case.kernels
    kind = KINDS[_one(random, 0, 3)]
    heads, group, dims = _one(random, 1, 3), _one(random, 1, 3), int(random.choice([8, 32, 46]))
    blocks, size, rows = 40, _one(random, 1, 7), 2
    shape = (1, blocks, 2, size, heads, dims)
    memory = _new_cache(random, shape, kind)[0]
    memory[:], meant = _numbers(random, memory.shape, kind)
    table = np.stack([random.permutation(blocks)[:20] for _ in range(rows)]).astype(np.int32)
    lengths = _ints(random, 1, 20 * size + 1, rows)
    window = int(random.choice([0, 1, 9, 70]))
    query = random.standard_normal((rows, heads * group, dims)).astype(np.float32)
    scale = dims**-0.5
    # A position that is not to be read would show.
    for row in range(rows):
        table[row, -(-lengths[row] // size) :] = 2**31 - 1
    found, counted = kernels.paged_attention_decode(
        query, memory[:, 0], memory[:, 1], table, lengths, scale=scale, window=window
    )
    yield from _equal("counts of attention", counted, Counted())
    for row in range(rows):
        positions = np.arange(max(0, lengths[row] - window) if window else 0, lengths[row])
        taken = meant[table[row, positions // size], :, positions % size]
        wanted = twins.attention(query[row].astype(np.float64), taken[:, 0], taken[:, 1], scale)
        error = np.abs(found[row] - wanted).max() / np.abs(wanted).max()
        if not error <= TOLERANCE:
            yield f"attention of row {row} is off by {error:.2e} of the largest output"


def _bytes(array: Array) -> bytes:
    return array.tobytes()


def _equal(what: str, found: Any, wanted: Any) -> Iterator[str]:
    if not _same(found, wanted):
        short = isinstance(wanted, Counted | Report | list)
        yield f"{what}: {found} instead of {wanted}" if short else f"{what} differ"


def _same(found: Any, wanted: Any) -> bool:
    if isinstance(wanted, np.ndarray):
        return isinstance(found, np.ndarray) and np.array_equal(found, wanted)
    if type(wanted) is tuple:
        return type(found) is tuple and all(map(_same, found, wanted))
    return bool(found == wanted)


COMPARISONS: Final[dict[str, Callable[[Case], Iterator[str]]]] = {
    "backend": _compare_backend,
    "layouts": _compare_layouts,
    "first words": _compare_first_words,
    "fingerprints": _compare_fingerprints,
    "mapping": _compare_mapping,
    "quantized": _compare_quantized,
    "attention": _compare_attention,
}


def main() -> None:
    """Run cases and print what differs, or what was found; ends with 1 where something is."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--build", choices=("cpu", "cpu-checked"), default="cpu")
    parser.add_argument("--cases", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    checked = CheckedLibrary(build_checked()) if options.build == "cpu-checked" else None
    library: Library = checked or CpuLibrary(build_cpu())
    equal = 0
    for seed in range(options.seed, options.seed + options.cases):
        lines = differences(seed, library, conflicts=checked is None)
        if checked is not None:
            lines += [f"case {seed}: {finding}" for finding in checked.findings]
            checked.findings.clear()
        equal += not lines
        for line in lines[:3]:
            print(line)
    watched = f", {checked.accesses:,} accesses watched" if checked else ""
    print(f"{options.build}: {equal} of {options.cases} cases equal{watched}")
    raise SystemExit(equal < options.cases or not options.cases)


if __name__ == "__main__":
    main()
