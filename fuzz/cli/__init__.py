"""The command line: `kvproof`, one module a command, each loaded when it is called."""

from collections.abc import Sequence


def main(args: Sequence[str] | None = None) -> None:
    """Run the command line and leave with its exit code."""
    from kvproof.fuzz.cli.root import kvproof

    kvproof.main(args=list(args) if args is not None else None, prog_name="kvproof")
