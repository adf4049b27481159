"""The kernels' one source, compiled for the processor by g++."""

from kvproof.kernels.backends.source_backend import SourceBackend
from kvproof.kernels.builds import build_cpu
from kvproof.kernels.library import CpuLibrary, Launch, Library
from kvproof.kernels.memory import HostMemory


class CpuBackend(SourceBackend):
    """Arrays of numpy, worked on by the source that a GPU runs too. It serves one thread.

    Raises `BuildError` where there is no compiler (`AbsentError`), or where it refuses the source.
    """

    name = "cpu"

    def __init__(
        self, library: Library | None = None, launch: Launch | None = None, memory: HostMemory | None = None
    ) -> None:
        super().__init__(library or CpuLibrary(build_cpu()), memory or HostMemory(), launch or Launch())
