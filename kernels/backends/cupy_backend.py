"""The kernels' one source on a GPU: the cubin that CI builds, loaded as it is by CuPy."""

from array import array
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from kvproof.kernels.backends.source_backend import SourceBackend
from kvproof.kernels.builds import AbsentError
from kvproof.kernels.library import Launch
from kvproof.kernels.memory import Array, Memory
from kvproof.kernels.nvrtc import CUBINS, FALLBACK, build_gpu, shipped
from kvproof.kernels.source import read_source, signatures

# Neighbouring threads take neighbouring units of a row; enough blocks for a large GPU.
SPREAD = Launch(grid=1024, block=128, lanes=32)


def architecture_for(capability: str) -> str:
    """What to build for a compute capability such as `90`: the newest cubin of the same major
    version that isn't newer than the GPU, else PTX."""
    number = int(capability)
    able = [each for each in CUBINS if number // 10 * 10 <= int(each.removeprefix("sm_")) <= number]
    return able[-1] if able else FALLBACK


def parameters_by_value(parameters: "array[int]") -> npt.NDArray[np.void]:
    """The parameters as one element: CuPy passes an array of size 1 by value."""
    return np.frombuffer(parameters.tobytes(), np.dtype((np.void, 8 * len(parameters))))


class CupyLibrary:
    """Launches on CuPy's current stream and returns at once; what is read back waits."""

    watch = None

    def __init__(self, cupy: Any, built: Path) -> None:
        self.signatures = signatures(read_source())
        module = cupy.RawModule(path=str(built))
        self._functions = {name: module.get_function(name) for name in self.signatures}

    def launch(self, kernel: str, parameters: "array[int]", launch: Launch) -> None:
        """Queue a kernel on the current stream."""
        self._functions[kernel]((launch.grid,), (launch.block,), (parameters_by_value(parameters),))


class CupyMemory(Memory):
    """Arrays of CuPy on the current device."""

    def __init__(self, cupy: Any) -> None:
        self._cupy = cupy

    def full(self, shape: tuple[int, ...], value: int, kind: type[np.generic]) -> Array:
        made, element = self._cupy.empty(shape, kind), np.full(1, value, kind)
        # Without a kernel of CuPy's own, which it would first have to compile.
        if len(set(element.tobytes())) > 1:
            made.set(np.full(shape, value, kind))
        elif made.size:
            made.data.memset_async(element.tobytes()[0], made.nbytes)
        return made

    def empty(self, shape: tuple[int, ...], kind: type[np.generic]) -> Array:
        return self._cupy.empty(shape, kind)

    def taken(self, values: Array) -> Array:
        return self._cupy.asarray(values)

    def host(self, values: Array) -> npt.NDArray[Any]:
        return np.asarray(self._cupy.asnumpy(values))

    def address(self, values: Array) -> int:
        return int(values.data.ptr)

    def errors(self) -> "CupyErrors":
        return CupyErrors(self)


class CupyErrors:
    """Counters on the device; a look at them waits for what was launched."""

    def __init__(self, memory: CupyMemory) -> None:
        self._memory = memory
        self.values = memory.full((2,), 0, np.uint64)

    def failed(self) -> bool:
        """Whether something was counted since the last call."""
        if not self._memory.host(self.values).any():
            return False
        self.values.fill(0)
        return True


def find_cupy() -> Any:
    """CuPy, with a GPU that it can use. Raises `AbsentError` where either is missing."""
    try:
        import cupy
    except ImportError as error:
        raise AbsentError("no CuPy; the extra cuda12 brings it.") from error
    if not cupy.cuda.is_available():
        raise AbsentError("no GPU that CuPy can use.")
    return cupy


def binary_for(cupy: Any, folder: Path | None = None) -> Path:
    """What the current GPU loads: from a folder that CI has filled, or built here by NVRTC.

    Raises `BuildError` where the folder has nothing for this GPU, or not as it was built from this
    source, or where there is no NVRTC.
    """
    architecture = architecture_for(cupy.cuda.Device().compute_capability)
    return build_gpu(architecture) if folder is None else shipped(folder, architecture)


class CupyBackend(SourceBackend):
    """Arrays of CuPy on the current device and stream.

    Raises `BuildError` where CuPy, a GPU or NVRTC is missing.
    """

    name = "cuda"

    def __init__(self) -> None:
        cupy = find_cupy()
        super().__init__(CupyLibrary(cupy, binary_for(cupy)), CupyMemory(cupy), SPREAD)
