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


DIGEST: Final = ".sha256"
"""Beside an artefact what its content adds up to."""


class BuildError(RuntimeError):
    """A build that can't be had; the message's first line is a sentence that says why."""


class AbsentError(BuildError):
    """What it takes isn't on this machine: a compiler, CuPy, a GPU, NVRTC."""


def cache_folder() -> Path:
    """Where artefacts are kept: `$KVPROOF_KERNEL_CACHE`, or `kvproof/kernels` in the user's cache."""
    if given := os.environ.get("KVPROOF_KERNEL_CACHE"):
        return Path(given)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "kvproof" / "kernels"


def is_whole(artefact: Path) -> bool:
    """Whether it is there as it was kept. One that was cut short would end the process that loads it."""
    try:
        kept = artefact.with_name(artefact.name + DIGEST).read_text(encoding="utf-8")
        return kept == sha256(artefact.read_bytes()).hexdigest()
    except (OSError, ValueError):
        return False


def keep(artefact: Path, content: bytes) -> None:
    """Write an artefact and its digest. Raises `BuildError` where the cache can't be written."""
    digest = artefact.with_name(artefact.name + DIGEST), sha256(content).hexdigest().encode()
    try:
        artefact.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=artefact.parent, prefix="build-") as folder:
            # Each in one step: another process may be building or reading the same.
            for path, data in (digest, (artefact, content)):
                draft = Path(folder) / path.name
                draft.write_bytes(data)
                draft.replace(path)
    except OSError as error:
        raise BuildError(
            f"{artefact.parent}: {error.strerror or error}; $KVPROOF_KERNEL_CACHE names another folder."
        ) from error


def compiler() -> str | None:
    """The C++ compiler: `$CXX`, or g++ where there is one."""
    return shutil.which(os.environ.get("CXX") or "g++")


@lru_cache(maxsize=4)
def _version(command: str) -> str:
    return _run([command, "--version"])


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
    """A shared library of the source behind a prelude, and of a runtime with options of its own.

    Compiled where it isn't in the cache, or not as it was kept. Raises `BuildError`.
    """
    command = compiler()
    if command is None:
        raise AbsentError("no C++ compiler (g++, or what $CXX names).")
    made_from = [_version(command), _processor(), *options, source, prelude.read_text(encoding="utf-8")]
    if runtime is not None:
        made_from += [*RUNTIME, runtime.read_text(encoding="utf-8")]
    key = sha256("\0".join(made_from).encode()).hexdigest()[:32]
    target = cache_folder() / key / "kv_kernels.so"
    if not is_whole(target):
        try:
            with tempfile.TemporaryDirectory(prefix="kvproof-build-") as folder:
                made = _compile(command, source, prelude, options, runtime, Path(folder))
        except OSError as error:
            raise BuildError(f"nowhere to compile: {error}.") from error
        keep(target, made)
    return target


def _compile(
    command: str,
    source: str,
    prelude: Path,
    options: tuple[str, ...],
    runtime: Path | None,
    folder: Path,
) -> bytes:
    text, made, part = folder / "kv_kernels.cu", folder / "kv_kernels.so", folder / "kv_kernels.o"
    text.write_text(source, encoding="utf-8")
    inputs = ["-include", str(prelude), "-x", "c++", str(text)]
    if runtime is None:
        _run([command, *options, "-shared", *inputs, "-o", str(made)])
    else:
        # Watched by the runtime: the compiler's own library for this option must not be linked.
        _run([command, *options, "-c", *inputs, "-o", str(part)])
        _run([command, *RUNTIME, "-shared", str(part), "-x", "c++", str(runtime), "-o", str(made)])
    return made.read_bytes()


def _run(command: list[str]) -> str:
    """What the compiler prints."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", check=False, timeout=300
        )
    except OSError as error:
        raise BuildError(f"{command[0]} can't be run: {error.strerror or error}.") from error
    except subprocess.TimeoutExpired as error:
        raise BuildError("the compiler took more than 300 s.") from error
    if done.returncode:
        said = done.stderr.strip() or "it says nothing"
        raise BuildError(f"the compiler ended with {done.returncode}: {said.splitlines()[0]}\n{said[-2000:]}")
    return done.stdout
