"""The kernels on arrays of any element and layout, one method a kernel.

Axes are those of `layouts`: tokens `[n, layers, sides, heads, dims]`, a cache
`[layers, blocks, sides, block_size, heads, dims]`, as views with whatever strides. What a kernel
counted is returned; nothing outside an array was touched.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kvproof.kernels.layouts import (
    CACHE_AXES,
    TOKEN_AXES,
    LayoutError,
    Strided,
    block_moves,
    in_elements,
    strided,
    token_moves,
    zero_moves,
)
from kvproof.kernels.library import Call, Launch, Library
from kvproof.kernels.memory import Array, HostMemory, Memory, addresses

Indices = npt.NDArray[np.int64]
SUFFIXES = {np.dtype(np.float32): "f32", np.dtype(np.float16): "f16", np.dtype(np.uint16): "bf16"}
"""What the kernels call an element; bf16 is kept as its bits."""
CACHED_SUFFIXES = {**SUFFIXES, np.dtype(np.uint8): "e4m3"}
MOST_DIMS = 256


class Counted(NamedTuple):
    """What a launch met: indices outside an array, and slots written twice (if they were watched)."""

    outside: int = 0
    conflicts: int = 0


class Kernels:
    """Launches kernels on arrays of one memory; indices may also come as arrays of numpy.

    Each call ends when its kernel has ended, unless `waits` is off: then it ends when the kernel is
    queued, and counts nothing.
    """

    def __init__(
        self,
        library: Library,
        launch: Launch | None = None,
        memory: Memory | None = None,
        *,
        waits: bool = True,
    ) -> None:
        self.library = library
        self.spread = launch or Launch()
        self.memory = memory or HostMemory()
        self._waits = waits
        self._read, self._written = addresses(library, self.memory)
        self._uncounted = self.memory.full((2,), 0, np.uint64)

    def reshape_and_cache(self, tokens: Array, cache: Array, slots: Indices, watch: bool = True) -> Counted:
        """Write each token to its slot; −1 is padding."""
        claims = self.memory.full((cache.shape[1] * cache.shape[3],), 0, np.uint32) if watch else None
        return self._move("reshape_and_cache", tokens, cache, slots, claims)

    def gather_slots(self, tokens: Array, cache: Array, slots: Indices) -> Counted:
        """Read each token from its slot."""
        return self._move("gather_slots", tokens, cache, slots, None)

    def _move(
        self, kernel: str, tokens: Array, cache: Array, slots: Indices, claims: Array | None
    ) -> Counted:
        moves = token_moves(self._strided(tokens), self._strided(cache))
        if len(tokens) != len(slots):
            raise LayoutError(f"{len(slots)} slots for {len(tokens)} tokens.")
        if kernel == "gather_slots":
            token_at, cache_at = self._written(tokens), self._read(cache)
        else:
            token_at, cache_at = self._read(tokens), self._written(cache)
        slots = self._indices(slots)
        fields = {"count": len(slots), "epoch": 1, "claims": 0 if claims is None else self._written(claims)}
        fields |= {"tokens": token_at, "cache": cache_at, "slots": self._read(slots)}
        return self._run(f"{kernel}_{moves.unit}", moves.fields | fields)

    def copy_blocks(
        self, source: Array, target: Array, sources: Indices, targets: Indices, tokens: Indices
    ) -> Counted:
        """Copy the first tokens of blocks, within a cache or to another array of its form."""
        moves = block_moves(self._strided(source), self._strided(target))
        sources, targets, tokens = map(self._indices, (sources, targets, tokens))
        if not len(sources) == len(targets) == len(tokens):
            raise LayoutError(f"{len(sources)} sources, {len(targets)} targets and {len(tokens)} counts.")
        fields = {"source": self._read(source), "target": self._written(target), "count": len(sources)}
        fields |= {
            "sources": self._read(sources),
            "targets": self._read(targets),
            "tokens": self._read(tokens),
        }
        return self._run(f"copy_blocks_{moves.unit}", moves.fields | fields)

    def zero_blocks(self, cache: Array, blocks: Indices) -> Counted:
        """Zero whole blocks; a block's side must lie together, in any order."""
        moves = zero_moves(self._strided(cache))
        blocks = self._indices(blocks)
        fields = {"cache": self._written(cache), "blocks": self._read(blocks), "count": len(blocks)}
        return self._run(f"zero_blocks_{moves.unit}", moves.fields | fields)

    def quantize_and_cache(self, tokens: Array, cache: Array, slots: Indices, scales: Array) -> Counted:
        """Write tokens of fp32, fp16 or bf16 (its bits, as uint16) as e4m3 bytes, divided by
        `scales [sides, heads]` in fp32."""
        if tokens.dtype not in SUFFIXES or (cache.dtype, scales.dtype) != (np.uint8, np.float32):
            given = f"{tokens.dtype}, {cache.dtype} and {scales.dtype}"
            raise LayoutError(
                f"tokens of fp32, fp16 or bf16 (uint16), a cache of uint8, scales of fp32; not {given}."
            )
        if tokens.ndim != 5 or cache.ndim != 6:
            raise LayoutError(f"tokens have 5 axes and a cache has 6, not {tokens.shape} and {cache.shape}.")
        layers, blocks, sides, block_size, heads, dims = cache.shape
        if tokens.shape != (len(slots), layers, sides, heads, dims) or scales.shape != (sides, heads):
            raise LayoutError(f"tokens {tokens.shape}, scales {scales.shape} for a cache {cache.shape}.")
        slots, scales = self._indices(slots), self.memory.taken(scales)
        fields = dict(zip(TOKEN_AXES, in_elements(self._strided(tokens))[:-1], strict=True))
        fields |= dict(zip(CACHE_AXES, in_elements(self._strided(cache))[:-1], strict=True))
        steps = in_elements(self._strided(scales), row=False)
        fields |= {"scale_side_stride": steps[0], "scale_head_stride": steps[1]}
        fields |= {
            "tokens": self._read(tokens),
            "cache": self._written(cache),
            "slots": self._read(slots),
            "scales": self._read(scales),
        }
        fields |= {"count": len(slots), "layers": layers, "sides": sides, "heads": heads, "units": dims}
        fields |= {"cache_blocks": blocks, "block_size": block_size}
        return self._run(f"quantize_and_cache_{SUFFIXES[tokens.dtype]}", fields)

    def paged_attention_decode(
        self,
        query: Array,
        key: Array,
        value: Array,
        table: Array,
        lengths: Indices,
        *,
        scale: float,
        window: int = 0,
        key_scale: float = 1.0,
        value_scale: float = 1.0,
    ) -> tuple[Array, Counted]:
        """The attention of one query a row, `[rows, query_heads, dims]` in fp32, at its last position.

        `key` and `value` are `[blocks, block_size, heads, dims]` with equal strides, of fp32, fp16,
        bf16 (uint16) or e4m3 (uint8). `lengths` count the positions of a row; with a window only the
        last `window` are read.
        """
        if query.ndim != 3 or key.ndim != 4 or key.shape != value.shape:
            raise LayoutError(f"queries {query.shape}, keys {key.shape} and values {value.shape}.")
        rows, query_heads, dims = query.shape
        blocks, block_size, heads, _ = key.shape
        if key.dtype not in CACHED_SUFFIXES or key.dtype != value.dtype:
            given = f"{key.dtype} and {value.dtype}"
            raise LayoutError(f"keys and values of fp32, fp16, bf16 (uint16) or e4m3 (uint8), not {given}.")
        strides = in_elements(self._strided(key))
        if in_elements(self._strided(value)) != strides:
            raise LayoutError("keys and values lie differently.")
        if not heads or query_heads % heads or not 0 < dims <= MOST_DIMS or key.shape[3] != dims:
            raise LayoutError(f"queries {query.shape} for keys {key.shape}.")
        if query.dtype != np.float32 or not query.flags.c_contiguous or not block_size or window < 0:
            raise LayoutError("queries are contiguous fp32, and neither blocks of 0 nor windows below 0.")
        query, table, lengths = self.memory.taken(query), self.memory.taken(table), self._indices(lengths)
        if table.dtype != np.int32 or table.ndim != 2 or not len(table) == len(lengths) == rows:
            raise LayoutError(f"{rows} queries need as many lengths, and rows of 32 bits.")
        row_stride, _ = in_elements(self._strided(table))
        output = self.memory.full(query.shape, 0, np.float32)
        fields: dict[str, float] = {
            "query": self._read(query), "output": self._written(output),
            "key": self._read(key), "value": self._read(value), "table": self._read(table),
            "lengths": self._read(lengths), "rows": rows, "row_stride": row_stride,
            "row_blocks": table.shape[1], "heads": heads, "query_heads": query_heads, "dims": dims,
            "cache_blocks": blocks, "block_size": block_size, "window": window,
            "block_stride": strides[0], "offset_stride": strides[1], "head_stride": strides[2],
            "scale": scale, "key_scale": key_scale, "value_scale": value_scale,
        }  # fmt: skip
        return output, self._run(f"paged_attention_decode_{CACHED_SUFFIXES[key.dtype]}", fields)

    def _indices(self, values: Indices) -> Indices:
        """Where kernels find them, one behind the other."""
        taken: Indices = self.memory.taken(values)
        if taken.dtype != np.int64 or not taken.flags.c_contiguous:
            raise LayoutError(f"indices are contiguous and of 64 bits, not {taken.dtype}.")
        return taken

    def _strided(self, values: Array) -> Strided:
        return strided(values, self.memory.address(values))

    def _run(self, kernel: str, fields: dict[str, float] | dict[str, int]) -> Counted:
        errors = self.memory.full((2,), 0, np.uint64) if self._waits else self._uncounted
        Call(self.library, kernel, {**fields, "errors": self._written(errors)})(self.spread)
        return Counted(*self.memory.host(errors).tolist()) if self._waits else Counted()
