"""What random calls of the kernels are made of: slots, and arrays in any layout."""

from collections.abc import Iterator
from types import ModuleType
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from kvproof.kernels import words
from kvproof.kernels.backends.base import Report
from kvproof.kernels.backends.cpu_backend import CpuBackend
from kvproof.kernels.calls import Counted, Kernels
from kvproof.kernels.library import address

Array = npt.NDArray[Any]
Random = np.random.Generator

KINDS: Final = (np.float32, np.float16, np.uint16, np.uint8, np.int8)
"""fp32, fp16, bf16 as its bits, fp8 as its bytes, int8."""


class Case(NamedTuple):
    """What a comparison gets: the build's calls, and its own randomness."""

    kernels: Kernels
    backend: CpuBackend
    random: Random
    conflicts: bool
    """Whether a launch may write a place twice."""
    torch: ModuleType | None = None
    """`torch_twins`, where torch takes part."""


def ints(random: Random, low: int, high: int, size: int) -> npt.NDArray[np.int64]:
    return random.integers(low, high, size)


def one(random: Random, low: int, high: int) -> int:
    """A number of `low … high`."""
    return int(random.integers(low, high + 1))


def words_of(random: Random, size: int) -> words.Words:
    return random.integers(0, 2**64, size, np.uint64)


def slots_of(case: Case, count: int, end: int) -> npt.NDArray[np.int64]:
    """Slots as a step writes them: mostly different, a fifth of padding, seldom a wrong or a double one."""
    random = case.random
    slots = random.permutation(end)[:count]
    slots = np.concatenate([slots, np.full(count - len(slots), -1)]).astype(np.int64)
    slots[random.random(count) < 0.2] = -1
    if count and random.random() < 0.2:
        slots[one(random, 0, count - 1)] = random.choice([-2, end, end + 7, 2**40])
    if case.conflicts and count and random.random() < 0.2:
        slots[one(random, 0, count - 1)] = slots[0]
    return slots


def random_bytes(random: Random, shape: tuple[int, ...], kind: Any) -> Array:
    count = int(np.prod(shape)) * np.dtype(kind).itemsize
    return np.frombuffer(random.bytes(count), kind).reshape(shape).copy()


def new_cache(random: Random, shape: tuple[int, ...], kind: Any) -> Array:
    """A view `[layers, blocks, sides, block_size, heads, dims]` of memory in one of five orders."""
    layers, blocks, sides, size, heads, dims = shape
    order = one(random, 0, 4)
    if order == 0:  # NHD, a pool for keys and one for values
        memory = random_bytes(random, (layers, sides, blocks, size, heads, dims), kind)
        return memory.transpose(0, 2, 1, 3, 4, 5)
    if order == 1:  # HND
        memory = random_bytes(random, (layers, blocks, sides, heads, size, dims), kind)
        return memory.transpose(0, 1, 2, 4, 3, 5)
    if order == 2:  # key and value of a head next to each other
        memory = random_bytes(random, (layers, blocks, size, heads, sides, dims), kind)
        return memory.transpose(0, 1, 4, 2, 3, 5)
    if order == 3:  # rows with something else behind them, so that the next one begins anywhere
        wider = (*shape[:5], dims + int(random.choice([1, 4, max(1, 8 // np.dtype(kind).itemsize)])))
        return random_bytes(random, wider, kind)[..., :dims]
    return random_bytes(random, shape, kind)


def new_tokens(random: Random, shape: tuple[int, ...], kind: Any) -> Array:
    """A view of tokens that may lie apart, as slices of something wider do, or whose elements do."""
    count, layers, sides, heads, dims = shape
    before, behind = one(random, 0, 3), one(random, 0, 3)
    if random.random() < 0.2:
        return random_bytes(random, (count, layers, sides, heads, 2 * dims), kind)[..., ::2]
    if random.random() < 0.5:
        return random_bytes(random, (layers, count, sides, heads, before + dims + behind), kind)[
            ..., before : before + dims
        ].transpose(1, 0, 2, 3, 4)
    return random_bytes(random, (count, layers, sides, heads + before, dims), kind)[:, :, :, before:]


def memory_of(view: Array) -> Array:
    """All of the memory that a view is of, with what lies between and behind its elements."""
    memory: Any = view
    while memory.base is not None:
        memory = memory.base
    return np.asarray(memory)


def twin_of(view: Array) -> Array:
    """The same view of a copy of its memory."""
    memory = memory_of(view).copy()
    start = address(view) - address(memory_of(view))
    return np.ndarray(view.shape, view.dtype, memory.reshape(-1).view(np.uint8), start, view.strides)


def bytes_of(view: Array) -> bytes:
    """Of its memory: what isn't the view's must stay as it was, too."""
    return memory_of(view).tobytes()


def equal(what: str, found: Any, wanted: Any) -> Iterator[str]:
    if not same(found, wanted):
        short = isinstance(wanted, Counted | Report | list)
        yield f"{what}: {found} instead of {wanted}" if short else f"{what} differ"


def same(found: Any, wanted: Any) -> bool:
    if isinstance(wanted, np.ndarray):
        return isinstance(found, np.ndarray) and np.array_equal(found, wanted)
    if type(wanted) is tuple:
        return type(found) is tuple and all(map(same, found, wanted))
    return not isinstance(found, np.ndarray) and bool(found == wanted)
