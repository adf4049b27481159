"""`kvproof doctor`."""

import ctypes
import importlib.util
import os
import platform
import shutil
from collections.abc import Iterator
from importlib import metadata
from typing import NamedTuple

import click
from rich.table import Table
from rich.text import Text

from kvproof.fuzz import devices, vectors
from kvproof.fuzz.cli import bundled
from kvproof.fuzz.cli.console import console, print_json
from kvproof.fuzz.cli.errors import HARNESS_FAULT, HOLDS, HarnessFault
from kvproof.fuzz.cli.files import check_folder
from kvproof.fuzz.engines import traces
from kvproof.fuzz.faults import FaultError, planted, seeded
from kvproof.fuzz.reports.terminal import trimmed
from kvproof.fuzz.reports.wording import plural
from kvproof.fuzz.targets import TargetError, make_adapter
from kvproof.fuzz.targets.fetch import cache_folder, cached
from kvproof.kernels.backends.cupy_backend import find_cupy
from kvproof.kernels.builds import AbsentError

PACKAGES = {
    "click": "",
    "hypothesis": "",
    "junitparser": "",
    "msgspec": "",
    "numpy": "",
    "rich": "",
    "z3-solver": "",
    "torch": "device tables as tensors",
    "crosshair-tool": "proofs of the contracts",
    "mutmut": "mutants of the manager and the oracle",
}
"""Distribution → what it is for, where kvproof also runs without it."""
TOOLS = {"g++": "builds the device's kernels and the C++ example", "cargo": "builds the Rust example"}


class Finding(NamedTuple):
    """A thing that was looked at: `ok`, `absent` or `broken`, and what there is to say."""

    name: str
    state: str
    what: str


@click.command(short_help="Say what can run here, and what is broken.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON to stdout.")
def command(as_json: bool) -> int:
    """Examine this installation: packages, tools, data, the cache, and the targets in it.

    What is absent limits what can run; what is broken must be mended.

    \b
    Examples:
      kvproof doctor
      kvproof doctor --json
    """
    return report([*machine(), *packages(), *data(), *targets()], as_json)


def report(findings: list[Finding], as_json: bool = False) -> int:
    """Print findings; the exit code says whether anything is broken."""
    broken = sum(each.state == "broken" for each in findings)
    if as_json:
        print_json({"findings": [each._asdict() for each in findings], "broken": broken})
        return HARNESS_FAULT if broken else HOLDS
    to = console()
    table = Table.grid(padding=(0, 2, 0, 0))
    for name, state, what in findings:
        style = {"ok": "green", "broken": "bold red"}.get(state, "dim")
        table.add_row(name, Text(state, style), what)
    with trimmed(to):
        to.print(table)
    to.print()
    to.print(Text(f"{plural(broken, 'thing')} to mend" if broken else "everything that is here works"))
    return HARNESS_FAULT if broken else HOLDS


def machine() -> Iterator[Finding]:
    """The interpreter, the cores, the compilers, and the device that they give."""
    yield Finding("python", "ok", f"{platform.python_version()}, {plural(os.cpu_count() or 1, 'core')}")
    for tool, what in TOOLS.items():
        yield Finding(tool, "ok" if shutil.which(tool) else "absent", what)
    said: list[str] = []
    try:
        name = devices.make(devices.DEFAULT, said.append).name
    except devices.DeviceError as error:
        yield Finding("device", "broken", str(error))
    else:
        yield Finding("device", "absent" if said else "ok", *(said or [f"level 3 on {name}"]))


def packages() -> Iterator[Finding]:
    """What kvproof needs, and what it can use."""
    for name, what in PACKAGES.items():
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            yield Finding(name, "absent" if what else "broken", what or "is needed and not installed")
        else:
            yield Finding(name, "ok", f"{version}: {what}" if what else version)
    yield _cupy()


def _cupy() -> Finding:
    """CuPy is loaded only where the driver has a GPU: it takes its time."""
    if importlib.util.find_spec("cupy") is None:
        return Finding("cupy", "absent", "kernels on a GPU")
    if not _driver_has_gpu():
        return Finding("cupy", "absent", "is installed, but there is no GPU here to run kernels on")
    try:
        find_cupy()
    except AbsentError as error:
        return Finding("cupy", "absent", f"is installed, but: {error}")
    return Finding("cupy", "ok", "kernels on a GPU")


def _driver_has_gpu() -> bool:
    """Whether CUDA's driver is here, and has a GPU."""
    count = ctypes.c_int()
    try:
        driver = ctypes.CDLL("libcuda.so.1")
        asked = driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count))
    except (OSError, AttributeError):
        return False
    return not asked and count.value > 0


def data() -> Iterator[Finding]:
    """The data that ships: cases, vectors, traces, faults, each of which must be whole."""
    try:
        bundled.timeline()
        cases, shown = bundled.conformance(), vectors.bundled()
        yield Finding("cases", "ok", f"{plural(len(cases) + 1, 'case')}, {plural(len(shown), 'vector')}")
    except (HarnessFault, ValueError) as error:
        yield Finding("cases", "broken", str(error))
    try:
        names = [traces.read_trace(traces.bundled(name)).name for name in traces.BUNDLED]
        yield Finding("traces", "ok", ", ".join(names))
    except traces.TraceError as error:
        yield Finding("traces", "broken", str(error))
    try:
        faults = seeded()
        for fault in faults:
            with planted([fault]):
                pass
        yield Finding("faults", "ok", f"{plural(len(faults), 'fault')} can be planted")
    except FaultError as error:
        yield Finding("faults", "broken", str(error))


def targets() -> Iterator[Finding]:
    """The cache, and the families of targets that need nothing or are in it."""
    try:
        check_folder(cache_folder())
        yield Finding("cache", "ok", plural(len(cached()), "package"))
    except ValueError as error:
        yield Finding("cache", "broken", str(error))
    for family in ("reference", "tokasaurus", "nano-vllm-voxcpm"):
        yield _tried(family)


def _tried(target: str) -> Finding:
    if target != "reference" and not any(name.startswith(target) for name in cached()):
        return Finding(target, "absent", "is fetched when it is first judged")
    try:
        adapter = make_adapter(target)
        adapter.close()
    except TargetError as error:
        return Finding(target, "broken", str(error))
    return Finding(target, "ok", f"level {adapter.capabilities.level}")
