"""A build that runs on another memory, called with arrays of the host.

Around each launch what it may touch is sent there, as it lies, and brought back. So whatever is
written for arrays of numpy (random comparisons of layouts, above all) runs on a GPU unchanged. Bytes
around the arrays and arrays that are only read must come back as they went.
"""

import ctypes
from array import array
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from kvproof.kernels.library import Launch, Library
from kvproof.kernels.memory import bounds

GUARD: Final = 4096
"""Bytes before and behind what is sent, which no kernel may change."""
NEAR: Final = 4096
"""Arrays that lie closer are sent together, with their distance: a kernel may step from one to another."""
ALIGNED: Final = 256
_UNTOUCHED: Final = 0xA5

Raw = npt.NDArray[np.uint8]


class Remote(Protocol):
    """Another memory."""

    def allocate(self, size: int) -> Any:
        """A buffer of so many bytes."""

    def address(self, buffer: Any) -> int:
        """Where kernels find it."""

    def send(self, buffer: Any, data: Raw) -> None:
        """Fill its beginning."""

    def fetch(self, buffer: Any, size: int) -> Raw:
        """Its beginning, when all that was launched has ended."""


class StrayWriteError(RuntimeError):
    """A kernel changed what it was not to: bytes outside its arrays, or an array that is only read."""


class _Span(NamedTuple):
    low: int
    high: int
    writable: bool


class _Area(NamedTuple):
    """Spans that lie near each other, and the image of the memory around them."""

    low: int
    """Where the image begins; its first bytes are the guard's."""
    spans: list[_Span]
    sent: Raw
    buffer: Any
    address: int


class MirrorLibrary:
    """Launches of another library on copies of the host's arrays."""

    def __init__(self, inner: Library, remote: Remote, guard: int = GUARD) -> None:
        """Without a guard what lies apart is sent to buffers of its own, which end with their array: then
        a memory checker sees what is read behind it, too."""
        self.signatures = inner.signatures
        self._inner, self._remote = inner, remote
        self._guard, self._apart = guard, NEAR if guard else 1
        self._watched: dict[tuple[int, int], tuple[npt.NDArray[Any], bool]] = {}

    def watch(self, values: npt.NDArray[Any], writable: bool) -> None:
        """The next launch may read this array, and write it if it is writable."""
        low, high = bounds(values)
        if values.size:
            _, known = self._watched.get((low, high), (values, False))
            self._watched[low, high] = values, writable or known

    def launch(self, kernel: str, parameters: "array[int]", launch: Launch) -> None:
        """Run a kernel to its end on what was registered. Raises `StrayWriteError`."""
        areas = [self._sent(spans) for spans in self._near()]
        names = self.signatures[kernel].addresses
        there = array("q", parameters)
        for place, name in enumerate(self.signatures[kernel].fields):
            if name in names and parameters[place]:
                there[place] = _moved(parameters[place], areas)
        try:
            self._inner.launch(kernel, there, launch)
            for area in areas:
                _bring_back(kernel, area, self._remote.fetch(area.buffer, len(area.sent)))
        finally:
            self._watched.clear()

    def _near(self) -> list[list[_Span]]:
        """What is registered, in order, in groups of what lies together."""
        spans = sorted(_Span(low, high, writable) for (low, high), (_, writable) in self._watched.items())
        groups: list[list[_Span]] = []
        end = 0
        for span in spans:
            if span.low - end < self._apart and groups:
                groups[-1].append(span)
            else:
                groups.append([span])
            end = max(end, span.high)
        return groups

    def _sent(self, spans: list[_Span]) -> _Area:
        # Alignment there is what it is here.
        low = (spans[0].low - self._guard) // ALIGNED * ALIGNED
        image = np.full(max(span.high for span in spans) + self._guard - low, _UNTOUCHED, np.uint8)
        for span in spans:
            image[span.low - low : span.high - low] = _memory(span)
        buffer = self._remote.allocate(len(image))
        if (start := self._remote.address(buffer)) % ALIGNED:
            buffer = self._remote.allocate(len(image) + ALIGNED)
            start = self._remote.address(buffer)
        ahead = -start % ALIGNED
        sent = np.concatenate([np.full(ahead, _UNTOUCHED, np.uint8), image])
        self._remote.send(buffer, sent)
        return _Area(low - ahead, spans, sent, buffer, start)


def _memory(span: _Span) -> Raw:
    view: Raw = np.ctypeslib.as_array((ctypes.c_uint8 * (span.high - span.low)).from_address(span.low))
    return view


def _moved(address: int, areas: list[_Area]) -> int:
    """Where the same byte lies in the other memory. An address of nothing (of an empty array) stays."""
    for area in areas:
        if any(span.low <= address < span.high for span in area.spans):
            return area.address + address - area.low
    return address


def _bring_back(kernel: str, area: _Area, found: Raw) -> None:
    expected = area.sent.copy()
    for span in area.spans:
        if span.writable:
            inside = slice(span.low - area.low, span.high - area.low)
            expected[inside] = found[inside]
    strays = np.flatnonzero(expected != found)
    if len(strays):
        raise StrayWriteError(f"{kernel} changed {len(strays)} bytes that it was not to.")
    for span in area.spans:
        if span.writable:
            _memory(span)[:] = found[span.low - area.low : span.high - area.low]
