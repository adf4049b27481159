"""Random calls of the kernels compared with numpy: tests of the phase `device`."""

import time
from collections.abc import Callable
from typing import Final

from kvproof.fuzz.reports.junit import Checked
from kvproof.kernels.differential import case_lines, find_torch, library_of
from kvproof.kernels.faults import all_faults

PLANTED: Final = {"cpu": "table-taken-whole", "cpu-checked": "minus-one-as-index"}
"""For each build the fault of the kernels' source that its cases must show: a difference, an access."""
CONTROL: Final = 210
"""Cases in which it must be seen."""


class Compared:
    """A build of the kernels, and one with a fault in it. Raises `BuildError`."""

    def __init__(self, build: str) -> None:
        (self.fault,) = [each for each in all_faults() if each.name == PLANTED[build]]
        source = self.fault.plant()
        self.build, self.sound, self.broken = build, library_of(build), library_of(build, source)

    def control(self) -> Checked:
        """The planted fault is seen."""
        start = time.perf_counter()
        sign = f"{self.fault.finding.lower()}:" if self.fault.finding else ""
        seen = any(sign in line for seed in range(CONTROL) for line in case_lines(seed, self.broken))
        blind = (
            "" if seen else f"Comparing the kernels is blind: it misses the planted fault {self.fault.name}."
        )
        word = "holds" if seen else "blind"
        return Checked("device", f"{self.build} canary", word, time.perf_counter() - start, message=blind)

    def cases(self, count: int, seed: int, progress: Callable[[str], None]) -> tuple[Checked, int]:
        """Cases up to the first in which something is wrong, and how many. Another seed has others."""
        start, torch = time.perf_counter(), find_torch()
        lines: list[str] = []
        first, done = seed % 2**32 * count, 0
        while done < count and not lines:
            progress(f"{self.build}, {done:,} cases")
            lines, done = case_lines(first + done, self.sound, torch), done + 1
        again = (
            f"python -m kvproof.kernels.differential --build {self.build} --seed {first + done - 1} --cases 1"
        )
        word = "violated" if lines else "holds" if done else "undecided"
        return Checked(
            *("device", f"{self.build} cases", word, time.perf_counter() - start),
            message=f"{lines[0].rstrip('.')}; again: {again}" if lines else "",
            report="\n".join(lines),
        ), done
