"""The kernels' one source with every access watched: slow, and it says what a kernel did wrong."""

from kvproof.kernels.backends.cpu_backend import CpuBackend
from kvproof.kernels.builds import build_checked
from kvproof.kernels.checked import CheckedLibrary, Finding, WatchedMemory
from kvproof.kernels.library import Launch

# Enough threads that each has few items: only accesses of different threads can race.
SPREAD = Launch(grid=16, block=4)


class CheckedBackend(CpuBackend):
    """As `CpuBackend`, with findings. What the harness itself writes needn't be registered.

    A read of what no kernel has written is found in the arrays that kernels make, not in a cache: which of
    its tokens are read is the caller's choice, and what nobody wrote there is no right content of any.

    Raises `BuildError` where there is no compiler (`AbsentError`), or where its calls don't arrive.
    """

    name = "cpu-checked"

    def __init__(self, seed: int = 0, source: str | None = None) -> None:
        self.checked = CheckedLibrary(build_checked(source), source, seed=seed)
        super().__init__(self.checked, SPREAD, WatchedMemory(self.checked))

    def take_findings(self) -> tuple[Finding, ...]:
        """What was found since the last call."""
        found = tuple(self.checked.findings)
        self.checked.findings.clear()
        return found
