"""Where a backend keeps its arrays: the host's memory, or a GPU's."""

from array import array
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from kvproof.kernels.library import Library, address

Array = Any
"""An array of numpy or of CuPy."""


class Memory(Protocol):
    """Makes arrays for kernels, and brings others to where kernels can use them."""

    def full(self, shape: tuple[int, ...], value: int, kind: type[np.generic]) -> Array:
        """A new array."""

    def empty(self, shape: tuple[int, ...], kind: type[np.generic]) -> Array:
        """A new array of anything."""

    def taken(self, values: Array) -> Array:
        """The values where kernels can use them: the same array, if it is there."""

    def host(self, values: Array) -> npt.NDArray[Any]:
        """The values for the host, when all that was launched has ended."""

    def address(self, values: Array) -> int:
        """Where an array begins."""

    def errors(self) -> "Errors":
        """Two counters that kernels add to."""


class Errors(Protocol):
    """What kernels count: indices outside an array, and slots that were written twice."""

    values: Array

    def failed(self) -> bool:
        """Whether something was counted since the last call."""


class HostMemory:
    """Arrays of numpy as they are."""

    def full(self, shape: tuple[int, ...], value: int, kind: type[np.generic]) -> Array:
        # Half of what `np.full` takes for a few elements.
        values = np.empty(shape, kind)
        values.fill(value)
        return values

    def empty(self, shape: tuple[int, ...], kind: type[np.generic]) -> Array:
        return np.empty(shape, kind)

    def taken(self, values: Array) -> Array:
        return values

    def host(self, values: Array) -> npt.NDArray[Any]:
        found: npt.NDArray[Any] = values
        return found

    def address(self, values: Array) -> int:
        return address(values)

    def errors(self) -> "HostErrors":
        return HostErrors()


class HostErrors:
    """Looked at after every launch, where an array of numpy would take longer than a small launch."""

    def __init__(self) -> None:
        self._counts = array("Q", [0, 0])
        self.values = np.frombuffer(self._counts, np.uint64)

    def failed(self) -> bool:
        counts = self._counts
        if not (counts[0] or counts[1]):
            return False
        counts[0] = counts[1] = 0
        return True


def addresses(library: Library, memory: Memory) -> tuple[Callable[[Array], int], Callable[[Array], int]]:
    """The memory's `address`, for an array that kernels only read and for one that they may write;
    where the library watches memory, it learns of the array."""
    watch, at = library.watch, memory.address
    if watch is None:
        return at, at

    def read(values: Array) -> int:
        watch(values, False)
        return at(values)

    def written(values: Array) -> int:
        watch(values, True)
        return at(values)

    return read, written


def bounds(values: npt.NDArray[Any]) -> tuple[int, int]:
    """The addresses of the first byte and behind the last one that a view of numpy reaches."""
    if not values.size:
        return 0, 0
    low: int = values.__array_interface__["data"][0]
    high = low + values.itemsize
    for size, stride in zip(values.shape, values.strides, strict=True):
        if stride < 0:
            low += stride * (size - 1)
        else:
            high += stride * (size - 1)
    return low, high


def own_bytes(values: npt.NDArray[Any]) -> npt.NDArray[np.uint8] | None:
    """1 for each byte within a view's `bounds` that belongs to it, and 0 in its gaps; None without any."""
    if values.flags.forc:
        return None
    low, high = bounds(values)
    found = np.zeros(high - low, np.uint8)
    start = values.__array_interface__["data"][0] - low
    np.ndarray((*values.shape, values.itemsize), np.uint8, found, start, (*values.strides, 1))[:] = 1
    return None if found.all() else found
