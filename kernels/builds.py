"""The source compiled for this machine's processor, kept in the user's cache by what it was made from."""

import os
import shutil
import subprocess
import tempfile
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Final

from kvproof.kernels.source import FOLDER, read_source

PRELUDE: Final = FOLDER / "cpu_prelude.h"
CHECKED_PRELUDE: Final = FOLDER / "checked_prelude.h"
CHECKED_RUNTIME: Final = FOLDER / "checked_runtime.cpp"

# Without contraction a multiplication and an addition round as they do in the GPU's build.
OPTIONS: Final = ("-std=c++17", "-fPIC", "-ffp-contract=off", "-fno-strict-aliasing", "-fno-exceptions")
FAST: Final = (*OPTIONS, "-O3", "-march=native")
# An access of the source must stay one access: neither split, nor widened, nor made a call.
CHECKED: Final = (
    *(*OPTIONS, "-O1", "-fsanitize=thread", "-fno-tree-sra"),
    *("-fno-tree-loop-distribute-patterns", "-fno-tree-vectorize", "-fno-builtin"),
)
RUNTIME: Final = ("-std=c++17", "-O2", "-fPIC", "-fno-exceptions")


class BuildError(RuntimeError):
    """No compiler, or it refused the source; the message says which, and what it printed."""


def cache_folder() -> Path:
    """Where artefacts are kept: `$KVPROOF_KERNEL_CACHE`, or `kvproof/kernels` in the user's cache."""
    if given := os.environ.get("KVPROOF_KERNEL_CACHE"):
        return Path(given)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "kvproof" / "kernels"


def compiler() -> str | None:
    """The C++ compiler: `$CXX`, or g++ where there is one."""
    return shutil.which(os.environ.get("CXX") or "g++")


@lru_cache(maxsize=4)
def _version(command: str) -> str:
    done = subprocess.run([command, "--version"], capture_output=True, text=True, check=False, timeout=30)
    return done.stdout


@lru_cache(maxsize=1)
def _processor() -> str:
    """What `-march=native` depends on: a cache may be shared by machines."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return " ".join(os.uname())
    wanted = ("model name", "flags", "Features", "CPU part")
    return "\n".join(dict.fromkeys(line for line in lines if line.startswith(wanted)))


def build_cpu(source: str | None = None) -> Path:
    """The fast build for this processor; compiled where it isn't in the cache. Raises `BuildError`."""
    return build(read_source() if source is None else source, PRELUDE, FAST)


def build_checked(source: str | None = None) -> Path:
    """The build whose every access is watched. Raises `BuildError`."""
    return build(read_source() if source is None else source, CHECKED_PRELUDE, CHECKED, CHECKED_RUNTIME)


def build(source: str, prelude: Path, options: tuple[str, ...], runtime: Path | None = None) -> Path:
    """A shared library of the source behind a prelude, and of a runtime with options of its own."""
    command = compiler()
    if command is None:
        raise BuildError("no C++ compiler (g++, or what $CXX names).")
    made_from = [_version(command), _processor(), *options, source, prelude.read_text(encoding="utf-8")]
    if runtime is not None:
        made_from += [*RUNTIME, runtime.read_text(encoding="utf-8")]
    key = sha256("\0".join(made_from).encode()).hexdigest()[:32]
    target = cache_folder() / key / "kv_kernels.so"
    if target.exists():
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix="build-") as folder:
            made = _compile(command, source, prelude, options, runtime, Path(folder))
            # In one step: another process may be building or reading the same.
            made.replace(target)
    except OSError as error:
        raise BuildError(f"{target.parent}: {error.strerror or error}.") from error
    return target


def _compile(
    command: str,
    source: str,
    prelude: Path,
    options: tuple[str, ...],
    runtime: Path | None,
    folder: Path,
) -> Path:
    text, made, part = folder / "kv_kernels.cu", folder / "kv_kernels.so", folder / "kv_kernels.o"
    text.write_text(source, encoding="utf-8")
    inputs = ["-include", str(prelude), "-x", "c++", str(text)]
    if runtime is None:
        _run([command, *options, "-shared", *inputs, "-o", str(made)])
    else:
        # Watched by the runtime: the compiler's own library for this option must not be linked.
        _run([command, *options, "-c", *inputs, "-o", str(part)])
        _run([command, *RUNTIME, "-shared", str(part), "-x", "c++", str(runtime), "-o", str(made)])
    return made


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    except subprocess.TimeoutExpired as error:
        raise BuildError("the compiler took more than 300 s.") from error
    if done.returncode:
        said = done.stderr.strip() or "it says nothing"
        raise BuildError(f"the compiler ended with {done.returncode}: {said.splitlines()[0]}\n{said[-2000:]}")
