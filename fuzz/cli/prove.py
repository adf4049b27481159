"""`kvproof prove`."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from kvproof.fuzz.cli.console import console, live, print_json, seconds, verdict
from kvproof.fuzz.cli.errors import CODES
from kvproof.fuzz.reports.terminal import trimmed

if TYPE_CHECKING:
    from kvproof.fuzz.engines.prove import Row


def overall(words: Sequence[str]) -> str:
    """The verdict of all rows. What was skipped proves nothing; a vacuous theorem is undecided."""
    judged = [str(word) for word in words if word != "skipped"]
    if "refuted" in judged:
        return "violated"
    return "holds" if judged and all(word == "proved" for word in judged) else "undecided"


@click.command(short_help="Prove the theorems.")
@click.option("--no-crosshair", is_flag=True, help="Leave out CrossHair, which takes the longest.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON to stdout.")
def command(no_crosshair: bool, as_json: bool) -> int:
    """Prove the theorems about the arithmetic that ships, and refute their wrong variants.

    Exit code 0: all proved; 1: one is refuted; 2: one is undecided.

    \b
    Examples:
      kvproof prove
      kvproof prove --no-crosshair --json
    """
    from kvproof.fuzz.engines.prove import prove

    to = console(as_json)
    with live(to, lambda count, spent: Text(f"proving{count}, {seconds(spent)}")) as line:

        def progress(row: "Row") -> None:
            line.count = f", {row.property} {row.verdict}"

        rows = prove(progress, crosshair=not no_crosshair)
    word = overall([row.verdict for row in rows])
    if as_json:
        print_json([{**vars(row), "verdict": str(row.verdict)} for row in rows])
    else:
        _table(to, rows, word)
    return CODES[word]


def _table(to: Console, rows: Sequence["Row"], word: str) -> None:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("property", "verdict"):
        table.add_column(name, no_wrap=True)
    table.add_column("bound")
    table.add_column("time", justify="right", no_wrap=True)
    table.add_column("controls")
    for row in rows:
        table.add_row(row.property, verdict(str(row.verdict)), row.bound, seconds(row.seconds), row.controls)
    with trimmed(to):
        to.print(table)
        to.print()
        for row in rows:
            if row.title:
                to.print(Text.assemble((row.property, "bold"), f": {row.title}"))
            if row.detail and str(row.verdict) != "proved":
                to.print(Text.assemble("  ", verdict(str(row.verdict)), f": {row.detail}"))
        to.print()
        proved = sum(1 for row in rows if row.verdict == "proved")
        to.print(verdict(word) + Text(f": {proved} of {len(rows)} proved", ""))
