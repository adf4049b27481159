"""Random calls of every kernel, in random layouts and geometries, compared with numpy bit by bit.

`python -m kvproof.kernels.differential --cases 5000` runs them on the `cpu` build, with
`--build cpu-checked` on the one that is watched; where torch is installed it computes everything it
can express too. A case is a seed.
"""

import importlib.util
import sys
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Final

import numpy as np

from kvproof.kernels.backends.cpu_backend import CpuBackend
from kvproof.kernels.builds import BuildError, build_checked, build_cpu
from kvproof.kernels.calls import Kernels
from kvproof.kernels.checked import CheckedLibrary, WatchedMemory
from kvproof.kernels.command import Parser, at_least
from kvproof.kernels.compare_layouts import compare_layouts
from kvproof.kernels.compare_numbers import compare_attention, compare_quantized
from kvproof.kernels.compare_words import (
    compare_backend,
    compare_fingerprints,
    compare_first_words,
    compare_mapping,
)
from kvproof.kernels.drawing import Case
from kvproof.kernels.library import CpuLibrary, Launch, Library

LAUNCHES: Final = (
    Launch(),
    Launch(grid=1, block=7, lanes=2),
    Launch(grid=3, block=1, lanes=1),
    Launch(grid=5, block=32, lanes=8),
    Launch(grid=64, block=3, lanes=32),
)
COMPARISONS: Final[dict[str, Callable[[Case], Iterator[str]]]] = {
    "backend": compare_backend,
    "layouts": compare_layouts,
    "first words": compare_first_words,
    "fingerprints": compare_fingerprints,
    "mapping": compare_mapping,
    "quantized": compare_quantized,
    "attention": compare_attention,
}


def differences(
    seed: int, library: Library, conflicts: bool = True, torch: ModuleType | None = None
) -> list[str]:
    """Where the build and numpy differ in one case, or torch and numpy: no line, or one for each.

    Without `conflicts` nothing in a case is unordered, so a right build has no race in it.
    """
    name, compare = tuple(COMPARISONS.items())[seed % len(COMPARISONS)]
    random = np.random.default_rng(seed)
    launch = LAUNCHES[int(random.integers(len(LAUNCHES)))]
    memory = WatchedMemory(library) if isinstance(library, CheckedLibrary) else None
    case = Case(Kernels(library, launch), CpuBackend(library, launch, memory), random, conflicts, torch)
    return [f"case {seed} ({name}, {launch}): {what}" for what in compare(case)]


def library_of(build: str, source: str | None = None) -> Library:
    """The build `cpu` or `cpu-checked`, of another source if one is given. Raises `BuildError`."""
    if build == "cpu-checked":
        return CheckedLibrary(build_checked(source), source)
    return CpuLibrary(build_cpu(source), source)


def find_torch() -> ModuleType | None:
    """What torch can express, where it is installed."""
    if importlib.util.find_spec("torch") is None:
        return None
    from kvproof.kernels import torch_twins

    return torch_twins


def case_lines(seed: int, library: Library, torch: ModuleType | None = None) -> list[str]:
    """What is wrong in one case: differences, and what a build that is watched has found."""
    checked = library if isinstance(library, CheckedLibrary) else None
    if checked is not None:
        # Its threads are interleaved alike whatever ran before.
        checked.seed = seed
    lines = differences(seed, library, conflicts=checked is None, torch=torch)
    if checked is not None:
        lines += [f"case {seed}: {finding}" for finding in checked.findings]
        checked.findings.clear()
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    """Run cases and print what differs, or what was found; ends with 1 where something is."""
    parser = Parser(prog="python -m kvproof.kernels.differential", description=main.__doc__)
    parser.add_argument("--build", choices=("cpu", "cpu-checked"), default="cpu")
    parser.add_argument("--cases", type=at_least(1), default=5000)
    parser.add_argument("--seed", type=at_least(0), default=0)
    options = parser.parse_args(arguments)
    try:
        library = library_of(options.build)
    except (BuildError, OSError) as error:
        parser.error(str(error))
    torch = find_torch()
    equal = 0
    for seed in range(options.seed, options.seed + options.cases):
        lines = case_lines(seed, library, torch)
        equal += not lines
        for line in lines[:3]:
            print(line)
    watched = f", {library.accesses:,} accesses watched" if isinstance(library, CheckedLibrary) else ""
    others = "numpy and torch" if torch else "numpy"
    print(f"{options.build}: {equal} of {options.cases} cases equal to {others}{watched}")
    return int(equal < options.cases)


if __name__ == "__main__":
    sys.exit(main())
