"""Random calls of what a backend does, on contents of 64 bits, compared with numpy."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from kvproof.kernels import twins, words
from kvproof.kernels.backends.base import SlotError
from kvproof.kernels.backends.numpy_backend import NumpyBackend
from kvproof.kernels.drawing import Array, Case, equal, ints, one, slots_of, words_of
from kvproof.kernels.words import Geometry


def compare_backend(case: Case) -> Iterator[str]:
    """A short life of a cache on both backends."""
    random, mine, other = case.random, case.backend, NumpyBackend()
    geometry = Geometry(one(random, 1, 3), one(random, 1, 3), one(random, 1, 5))
    blocks, size = one(random, 1, 6), one(random, 1, 6)
    caches = [backend.new_cache(geometry, blocks, size) for backend in (mine, other)]
    for _ in range(3):
        tokens = one(random, 0, 10)
        digests = words_of(random, tokens)
        slots = slots_of(case, tokens, blocks * size)
        made = [backend.synthesize(digests, geometry) for backend in (mine, other)]
        yield from equal("synthesize", made[0], made[1])
        if case.torch:
            yield from equal("torch's contents", case.torch.contents(digests, geometry), np.stack(made[1]))
        written = [
            b.reshape_and_cache(*made[1], cache, slots)
            for b, cache in zip((mine, other), caches, strict=True)
        ]
        yield from equal("the report of a write", written[0], written[1])
        # Which of two writes to a slot stays is not said.
        for i in written[1].conflicts:
            caches[0][:, slots[i] // size, :, slots[i] % size] = caches[1][
                :, slots[i] // size, :, slots[i] % size
            ]
        yield from equal("the cache after a write", *caches)
        yield from _compare_reads(case, caches, slots, digests)
    yield from _compare_copies(case, caches)


def _compare_reads(case: Case, caches: list[Array], slots: Array, digests: words.Words) -> Iterator[str]:
    size = caches[0].shape[3]
    blocks, offsets = np.divmod(slots, size)
    pairs = tuple(zip((case.backend, NumpyBackend()), caches, strict=True))
    found: list[Any] = [_or_refusal(backend.gather, cache, slots) for backend, cache in pairs]
    yield from equal("tokens read", *found)
    for demanded in (digests, digests + 1):
        found = [_or_refusal(backend.verify_blocks, c, blocks, offsets, demanded) for backend, c in pairs]
        yield from equal("words that differ", *found)


def _compare_copies(case: Case, caches: list[Array]) -> Iterator[str]:
    random, blocks, size = case.random, caches[0].shape[1], caches[0].shape[3]
    count = one(random, 0, 4)
    sources, targets = ints(random, 0, blocks, count), ints(random, 0, blocks, count)
    tokens = ints(random, 0, size + 1, count)
    if not case.conflicts:
        # Each block at most once.
        order = random.permutation(blocks).astype(np.int64)
        count = min(count, blocks // 2)
        sources, targets, tokens = order[:count], order[blocks - count :], tokens[:count]
    if count and random.random() < 0.2:
        (sources, targets)[one(random, 0, 1)][0] = random.choice([-1, blocks, 2**40])
    pairs = zip((case.backend, NumpyBackend()), caches, strict=True)
    reports = [backend.copy_blocks(cache, sources, targets, tokens) for backend, cache in pairs]
    yield from equal("the report of copies", *reports)
    if not reports[1].conflicts:
        yield from equal("the cache after copies", *caches)


def _or_refusal(call: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    try:
        return call(*arguments, **named)
    except SlotError:
        return "refused"


def compare_first_words(case: Case) -> Iterator[str]:
    """Counts and first wrong word per block."""
    random, backend = case.random, case.backend
    geometry, blocks, size = Geometry(2, one(random, 1, 3), one(random, 1, 9)), 4, one(random, 1, 4)
    cache = backend.new_cache(geometry, blocks, size)
    digests = words_of(random, blocks * size)
    slots = np.arange(blocks * size)
    backend.reshape_and_cache(*NumpyBackend().synthesize(digests, geometry), cache, slots)
    wrong = [tuple(one(random, 0, n - 1) for n in cache.shape) for _ in range(one(random, 0, 6))]
    for place in wrong:
        cache[place] = ~cache[place] if random.random() < 0.5 else 0
    expected = NumpyBackend().synthesize(digests, geometry)
    differs = cache != np.stack(expected).reshape(2, blocks, size, *geometry).transpose(3, 1, 0, 2, 4, 5)
    order = random.permutation(blocks * size)
    counts, firsts = backend.compare_blocks(
        cache, order // size, order % size, digests[order], order // size, blocks
    )
    yield from equal("counts per block", counts, differs.sum(axis=(2, 3, 4, 5)))
    least = np.full_like(firsts, words.MASK)
    for layer, block, side, offset, head, word in np.argwhere(differs).tolist():
        least_place = ((offset * 2 + side) << 12 | head) << 16 | word
        least[layer, block] = min(least[layer, block], least_place)
    yield from equal("first words per block", firsts, least)


def compare_fingerprints(case: Case) -> Iterator[str]:
    random, backend = case.random, case.backend
    shape = (2, 3, 2, one(random, 1, 5), one(random, 1, 3), one(random, 1, 4))
    cache = words_of(random, int(np.prod(shape))).reshape(shape)
    blocks = ints(random, 0, 3, 4)
    ends = ints(random, 0, shape[3] + 1, 4)
    starts = np.minimum(ints(random, 0, shape[3] + 1, 4), ends)
    found = backend.fingerprint_blocks(cache, blocks, starts, ends)
    wanted = [
        [
            twins.fingerprint(cache[layer, b], s, e)
            for b, s, e in zip(blocks.tolist(), starts.tolist(), ends.tolist(), strict=True)
        ]
        for layer in range(2)
    ]
    yield from equal("fingerprints", found, np.array(wanted, np.uint64))
    whole = backend.fingerprint_blocks(cache, blocks, np.zeros_like(ends), ends)
    front = backend.fingerprint_blocks(cache, blocks, np.zeros_like(ends), starts)
    yield from equal("the sum of two parts", whole, front + found)
    full = backend.fingerprint_blocks(cache, np.arange(3), np.zeros(3, np.int64), np.full(3, shape[3]))
    yield from equal("fingerprints of all blocks", full, twins.fingerprint_arrays(cache))
    if case.torch:
        yield from equal("torch's fingerprints", case.torch.fingerprints(cache), full)


def compare_mapping(case: Case) -> Iterator[str]:
    random = case.random
    ratio, small = one(random, 1, 4), one(random, 1, 6)
    size, world = ratio * small, one(random, 1, 4)
    interleave = int(random.choice([n for n in range(1, size + 1) if size % n == 0]))
    # A view: its rows lie apart.
    table = random.integers(0, random.choice([3, 2**31]), (4, 3 * ratio + 2), np.int32)[:, 1:-1]
    lengths = ints(random, 1, 4, 4).astype(np.int32) * ratio
    rows = ints(random, -1, 4, one(random, 0, 12))
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
        yield from equal(f"slots on rank {rank}", slots.tolist(), wanted)
        if case.torch:
            found = case.torch.slots_of(table, rows, positions, size, rank=rank, **split)
            yield from equal(f"torch's slots on rank {rank}", found.tolist(), wanted)
        seen += slots >= 0
    yield from equal("ranks per position", seen, (rows >= 0).astype(np.int64))
    yield from _compare_refusals(case, table, lengths, size, split)
    yield from _compare_empty_entry(case, table, lengths, size, split)
    if world == 1:
        plain = NumpyBackend().compute_slot_mapping(table, lengths, rows, positions, small)
        yield from equal("slots of kernel blocks", slots, plain)


def _compare_refusals(
    case: Case, table: Array, lengths: Array, size: int, split: dict[str, int]
) -> Iterator[str]:
    """A position behind its row's end or before its beginning, and rows that aren't there."""
    row = one(case.random, 0, len(table) - 1)
    end = int(lengths[row]) // split["ratio"] * size * split["world"]
    for where, position in ((row, end), (row, -1), (len(table), 0), (-2, 0)):
        rows, positions = np.array([where]), np.array([position])
        try:
            found = case.backend.compute_slot_mapping(table, lengths, rows, positions, size, **split)
        except SlotError:
            continue
        yield f"row {where} has slots {found.tolist()} at position {position} of {end}"


def _compare_empty_entry(
    case: Case, table: Array, lengths: Array, size: int, split: dict[str, int]
) -> Iterator[str]:
    """A position whose entry is below 0 is refused by the rank that would hold it, and by no other one."""
    random = case.random
    row, ends = one(random, 0, len(table) - 1), lengths // split["ratio"] * size * split["world"]
    position = one(random, 0, int(ends[row]) - 1)
    table = table.copy()
    table[row] = random.choice([-1, -2, -(2**31)])
    mapping = np.array([row]), np.array([position])
    for rank in range(split["world"]):
        slot = _or_refusal(twins.slot_of, table[row].tolist(), position, size, rank=rank, **split)
        wanted = slot if isinstance(slot, str) else np.array([slot])
        mine = case.backend.compute_slot_mapping
        found = _or_refusal(mine, table, lengths, *mapping, size, rank=rank, **split)
        yield from equal(f"the slot in no block on rank {rank}", found, wanted)
        if case.torch:
            third = _or_refusal(case.torch.slots_of, table, *mapping, size, rank=rank, **split)
            yield from equal(f"torch's slot in no block on rank {rank}", third, wanted)
    plain = _or_refusal(NumpyBackend().compute_slot_mapping, table, lengths, *mapping, size // split["ratio"])
    if split["world"] == 1:
        yield from equal("the slot in no kernel block", plain, "refused")
