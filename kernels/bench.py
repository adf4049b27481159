"""How fast the `cpu` build is beside numpy and torch, on one core.

Figures of one run compare, those of two don't.

Contenders take turns on memory that is warm; a figure is the median of the processor's time, which other
processes don't lengthen much. Torch computes with one thread. `kvproof bench --device cpu` shows
and records it.
"""

import importlib.util
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from statistics import median
from typing import Any, Final, NamedTuple

import numpy as np

from kvproof.kernels import twins
from kvproof.kernels.backends.base import Backend
from kvproof.kernels.backends.cpu_backend import CpuBackend
from kvproof.kernels.backends.numpy_backend import NumpyBackend
from kvproof.kernels.calls import Kernels
from kvproof.kernels.words import Geometry

Calls = Mapping[str, Callable[[], object]]

OURS: Final = "kvproof"
TOKENS, HEADS, DIMS, BLOCK_SIZE = 4096, 8, 128, 16
LEAST: Final = 1000.0
"""Microseconds between two looks at the clock, at least."""
STEP: Final = "fuzz step"
PREFILL: Final = "prefill step"
STEP_LIMIT: Final = 60.0
"""Microseconds for a step's four calls: slots, contents, write, verify."""


class Aim(NamedTuple):
    """What a row should reach: a ratio to another contender, or a time of ours."""

    against: str
    ratio: float = 0.0
    limit: float = 0.0


class Row(NamedTuple):
    """A figure of each contender, in microseconds a call; less is better."""

    name: str
    micros: Mapping[str, float]
    """Medians."""
    spread: float
    """(third quartile − first) / median, the widest of the contenders'."""
    moved: int
    """Bytes read and written by a call, or 0 where they are not what counts."""
    aim: Aim | None
    reason: str

    @property
    def ratio(self) -> float | None:
        """How many times as fast as whom it is compared with."""
        if self.aim is None or self.aim.against not in self.micros:
            return None
        return self.micros[self.aim.against] / self.micros[OURS]

    @property
    def met(self) -> bool | None:
        """Whether the aim is reached; nothing where there is none, or nobody to compare with."""
        if self.aim is not None and self.aim.limit:
            return self.micros[OURS] <= self.aim.limit
        return None if self.aim is None or self.ratio is None else self.ratio >= self.aim.ratio


class _Made(NamedTuple):
    name: str
    calls: Mapping[str, Callable[[], object]]
    moved: int = 0
    aim: Aim | None = None
    reason: str = ""


def measure(rounds: int, only: str = "", progress: Callable[[str], None] = lambda name: None) -> list[Row]:
    """Every row whose name contains the text. Raises `BuildError` where there is no compiler."""
    rows = []
    with _one_thread():
        for names, make in MAKERS:
            if not any(only in name for name in names):
                continue
            for made in make():
                if only in made.name:
                    progress(made.name)
                    rows.append(_row(made, rounds))
    return rows


def names() -> list[str]:
    """Of all rows."""
    return [name for several, _ in MAKERS for name in several]


def _row(made: _Made, rounds: int) -> Row:
    times: dict[str, list[float]] = {who: [] for who in made.calls}
    repeats = {who: _repeats(call) for who, call in made.calls.items()}
    for _ in range(rounds):
        for who, call in made.calls.items():
            times[who].append(_micros(call, repeats[who]))
    micros = {who: median(each) for who, each in times.items()}
    quartiles = [np.quantile(each, (0.25, 0.75)) for each in times.values()]
    spread = max((high - low) / micros[who] for who, (low, high) in zip(times, quartiles, strict=True))
    return Row(made.name, micros, round(float(spread), 4), made.moved, made.aim, made.reason)


def _micros(call: Callable[[], object], repeats: int) -> float:
    """Of the thread that calls, a call."""
    began = time.thread_time()
    for _ in range(repeats):
        call()
    return (time.thread_time() - began) * 1e6 / repeats


def _repeats(call: Callable[[], object]) -> int:
    """So many calls that the clock's own time is small; the first one, which sets up, is left out."""
    call()
    return max(1, int(LEAST / max(_micros(call, 1), 1.0)))


@contextmanager
def _one_thread() -> Iterator[None]:
    """Torch uses one thread inside."""
    if importlib.util.find_spec("torch") is None:
        yield
        return
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


# --- a step --------------------------------------------------------------------------------------


def step_calls(backend: Backend, geometry: Geometry, blocks: int, size: int, tokens: int) -> Calls:
    """The four calls of a step that writes `tokens` tokens to blocks in random order."""
    random = np.random.default_rng(0)
    cache = backend.new_cache(geometry, blocks, size)
    digests = random.integers(0, 2**64, tokens, np.uint64)
    table = random.permutation(blocks)[: -(-tokens // size)].astype(np.int32)[None]
    lengths = np.array([table.shape[1]], np.int32)
    rows, positions = np.zeros(tokens, np.int64), np.arange(tokens)
    slots = backend.compute_slot_mapping(table, lengths, rows, positions, size)
    key, value = backend.synthesize(digests, geometry)
    backend.reshape_and_cache(key, value, cache, slots)
    blocks_of, offsets = slots // size, slots % size
    return {
        "slots": lambda: backend.compute_slot_mapping(table, lengths, rows, positions, size),
        "contents": lambda: backend.synthesize(digests, geometry),
        "write": lambda: backend.reshape_and_cache(key, value, cache, slots),
        "verify": lambda: backend.verify_blocks(cache, blocks_of, offsets, digests),
    }


def _steps() -> Iterator[_Made]:
    reason = "8 tokens, 2 layers: launches are what costs, so parameters are packed once for each form"
    ours, plain = (step_calls(each, Geometry(2, 2, 2), 9, 4, 8) for each in (CpuBackend(), NumpyBackend()))
    for part in ours:
        yield _Made(f"{STEP}: {part}", {OURS: ours[part], "numpy": plain[part]})
    whole = {who: _in_turn(parts) for who, parts in ((OURS, ours), ("numpy", plain))}
    yield _Made(STEP, whole, aim=Aim("numpy", limit=STEP_LIMIT), reason=reason)
    prefill = {
        who: _in_turn(step_calls(backend, Geometry(8, 8, 32), 128, 16, 1024))
        for who, backend in ((OURS, CpuBackend()), ("numpy", NumpyBackend()))
    }
    reason = "1,024 tokens, 8 layers of 8 heads of 32 words: vectors of words, made and compared in one pass"
    yield _Made(PREFILL, prefill, aim=Aim("numpy", ratio=1), reason=reason)


def _in_turn(calls: Calls) -> Callable[[], object]:
    def run() -> None:
        for call in calls.values():
            call()

    return run


# --- contents ---------------------------------------------------------------------------------------


def _fingerprints() -> Iterator[_Made]:
    backend, geometry = CpuBackend(), Geometry(4, 8, 32)
    cache = backend.new_cache(geometry, 64, 16)
    blocks, starts, ends = np.arange(64), np.zeros(64, np.int64), np.full(64, 16)
    calls: Calls = {
        OURS: lambda: backend.fingerprint_blocks(cache, blocks, starts, ends),
        "numpy": lambda: twins.fingerprint_arrays(cache),
    }
    reason = "two mixes a word in one pass over the cache; numpy makes an array of every intermediate result"
    yield _Made("fingerprint of 64 blocks", calls, cache.nbytes, Aim("numpy", ratio=4), reason)


# --- moving -----------------------------------------------------------------------------------------

_KINDS: Final[dict[str, tuple[type[np.generic], float]]] = {
    "fp32": (np.float32, 0.0), "fp16": (np.float16, 1.0), "bf16": (np.uint16, 1.0),
    "fp8": (np.uint8, 2.0), "int8": (np.int8, 2.0),
}  # fmt: skip
"""What a row's elements are kept as, and how many times as fast as torch it should be written."""
LAYOUTS: Final = {"NHD": "sbohd", "HND": "sbhod", "interleaved": "bohsd", "packed": "sbhdox"}
"""Where axes lie: side, block, offset in it, head, element; x are the elements that fill 16 bytes."""
_REASON: Final = "16 bytes at a time whatever the element; torch's {how} moves them one by one, bytes slowest"
_APART: Final = {
    "HND": "; a head's row lies alone, an eighth of a token's",
    "interleaved": "; a head's key and value lie side by side",
    "packed": "; 16 bytes of a head lie alone",
}


def _pools(layout: str, dtype: type[np.generic]) -> Any:
    """Zeroes that lie so, as a view `[side, block, offset, head, element]`, x last where they are packed."""
    axes, x = LAYOUTS[layout], 16 // np.dtype(dtype).itemsize if layout == "packed" else 1
    sizes = {"s": 2, "b": TOKENS // BLOCK_SIZE, "o": BLOCK_SIZE, "h": HEADS, "d": DIMS // x, "x": x}
    memory = np.zeros([sizes[axis] for axis in axes], dtype)
    return memory.transpose([axes.index(axis) for axis in "sbohdx" if axis in axes])


def _moves(kind: str, layout: str) -> Iterator[_Made]:
    dtype, wanted = _KINDS[kind]
    random = np.random.default_rng(0)
    slots = random.permutation(TOKENS).astype(np.int64)
    pools = _pools(layout, dtype)
    # As a model hands them over: keys and values in arrays of their own.
    given = random.integers(0, 100, (2, TOKENS, *pools.shape[3:]), np.uint8).astype(dtype)
    # What is packed is an element of 16 bytes.
    units = [each.view("V16")[..., 0] if layout == "packed" else each for each in (given, pools)]
    kernels = Kernels(CpuBackend().library)
    tokens, cache = units[0].swapaxes(0, 1)[:, None], units[1].swapaxes(0, 1)[None]
    calls: dict[str, Callable[[], object]] = {
        OURS: lambda: kernels.reshape_and_cache(tokens, cache, slots, watch=False)
    }
    how = "copy"
    if importlib.util.find_spec("torch") is not None:
        how, calls["torch"] = _by_torch(kind, given, pools, slots)
    check_same_work(calls, pools)
    target = np.empty_like(given)
    calls["copy"] = lambda: np.copyto(target, given)
    reason = _REASON.format(how=how) + _APART.get(layout, "")
    aim = Aim("torch", ratio=wanted) if wanted else Aim("torch")
    yield _Made(f"reshape_and_cache {kind} {layout}", calls, 2 * given.nbytes, aim, reason)


def check_same_work(calls: Calls, pools: Any) -> None:
    """Raises `AssertionError` where contenders leave different contents, or none."""
    left = []
    for call in calls.values():
        pools[...] = 0
        call()
        left.append(pools.tobytes())
    if len(set(left)) > 1 or not any(left[0]):
        raise AssertionError(f"{', '.join(calls)} write different contents, or nothing.")


def _by_torch(kind: str, given: Any, pools: Any, slots: Any) -> tuple[str, Callable[[], object]]:
    """What it is called, and the call: `index_copy_` where slots are one axis of the pools, else the
    assignment by block and offset."""
    import torch

    from kvproof.kernels.sharing import tensor_of

    # As torch keeps them; its fp8 can't be copied by index, so as bytes.
    dtype = torch.bfloat16 if kind == "bf16" else None
    sources, targets, index = tensor_of(given, dtype), tensor_of(pools, dtype), torch.from_numpy(slots)
    if targets.stride(1) == BLOCK_SIZE * targets.stride(2):
        flat = targets.flatten(1, 2)
        return "index_copy_", lambda: [flat[side].index_copy_(0, index, sources[side]) for side in range(2)]
    block, offset = index // BLOCK_SIZE, index % BLOCK_SIZE

    def assign() -> None:
        for side in range(2):
            targets[side][block, offset] = sources[side]

    return "indexed assignment", assign


def _moving(kind: str, layout: str) -> Callable[[], Iterator[_Made]]:
    return lambda: _moves(kind, layout)


MAKERS: Final[list[tuple[tuple[str, ...], Callable[[], Iterator[_Made]]]]] = [
    *(
        ((f"reshape_and_cache {kind} {layout}",), _moving(kind, layout))
        for kind in _KINDS
        for layout in LAYOUTS
    ),
    (("fingerprint of 64 blocks",), _fingerprints),
    (
        (
            *(f"{STEP}: {part}" for part in ("slots", "contents", "write", "verify")),
            STEP,
            PREFILL,
        ),
        _steps,
    ),
]
"""What makes the rows of these names."""
