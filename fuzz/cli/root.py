"""The command group: loads commands lazily, turns every outcome into an exit code and one sentence."""

import importlib
import os
import sys
from collections.abc import Sequence
from importlib import metadata
from typing import Any, Final, NoReturn

import click

from kvproof.fuzz.cli.errors import HARNESS_FAULT, INTERRUPTED, USAGE, explain_fault, is_usage, sentence

COMMANDS: Final = {
    "bench": "Measure our manager beside released ones.",
    "check": "Run every phase: smoke, timeline, cases, proofs, explore, fuzz, workload.",
    "conform": "Judge allocators, each in a process of its own.",
    "demo": "Plant a fault, find it, shrink it, explain it, in seconds.",
    "doctor": "Say what can run here, and what is broken.",
    "explain": "Explain a clause, or list them all.",
    "explore": "Try every sequence of operations in a small scope.",
    "faults": "Plant the seeded faults one by one and see each one found.",
    "fuzz": "Drive the allocator with random operations and judge each of them.",
    "observe": "Judge a log of what an engine's own scheduler did.",
    "prove": "Prove the theorems, and refute their wrong variants.",
    "recall": "Find the known bugs of released allocators.",
    "replay": "Replay cases and compare with the verdict that they expect.",
    "shrink": "Make a failing case as small as it gets.",
    "targets": "List, fetch and examine the allocators that can be judged.",
    "workload": "Run a request trace through the allocator.",
}
"""Each command, in the module of its name, with its line in the help."""


class Interrupted(Exception):
    """Ctrl-C."""


class Commands(click.Group):
    """Loads a command's module when the command is called; `--help` loads none."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"kvproof.fuzz.cli.{cmd_name}")
        command = module.command
        assert isinstance(command, click.Command)
        return command

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            # click would print an empty line of its own.
            raise Interrupted from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def main(self, args: Sequence[str] | None = None, *rest: Any, **extra: Any) -> NoReturn:
        """As click's, with our exit codes: 3 for usage, 4 for a fault of the harness, 130 for Ctrl-C."""
        extra["standalone_mode"] = False
        for stream in (sys.stdout, sys.stderr):
            if hasattr(stream, "reconfigure"):
                stream.reconfigure(errors="replace")
        given = list(args) if args is not None else sys.argv[1:]
        sys.exit(self._code(given, rest, extra))

    def _code(self, given: list[str], rest: tuple[Any, ...], extra: dict[str, Any]) -> int:
        try:
            code = super().main(given, *rest, **extra)
            sys.stdout.flush()
            return code if isinstance(code, int) else 0
        except BrokenPipeError:
            # Whoever read our output has gone. Nothing more can be said, and exit must not try.
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            return 141
        except (Interrupted, click.Abort, KeyboardInterrupt):
            click.echo("\n" * sys.stderr.isatty() + "kvproof: interrupted.", err=True)
            return INTERRUPTED
        except Exception as error:
            if is_usage(error):
                click.echo(f"kvproof: {sentence(error)}", err=True)
                return USAGE
            click.echo(f"kvproof: {explain_fault(error, debug='--debug' in given)}", err=True)
            return HARNESS_FAULT


def _version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        click.echo(f"kvproof {metadata.version('kvproof')}")
        ctx.exit()


@click.group(
    cls=Commands, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]}
)
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_version, help="Print the version."
)
@click.option("--debug", is_flag=True, help="Print the traceback of a fault of the harness.")
@click.pass_context
def kvproof(ctx: click.Context, debug: bool) -> None:
    """Check a paged KV-cache manager against its executable specification.

    Exit codes: 0 holds, 1 violated, 2 undecided, 3 usage, 4 a fault of the harness.

    \b
    Examples:
      kvproof demo                      see a fault found, shrunk and explained
      kvproof check --profile quick     everything, within a minute
      kvproof explain KV-I2-key         what a clause means and where to look
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())
        raise click.UsageError("a command is missing; 'kvproof demo' is a good first one")
