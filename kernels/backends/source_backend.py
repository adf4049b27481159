"""The kernels' one source as a backend, wherever it was built for."""

from collections import Counter
from collections.abc import Hashable, Mapping
from typing import Any, Final, cast

import numpy as np
import numpy.typing as npt

from kvproof.kernels import words
from kvproof.kernels.backends.base import CLEAN, Backend, Cache, Indices, Report, SlotError
from kvproof.kernels.backends.numpy_backend import sort_out
from kvproof.kernels.layouts import UNITS, Strided, block_moves, pair, strided, token_moves
from kvproof.kernels.library import Call, Launch, Library
from kvproof.kernels.memory import Memory, addresses
from kvproof.kernels.words import Geometry, Words

EPOCHS: Final = 2**32 - 1
WIDEST: Final = UNITS[0]
GATHER: Final = "gather_slots"


class SourceBackend(Backend):
    """Runs a build of the source on arrays of one memory. It serves one thread.

    Indices and digests may come as arrays of numpy; a cache, and the keys and values that
    `synthesize` makes, stay where kernels use them. What is told comes back as arrays of numpy.
    """

    def __init__(self, library: Library, memory: Memory, launch: Launch) -> None:
        self.library, self.memory, self.spread = library, memory, launch
        self._calls: dict[Hashable, Call] = {}
        self._errors = memory.errors()
        self._read, self._written = addresses(library, memory)
        self._claims = memory.full((0,), 0, np.uint32)
        self._epoch = 0

    def new_cache(self, geometry: Geometry, blocks: int, block_size: int) -> Cache:
        layers, heads, size = geometry
        return self.memory.full((layers, blocks, 2, block_size, heads, size), words.POISON, np.uint64)

    def synthesize(self, digests: Words, geometry: Geometry) -> tuple[Words, Words]:
        digests = self._vector(digests, np.uint64)
        call = self._calls.get(geometry)
        if call is None:
            words.check_geometry(geometry)
            call = self._prepare(geometry, "synthesize", geometry._asdict())
        contents = self.memory.empty((2, len(digests), *geometry), np.uint64)
        key, value = contents[0], contents[1]
        self._launch(
            call,
            key=self._written(key),
            value=self._written(value),
            digests=self._read(digests),
            tokens=len(digests),
        )
        return key, value

    def reshape_and_cache(self, key: Words, value: Words, cache: Cache, slot_mapping: Indices) -> Report:
        slots = self._vector(slot_mapping, np.int64)
        if len(key) != len(slots) or len(value) != len(slots):
            raise ValueError(f"{len(slots)} slots for {len(key)} keys and {len(value)} values.")
        if not len(slots):
            return CLEAN
        self._move("reshape_and_cache", key, value, cache, slots, claims=self._claim(cache))
        if not self._errors.failed():
            return CLEAN
        # The kernel has counted; which ones they were is worth a look at each slot.
        report, _ = sort_out(slot_mapping.tolist(), cache.shape[1] * cache.shape[3])
        return report

    def gather(self, cache: Cache, slots: Indices) -> tuple[Words, Words]:
        slots = self._vector(slots, np.int64)
        layers, _, _, _, heads, size = cache.shape
        found = self.memory.empty((2, len(slots), layers, heads, size), np.uint64)
        if len(slots):
            self._move(GATHER, found[0], found[1], cache, slots)
            self._refuse("a slot lies outside the cache.")
        told = self.memory.host(found)
        return told[0], told[1]

    def verify_blocks(self, cache: Cache, blocks: Indices, offsets: Indices, digests: Words) -> Indices:
        counts, _ = self.compare_blocks(cache, blocks, offsets, digests)
        return counts

    def compare_blocks(
        self,
        cache: Cache,
        blocks: Indices,
        offsets: Indices,
        digests: Words,
        columns: Indices | None = None,
        results: int | None = None,
    ) -> tuple[Indices, Words]:
        """How many words differ, and the least place of one, per layer and result column.

        A column is a token's own, or `columns[token]` below `results`. Both are
        `[layers, results]`; a place is `((offset · 2 + side) << 12 | head) << 16 | word`, and
        2^64 − 1 where no word differs. Raises `SlotError` for a place outside the cache.
        """
        blocks, offsets, digests = (
            self._vector(blocks, np.int64),
            self._vector(offsets, np.int64),
            self._vector(digests, np.uint64),
        )
        tokens = len(blocks)
        if not tokens == len(offsets) == len(digests):
            raise ValueError(f"{tokens} blocks, {len(offsets)} offsets and {len(digests)} digests.")
        if columns is not None:
            columns = self._vector(columns, np.int64)
            if len(columns) != tokens or results is None:
                raise ValueError(f"{len(columns)} columns for {tokens} tokens, {results} results.")
        else:
            results = tokens
        counts = self.memory.full((cache.shape[0], results), 0, np.int64)
        firsts = self.memory.full((cache.shape[0], results), words.MASK, np.uint64)
        call = self._over_words("verify_blocks", cache)
        self._launch(
            call,
            cache=self._read(_contiguous(cache)),
            blocks=self._read(blocks),
            offsets=self._read(offsets),
            digests=self._read(digests),
            columns=0 if columns is None else self._read(columns),
            counts=self._written(counts),
            firsts=self._written(firsts),
            tokens=tokens,
            results=results,
        )
        self._refuse("a place lies outside the cache.")
        return self.memory.host(counts), self.memory.host(firsts)

    def fingerprint_blocks(self, cache: Cache, blocks: Indices, starts: Indices, ends: Indices) -> Words:
        """The 128-bit sum over tokens `starts[i] … ends[i] − 1` of block `blocks[i]`, `[layers, n, 2]`.

        Additive over tokens, each half modulo 2^64. Raises `SlotError` for tokens outside the cache.
        """
        blocks, starts, ends = (self._vector(each, np.int64) for each in (blocks, starts, ends))
        if not len(blocks) == len(starts) == len(ends):
            raise ValueError(f"{len(blocks)} blocks, {len(starts)} starts and {len(ends)} ends.")
        sums = self.memory.full((cache.shape[0], len(blocks), 2), 0, np.uint64)
        call = self._over_words("fingerprint_blocks", cache)
        self._launch(
            call,
            cache=self._read(_contiguous(cache)),
            blocks=self._read(blocks),
            starts=self._read(starts),
            ends=self._read(ends),
            digests=self._written(sums),
            count=len(blocks),
        )
        self._refuse("tokens lie outside the cache.")
        return self.memory.host(sums)

    def copy_blocks(self, cache: Cache, sources: Indices, targets: Indices, tokens: Indices) -> Report:
        copies = sources.tolist(), targets.tolist(), tokens.tolist()
        sources, targets, tokens = (self._vector(each, np.int64) for each in (sources, targets, tokens))
        if not len(sources) == len(targets) == len(tokens):
            raise ValueError(f"{len(sources)} sources, {len(targets)} targets and {len(tokens)} counts.")
        if not len(sources):
            return CLEAN
        place = self._written(_contiguous(cache))
        form = "copy_blocks", cache.shape, place % WIDEST
        call = self._calls.get(form)
        if call is None:
            whole = strided(cache, place)
            moves = block_moves(whole, whole)
            call = self._prepare(form, f"copy_blocks_{moves.unit}", moves.fields)
        self._launch(
            call,
            source=place,
            target=place,
            sources=self._read(sources),
            targets=self._read(targets),
            tokens=self._read(tokens),
            count=len(sources),
        )
        outside = self._errors.failed()
        if len(sources) == 1 and not outside:
            return CLEAN
        return _copy_report(*copies, cache.shape)

    def compute_slot_mapping(
        self,
        table: npt.NDArray[np.int32],
        num_blocks: npt.NDArray[np.int32],
        rows: Indices,
        positions: Indices,
        block_size: int,
        *,
        ratio: int = 1,
        world: int = 1,
        rank: int = 0,
        interleave: int = 1,
    ) -> Indices:
        """As in the interface; and −1 for a position that another of `world` ranks holds.

        The table's entries are kernel blocks, `ratio` of them a manager block. Raises
        `ValueError` where `ratio`, or with several ranks `interleave`, doesn't divide the block size.
        """
        if (
            min(block_size, ratio, world, interleave) < 1
            or block_size % ratio
            or (world > 1 and block_size % interleave)
            or not 0 <= rank < world
        ):
            raise ValueError(f"{block_size}, {ratio}, {world}, {rank}, {interleave}: no such split.")
        rows, positions = self._vector(rows, np.int64), self._vector(positions, np.int64)
        num_blocks = self._vector(num_blocks, np.int32)
        if table.dtype != np.int32 or table.ndim != 2 or table.strides[1] != 4 or table.strides[0] % 4:
            table = np.ascontiguousarray(table, np.int32)
        table = self.memory.taken(table)
        if len(rows) != len(positions) or len(num_blocks) < len(table):
            raise ValueError(f"{len(rows)} rows, {len(positions)} positions; {len(num_blocks)} lengths.")
        slots = self.memory.empty((len(rows),), np.int64)
        key = "compute_slot_mapping", table.shape, table.strides, block_size, ratio, world, rank, interleave
        call = self._calls.get(key) or self._prepare(
            key,
            "compute_slot_mapping",
            {
                "table_rows": table.shape[0],
                "table_columns": table.shape[1],
                "row_stride": table.strides[0] // 4,
                "block_size": block_size,
                "ratio": ratio,
                "world": world,
                "rank": rank,
                # One rank holds everything, in whatever portions.
                "interleave": interleave if world > 1 else 1,
            },
        )
        self._launch(
            call,
            table=self._read(table),
            num_blocks=self._read(num_blocks),
            rows=self._read(rows),
            positions=self._read(positions),
            slots=self._written(slots),
            tokens=len(rows),
        )
        self._refuse("a row lies outside the table, a position behind its row's end, or in no block.")
        return self.memory.host(slots)

    # --- calls -----------------------------------------------------------------------------

    def _launch(self, call: Call, **values: int) -> None:
        if self.library.watch is not None:
            self.library.watch(self._errors.values, True)
        call(self.spread, **values)

    def _vector(self, values: npt.NDArray[Any], kind: type[np.generic]) -> npt.NDArray[Any]:
        return cast("npt.NDArray[Any]", self.memory.taken(_flat(values, kind)))

    def _prepare(self, key: Hashable, kernel: str, constants: Mapping[str, float]) -> Call:
        if len(self._calls) >= 512:
            self._calls.clear()
        signature = self.library.signatures[kernel]
        errors = {"errors": self.memory.address(self._errors.values)} if "errors" in signature.fields else {}
        call = self._calls[key] = Call(self.library, kernel, {**constants, **errors})
        return call

    def _move(
        self, kernel: str, key: Words, value: Words, cache: Cache, slots: Indices, claims: int = 0
    ) -> None:
        _words(key), _words(value), _contiguous(cache)
        key, value = self.memory.taken(key), self.memory.taken(value)
        if key.strides != value.strides:
            key, value = key.copy("C"), value.copy("C")
        # A gather writes tokens and reads the cache.
        reads = kernel == GATHER
        token_at, cache_at = (self._written, self._read) if reads else (self._read, self._written)
        start, place = token_at(key), cache_at(cache)
        distance = token_at(value) - start
        # All that the plan depends on.
        form = kernel, key.shape, key.strides, cache.shape, distance, start % WIDEST, place % WIDEST
        call = self._calls.get(form)
        if call is None:
            tokens = pair(strided(key, start), strided(value, start + distance), axis=2)
            moves = token_moves(tokens, strided(cache, place))
            call = self._prepare(form, f"{kernel}_{moves.unit}", moves.fields)
        self._launch(
            call,
            tokens=start,
            cache=place,
            slots=self._read(slots),
            count=len(slots),
            claims=claims,
            epoch=self._epoch,
        )

    def _over_words(self, kernel: str, cache: Cache) -> Call:
        key = kernel, cache.shape
        call = self._calls.get(key)
        if call is None:
            call = self._prepare(key, kernel, word_strides(strided(cache, 0)))
        return call

    def _claim(self, cache: Cache) -> int:
        """The address of the slots' claims, and a new epoch."""
        slots = cache.shape[1] * cache.shape[3]
        if slots > len(self._claims) or self._epoch == EPOCHS:
            self._claims = self.memory.full((max(slots, len(self._claims)),), 0, np.uint32)
            self._epoch = 0
        self._epoch += 1
        return self._written(self._claims)

    def _refuse(self, sentence: str) -> None:
        if self._errors.failed():
            raise SlotError(sentence)


def _flat(values: npt.NDArray[Any], kind: type[np.generic]) -> npt.NDArray[Any]:
    """The values as a contiguous vector; mostly they are one."""
    if values.dtype == kind and values.flags.c_contiguous and values.ndim == 1:
        return values
    return np.ascontiguousarray(values, kind).reshape(-1)


def _words(values: Words) -> Words:
    if values.dtype != np.uint64:
        raise ValueError(f"contents are words of 64 bits, not {values.dtype}.")
    return values


def _contiguous(cache: Cache) -> Words:
    if not cache.flags.c_contiguous:
        raise ValueError("a cache is contiguous; a view of some blocks would be written elsewhere.")
    found: Words = _words(cache)
    return found


def word_strides(cache: Strided) -> dict[str, int]:
    """What the kernels that look at contents are told of a cache."""
    layers, blocks, _, block_size, heads, size = cache.shape
    strides = [stride // 8 for stride in cache.strides]
    return {
        "cache_blocks": blocks,
        "block_size": block_size,
        "layers": layers,
        "heads": heads,
        "words": size,
        "layer_stride": strides[0],
        "block_stride": strides[1],
        "side_stride": strides[2],
        "offset_stride": strides[3],
        "head_stride": strides[4],
    }


def _copy_report(sources: list[int], targets: list[int], tokens: list[int], shape: tuple[int, ...]) -> Report:
    """A copy is outside, or it has a block that another one writes."""
    blocks, block_size = shape[1], shape[3]
    written = Counter(targets)
    outside, conflicts = [], []
    for i, (source, target, count) in enumerate(zip(sources, targets, tokens, strict=True)):
        if not (0 <= source < blocks and 0 <= target < blocks and 0 <= count <= block_size):
            outside.append(i)
        elif written[target] > 1 or written[source] > (source == target):
            conflicts.append(i)
    return Report(tuple(outside), tuple(conflicts))
