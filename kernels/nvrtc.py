"""The source compiled for GPUs, by NVRTC alone: no driver, no toolkit, no header.

NVRTC is the library of the wheels `nvidia-cuda-nvrtc-cu12` and `nvidia-cuda-nvrtc` (CUDA 13), which
CuPy uses too; `$KVPROOF_NVRTC` names another one. An artefact lies in the user's cache under what it
was made from: NVRTC's version, architecture, options and source. `python -m kvproof.kernels.nvrtc FOLDER`
writes all of them to a folder, for a machine with a GPU to load as they are.
"""

import ctypes
import json
import os
import re
import sys
from collections.abc import Iterator, Sequence
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Final

from kvproof.kernels.builds import AbsentError, BuildError, cache_folder, is_whole, keep
from kvproof.kernels.command import Parser, writable
from kvproof.kernels.source import read_source, signatures, source_hash

CUBINS: Final = ("sm_80", "sm_90", "sm_100")
FALLBACK: Final = "compute_80"
"""PTX, for the driver to compile on a GPU of another architecture."""
ARCHITECTURES: Final = (*CUBINS, FALLBACK)
MANIFEST: Final = "manifest.json"
"""What the artefacts of a folder were made from."""

_USAGE: Final = re.compile(
    r"entry function '(\w+)'.*?(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads"
    r".*?Used (\d+) registers",
    re.DOTALL,
)

# Multiplications and additions round one by one, as in the build for a processor.
OPTIONS: Final = ("--std=c++17", "--fmad=false", "--ptxas-options=-v")
LOG: Final = ".log"
"""Beside an artefact what the compilers said, registers and spills among it."""


def find_nvrtc() -> Path | None:
    """The library, if it is installed."""
    if given := os.environ.get("KVPROOF_NVRTC"):
        return Path(given)
    return next(iter(_installed()), None)


def _installed() -> Iterator[Path]:
    for folder in sys.path:
        for place in ("cuda_nvrtc", "cu13"):
            found = sorted((Path(folder) / "nvidia" / place / "lib").glob("libnvrtc.so.*"))
            yield from found


class _Nvrtc:
    """The calls of the library that we need; each raises `BuildError` with the library's words."""

    def __init__(self, path: Path) -> None:
        try:
            self.library = ctypes.CDLL(str(path))
            self.library.nvrtcGetErrorString.restype = ctypes.c_char_p
        except OSError as error:
            raise BuildError(f"{path} can't be loaded: {error}.") from error
        except AttributeError as error:
            raise BuildError(f"{path} is no NVRTC: {error}.") from error

    def call(self, name: str, *arguments: object) -> None:
        code = getattr(self.library, name)(*arguments)
        if code:
            raise BuildError(f"{name}: {self.library.nvrtcGetErrorString(code).decode()}.")

    def version(self) -> str:
        major, minor = ctypes.c_int(), ctypes.c_int()
        self.call("nvrtcVersion", ctypes.byref(major), ctypes.byref(minor))
        return f"{major.value}.{minor.value}"

    def text(self, what: str, program: ctypes.c_void_p) -> bytes:
        size = ctypes.c_size_t()
        self.call(f"nvrtcGet{what}Size", program, ctypes.byref(size))
        found = ctypes.create_string_buffer(size.value)
        self.call(f"nvrtcGet{what}", program, found)
        return found.raw

    def compile(self, source: str, options: tuple[str, ...], what: str) -> tuple[bytes, bytes]:
        """The cubin or the PTX, and what the compilers said."""
        program = ctypes.c_void_p()
        self.call(
            "nvrtcCreateProgram", ctypes.byref(program), source.encode(), b"kv_kernels.cu", 0, None, None
        )
        try:
            given = (ctypes.c_char_p * len(options))(*map(str.encode, options))
            if self.library.nvrtcCompileProgram(program, len(options), given):
                log = self.text("ProgramLog", program).rstrip(b"\0").decode()
                raise BuildError(f"NVRTC refused the source:\n{log[-2000:]}")
            return self.text(what, program), self.text("ProgramLog", program).rstrip(b"\0")
        finally:
            self.call("nvrtcDestroyProgram", ctypes.byref(program))


@lru_cache(maxsize=1)
def _load(path: Path) -> _Nvrtc:
    return _Nvrtc(path)


def artefact_name(architecture: str) -> str:
    """The file that an architecture's artefact is kept in."""
    return f"kv_kernels.{architecture}.{'cubin' if architecture.startswith('sm_') else 'ptx'}"


def ship(folder: Path) -> None:
    """Every artefact, and beside them what they were made from. Raises `BuildError`."""
    built = {artefact_name(each): build_gpu(each).read_bytes() for each in ARCHITECTURES}
    path = find_nvrtc()
    assert path is not None, "it has just built them"
    manifest = {
        "nvrtc": _load(path).version(),
        "options": OPTIONS,
        "source": source_hash(),
        "artefacts": {name: sha256(content).hexdigest() for name, content in built.items()},
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in built.items():
            (folder / name).write_bytes(content)
        (folder / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise BuildError(f"{folder}: {error.strerror or error}.") from error


def shipped(folder: Path, architecture: str) -> Path:
    """An artefact of a folder that `ship` has filled.

    Raises `BuildError` where it isn't there, or damaged, or was made from another source, with other
    options, or nobody says from what.
    """
    built = folder / artefact_name(architecture)
    if not built.is_file():
        raise BuildError(f"{folder} has no {built.name}.")
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        source, options, digest = manifest["source"], manifest["options"], manifest["artefacts"][built.name]
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise BuildError(f"{folder / MANIFEST} doesn't say what {built.name} was made from.") from error
    if source != source_hash():
        raise BuildError(f"{folder} was filled from another source.")
    if options != list(OPTIONS):
        raise BuildError(f"{folder} was filled with other options.")
    if digest != sha256(built.read_bytes()).hexdigest():
        raise BuildError(f"{built} is damaged: it isn't what was put there.")
    return built


def build_gpu(architecture: str, source: str | None = None) -> Path:
    """A cubin for `sm_…`, or PTX for `compute_…`. Raises `BuildError`, also where there is no NVRTC."""
    path = find_nvrtc()
    if path is None:
        raise AbsentError("no NVRTC; the extra cuda12 brings it.")
    nvrtc, source = _load(path), read_source() if source is None else source
    options = (f"--gpu-architecture={architecture}", *OPTIONS)
    what = "CUBIN" if architecture.startswith("sm_") else "PTX"
    key = sha256("\0".join(("nvrtc", nvrtc.version(), *options, source)).encode()).hexdigest()[:32]
    target = cache_folder() / key / artefact_name(architecture)
    if not (is_whole(target) and is_whole(target.with_suffix(LOG))):
        made, log = nvrtc.compile(source, options, what)
        keep(target.with_suffix(LOG), log)
        keep(target, made)
    return target


def resource_usage(architecture: str, source: str | None = None) -> dict[str, tuple[int, int]]:
    """Per kernel of a cubin the registers of a thread, and the bytes of its stack and spills together.

    Raises `BuildError` where there is no NVRTC, or where it says nothing of a kernel.
    """
    source = read_source() if source is None else source
    log = build_gpu(architecture, source).with_suffix(LOG).read_text(encoding="utf-8", errors="replace")
    found = {name: (int(used), sum(map(int, local))) for name, *local, used in _USAGE.findall(log)}
    if missing := signatures(source).keys() - found.keys():
        raise BuildError(f"NVRTC said nothing of {', '.join(sorted(missing))}.")
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Write every artefact, and what they were made from, to a folder."""
    parser = Parser(prog="python -m kvproof.kernels.nvrtc", description=main.__doc__)
    parser.add_argument("folder", type=writable, metavar="FOLDER")
    given = parser.parse_args(arguments)
    try:
        ship(given.folder)
    except BuildError as error:
        parser.error(str(error))
    return 0


if __name__ == "__main__":
    sys.exit(main())
