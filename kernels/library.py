"""A build of the kernels that was loaded, and calls of them."""

import ctypes
import struct
from array import array
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

import numpy.typing as npt

from kvproof.kernels.source import Signature, read_source, signatures

Array = npt.NDArray[Any]


class Launch(NamedTuple):
    """How a kernel's items are spread over threads. No result depends on it.

    `lanes` threads share a row of units that lie together, so that neighbours touch neighbours.
    """

    grid: int = 1
    block: int = 1
    lanes: int = 1


class Library(Protocol):
    """Runs kernels on the memory of some device."""

    signatures: Mapping[str, Signature]

    @property
    def watch(self) -> Callable[[Array, bool], None] | None:
        """Where memory must be registered before a launch: an array, and whether it may be written."""

    def launch(self, kernel: str, parameters: "array[int]", launch: Launch) -> None:
        """Run a kernel, with its struct's fields in order."""


# The C side of numpy's array interface: a capsule that holds the struct `PyArrayInterface`.
_interface = ctypes.pythonapi.PyCapsule_GetPointer
_interface.argtypes = (ctypes.py_object, ctypes.c_char_p)
_interface.restype = ctypes.c_size_t
_DATA_OFFSET: Final = 40 if ctypes.sizeof(ctypes.c_void_p) == 8 else 28


def address(values: Array) -> int:
    """Where an array begins. It must outlive what is done there."""
    # A third of what `values.ctypes.data` takes, which is most of a small launch.
    capsule = values.__array_struct__
    return ctypes.c_size_t.from_address(_interface(capsule, None) + _DATA_OFFSET).value


class Call:
    """A kernel with some of its parameters set once and for all.

    It keeps its parameters between calls, so it serves one thread.
    """

    def __init__(self, library: Library, kernel: str, constants: Mapping[str, float]) -> None:
        """Raises `KeyError` for a field that the kernel hasn't."""
        signature = library.signatures[kernel]
        self._library, self._kernel = library, kernel
        self._places = {name: place for place, name in enumerate(signature.fields)}
        self._parameters = array("q", bytes(8 * len(signature.fields)))
        for name, value in constants.items():
            kind = "d" if name in signature.floating else "q"
            self._parameters[self._places[name]] = struct.unpack("q", struct.pack(kind, value))[0]

    def __call__(self, launch: Launch, **values: int) -> None:
        """Launch with the constants and these fields."""
        parameters, places = self._parameters, self._places
        for name, value in values.items():
            parameters[places[name]] = value
        if "lanes" in places:
            parameters[places["lanes"]] = launch.lanes
        self._library.launch(self._kernel, parameters, launch)


class CpuLibrary:
    """A build by g++. It runs on the calling thread, which keeps Python's lock: its state is global."""

    watch: Callable[[Array, bool], None] | None = None

    def __init__(self, path: Path, source: str | None = None) -> None:
        self.signatures = signatures(read_source() if source is None else source)
        self._functions: dict[str, Any] = {}
        library = ctypes.PyDLL(str(path))
        for name in self.signatures:
            function = getattr(library, name)
            function.argtypes = (ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)
            function.restype = None
            self._functions[name] = function

    def launch(self, kernel: str, parameters: "array[int]", launch: Launch) -> None:
        """Run a kernel to its end."""
        self._functions[kernel](parameters.buffer_info()[0], launch.grid, launch.block)
