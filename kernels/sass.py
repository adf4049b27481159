"""The machine code of a cubin: whether rows are really moved 16 bytes at a time, and nothing spills.

NVIDIA's disassembler comes with the wheel `nvidia-cuda-nvdisasm`, a toolkit or Triton; it needs no
GPU. `$KVPROOF_NVDISASM` names another one.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from kvproof.kernels.builds import BuildError

_KERNEL: Final = re.compile(r"^\.text\.(\w+):\n(.*?)(?=^//-{10}|\Z)", re.MULTILINE | re.DOTALL)
# The address in front and a predicate aren't part of the instruction.
_INSTRUCTION: Final = re.compile(
    r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]*)", re.MULTILINE
)


class Machine(NamedTuple):
    """A kernel's instructions, as the names that the disassembler prints, such as `LDG.E.128`."""

    instructions: tuple[str, ...]

    def count(self, *operations: str, width: str = "") -> int:
        """How many are one of the operations, and of the width where one is given."""
        parts = (name.split(".") for name in self.instructions)
        return sum(name[0] in operations and (not width or width in name[1:]) for name in parts)

    @property
    def wide_loads(self) -> int:
        """Loads of 16 bytes from the device's memory."""
        return self.count("LDG", "LD", width="128")

    @property
    def wide_stores(self) -> int:
        """Stores of 16 bytes to the device's memory."""
        return self.count("STG", "ST", width="128")

    @property
    def local(self) -> int:
        """Loads from and stores to memory of a thread's own: what didn't fit in registers."""
        return self.count("LDL", "STL")


def find_disassembler() -> Path | None:
    """`nvdisasm`, if it is installed."""
    if given := os.environ.get("KVPROOF_NVDISASM"):
        return Path(given)
    return next((path for path in _installed() if path.is_file()), None)


def _installed() -> Iterator[Path]:
    for folder in map(Path, sys.path):
        yield folder / "nvidia" / "cu13" / "bin" / "nvdisasm"
        yield folder / "nvidia" / "cuda_nvdisasm" / "bin" / "nvdisasm"
    if found := shutil.which("nvdisasm"):
        yield Path(found)
    for root in (os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"):
        if root:
            yield Path(root) / "bin" / "nvdisasm"
    for folder in map(Path, sys.path):
        yield folder / "triton" / "backends" / "nvidia" / "bin" / "nvdisasm"


def disassemble(cubin: Path) -> dict[str, Machine]:
    """Every kernel of a cubin. Raises `BuildError` where there is no disassembler, or it refuses."""
    command = find_disassembler()
    if command is None:
        raise BuildError("no nvdisasm; the wheel nvidia-cuda-nvdisasm brings it.")
    try:
        done = subprocess.run([command, "-c", cubin], capture_output=True, text=True, check=False, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BuildError(f"{command} can't be run: {error}.") from error
    if done.returncode:
        raise BuildError(f"nvdisasm ended with {done.returncode}: {done.stderr[-500:]}")
    return kernels_of(done.stdout)


def kernels_of(listing: str) -> dict[str, Machine]:
    """Every kernel of a listing. Raises `BuildError` for one without any: nothing would be seen."""
    found = {name: Machine(tuple(_INSTRUCTION.findall(body))) for name, body in _KERNEL.findall(listing)}
    if not found or not all(each.instructions for each in found.values()):
        raise BuildError("a listing without kernels, or a kernel without instructions.")
    return found
