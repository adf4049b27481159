"""Launches with every access watched: what a kernel does wrong is a finding, whatever it computed.

The compiler calls the runtime at each load, store and atomic of the unchanged source. Threads are
interleaved by a seed, at accesses and at barriers. Launches may be held and run together: those of
one stream in order, others at the same time unless an event orders them.
"""

import ctypes
import weakref
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from kvproof.kernels.builds import BuildError
from kvproof.kernels.library import Call, Launch, address
from kvproof.kernels.memory import Array, HostMemory, bounds, own_bytes
from kvproof.kernels.source import read_source, signatures

MOST_ACCESSES: Final = 500_000_000
NO_VIEW, SHARED_VIEW = -1, -2
NOWHERE: Final = "no array"
"""The array of an access that hits none."""
_FIELDS: Final = (
    "kind", "launch", "block", "thread", "address", "size", "write",
    "other_launch", "other_block", "other_thread", "line", "view",
)  # fmt: skip


class Wrong(IntEnum):
    """What an access can do wrong; the first three stop its thread before it happens."""

    OUT_OF_BOUNDS = 0
    WRITE_TO_CONST = 1
    MISALIGNED = 2
    UNINITIALISED = 3
    RACE = 4
    DIVERGENCE = 5
    """Threads of a block wait at different barriers, or some have ended."""
    ENDLESS = 6


class Finding(NamedTuple):
    """A wrong access of a kernel's thread; for a race also the other one."""

    wrong: Wrong
    kernel: str
    thread: tuple[int, int]
    """Its block, and its place in it."""
    write: bool
    size: int
    offset: int
    """In bytes in the array that was accessed; an address where it was none."""
    array: str
    other: tuple[str, int, int] | None
    """The other access's kernel, block and thread."""

    def __str__(self) -> str:
        # Where no array is the address says nothing, and would differ from run to run.
        place = "outside every array" if self.array == NOWHERE else f"at {self.offset:#x} of {self.array}"
        what = f"{'writes' if self.write else 'reads'} {self.size} bytes {place}"
        if self.wrong is Wrong.DIVERGENCE:
            what = "waits at a barrier that others of its block don't reach"
        line = (
            f"{self.wrong.name.lower()}: {self.kernel}, block {self.thread[0]} thread {self.thread[1]} {what}"
        )
        if self.other:
            kernel, block, thread = self.other
            line += f", unordered with {kernel}, block {block} thread {thread}"
        return line


class CheckedLibrary:
    """The build whose accesses are watched.

    A launch may access what was registered by `watch` since the launch before it, as it was registered
    there: a view's gaps don't belong to it. Which parameter an address was computed from isn't known;
    of several views that hold it one must allow the access. What is registered by `keep` counts as
    unwritten until a kernel writes it.
    """

    def __init__(
        self,
        path: Path,
        source: str | None = None,
        *,
        seed: int = 0,
        rate: int = 64,
        resident: int = 4,
        most_accesses: int = MOST_ACCESSES,
    ) -> None:
        """`rate` of 1,024 accesses let another thread run; `resident` blocks run at a time.

        A thread that goes on after `most_accesses` of a run is ended as endless.
        """
        self._most_accesses = most_accesses
        self.signatures = signatures(read_source() if source is None else source)
        self.findings: list[Finding] = []
        self.seed, self.rate, self.resident = seed, rate, resident
        self._library = library = ctypes.PyDLL(str(path))
        library.checked_findings.restype = ctypes.c_void_p
        library.checked_accesses.restype = ctypes.c_uint64
        memory = ctypes.c_uint64, ctypes.c_uint64, ctypes.c_void_p, ctypes.c_int
        library.checked_view.argtypes = (ctypes.c_int, *memory)
        library.checked_unwritten.argtypes = memory
        library.checked_submit.argtypes = (
            *(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int),
            *(ctypes.c_uint, ctypes.c_uint, ctypes.c_uint64),
        )
        library.checked_run.argtypes = (ctypes.c_uint64, ctypes.c_uint, ctypes.c_uint, ctypes.c_uint64)
        self._kept: dict[int, npt.NDArray[np.uint8]] = {}
        """By where an array begins, its bytes: 1 for those that nobody has written."""
        self._held: list[_Held] | None = None
        self._watched: list[_Watched] = []
        """What the next launch may access."""
        self._stream = 0
        self._last: dict[int, int] = {}
        """Per stream the bits of the launches that its next one comes after."""
        self._probe()

    def _probe(self) -> None:
        """That the compiler calls the runtime is its own affair: see that it does."""
        digests, words = np.zeros(1, np.uint64), np.zeros(2, np.uint64)
        self.watch(digests, False)
        self.watch(words, True)
        at = bounds(words)[0]
        values = {"key": at, "value": at + 8, "digests": bounds(digests)[0], "tokens": 1}
        sizes = {"layers": 1, "heads": 1, "words": 1}
        before = self.accesses
        Call(self, "synthesize", values | sizes)(Launch())
        if self.accesses == before:
            raise BuildError("the compiler's calls at loads and stores don't arrive.")
        self.seed -= 1

    @property
    def accesses(self) -> int:
        """How many accesses were watched so far: 0 after a launch means that nothing is."""
        return int(self._library.checked_accesses())

    def watch(self, values: npt.NDArray[Any], writable: bool) -> None:
        """The next launch may read this array, and write it if it is writable."""
        if values.size:
            self._watched.append(_Watched(values, own_bytes(values), writable))

    def keep(self, values: npt.NDArray[Any], written: npt.NDArray[np.bool_] | None = None) -> None:
        """From now on a read of what no kernel wrote here is a finding, as long as the array's memory lives.

        `written` are the elements that the host has written already: none, if it isn't given.
        Raises `ValueError` for an array that isn't contiguous.
        """
        if not values.flags.c_contiguous:
            raise ValueError("memory that is kept is contiguous.")
        unwritten = np.ones(values.nbytes, np.uint8)
        if written is not None:
            unwritten[:] = np.repeat(~written.reshape(-1), values.itemsize)
        start, owner = bounds(values)[0], values
        while isinstance(owner.base, np.ndarray):
            owner = owner.base
        self._kept[start] = unwritten
        weakref.finalize(owner, self._kept.pop, start, None)

    def launch(self, kernel: str, parameters: "array[int]", launch: Launch) -> None:
        """Run a kernel to its end, or add it to what is held. Findings are appended."""
        before = self._last.get(self._stream, 0)
        held = _Held(kernel, array("q", parameters), launch, before, tuple(self._watched))
        self._watched.clear()
        if self._held is None:
            self._run([held])
        else:
            self._held.append(held)
            self._last[self._stream] = before | 1 << len(self._held) - 1

    @contextmanager
    def together(self) -> Iterator[None]:
        """Launches are held, and run when the block ends: in order on a stream, else at the same time."""
        self._held, self._stream, self._last = [], 0, {}
        try:
            yield
            self._run(self._held)
        finally:
            self._held, self._stream, self._last = None, 0, {}
            self._watched.clear()

    def on(self, stream: int) -> None:
        """The next held launches are this stream's."""
        self._stream = stream

    def record(self) -> int:
        """An event of the current stream."""
        return self._last.get(self._stream, 0)

    def wait(self, event: int) -> None:
        """What the current stream launches from now on comes after the event."""
        self._last[self._stream] = self._last.get(self._stream, 0) | event

    def _run(self, held: "list[_Held]") -> None:
        if len(held) > 64:
            raise ValueError(f"at most 64 launches run together, not {len(held)}.")
        library = self._library
        library.checked_reset()
        # Memory that is kept may end at any time, where it is part of a cycle.
        kept = tuple(self._kept.items())
        for start, unwritten in kept:
            library.checked_unwritten(start, unwritten.size, address(unwritten), 1)
        names: list[str] = []
        for each in held:
            self._submit(each, names)
        count = library.checked_run(self.seed, self.rate, self.resident, self._most_accesses)
        self.seed += 1
        self.findings += self._read(count, held, names)
        for start, unwritten in kept:
            library.checked_unwritten(start, unwritten.size, address(unwritten), 0)
            if not unwritten.any():
                self._kept.pop(start, None)
        library.checked_reset()

    def _submit(self, held: "_Held", names: list[str]) -> None:
        """Hand a launch to the runtime, and add to `names` the parameters that its views were given as."""
        body = ctypes.cast(getattr(self._library, held.kernel), ctypes.c_void_p)
        at, count = held.parameters.buffer_info()
        self._library.checked_submit(body, at, count, held.launch.grid, held.launch.block, held.before)
        fields = dict(
            zip(reversed(held.parameters), reversed(self.signatures[held.kernel].fields), strict=True)
        )
        for values, mask, writable in held.views:
            low, high = bounds(values)
            place = None if mask is None else address(mask)
            self._library.checked_view(len(names), low, high - low, place, writable)
            names.append(fields.get(address(values), "an array"))

    def _read(self, count: int, held: "list[_Held]", names: list[str]) -> list[Finding]:
        if not count:
            return []
        size = 8 * len(_FIELDS) * count
        table = np.frombuffer(ctypes.string_at(self._library.checked_findings(), size), np.int64)
        return [
            _finding(dict(zip(_FIELDS, row, strict=True)), held, names)
            for row in table.reshape(count, -1).tolist()
        ]


class WatchedMemory(HostMemory):
    """Arrays for kernels to fill: a kernel that reads there what none has written is found."""

    def __init__(self, library: CheckedLibrary) -> None:
        self._library = library

    def empty(self, shape: tuple[int, ...], kind: type[np.generic]) -> Array:
        values = super().empty(shape, kind)
        self._library.keep(values)
        return values


class _Held(NamedTuple):
    kernel: str
    parameters: "array[int]"
    launch: Launch
    before: int
    views: "tuple[_Watched, ...]"


class _Watched(NamedTuple):
    values: npt.NDArray[Any]
    """Kept alive until the kernels have run."""
    mask: npt.NDArray[np.uint8] | None
    """Which bytes are theirs, where they have gaps."""
    writable: bool


def _finding(row: dict[str, int], held: list[_Held], names: list[str]) -> Finding:
    wrong, view = Wrong(row["kind"]), row["view"]
    array = "shared memory" if view == SHARED_VIEW else NOWHERE if view == NO_VIEW else names[view]
    return Finding(
        wrong,
        held[row["launch"]].kernel,
        (row["block"], row["thread"]),
        bool(row["write"]),
        row["size"],
        row["address"],
        array,
        (held[row["other_launch"]].kernel, row["other_block"], row["other_thread"])
        if wrong is Wrong.RACE
        else None,
    )
