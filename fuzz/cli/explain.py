"""`kvproof explain`."""

import difflib
from typing import Final

import click
import msgspec
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from kvproof.fuzz.cli.console import console, print_json
from kvproof.fuzz.cli.errors import HOLDS, BadInput
from kvproof.fuzz.faults import seeded
from kvproof.fuzz.reports.hints import hint
from kvproof.fuzz.reports.terminal import trimmed
from kvproof.spec.clauses import Clause
from kvproof.spec.invariants import TITLES
from kvproof.spec.oracle import BY_CODE

LEVELS: Final = (
    "answers: hit lengths, granted or refused",
    "rows: the physical block ids",
    "structures: ref counts, free queue, index, events, metrics",
    "device memory and worker rows",
)
"""What each level of sight shows."""


class Explained(msgspec.Struct, frozen=True):
    """A clause as JSON shows it."""

    code: str
    sentence: str
    invariant: str
    title: str
    level: int
    symptom: str
    look: str
    faults: tuple[str, ...]

    @classmethod
    def of(cls, clause: Clause) -> "Explained":
        """All that is known about a clause."""
        found = hint(clause.code)
        related = tuple(fault.id for fault in seeded() if fault.clause == clause.code)
        title = TITLES.get(clause.invariant, clause.invariant)
        return cls(
            clause.code,
            clause.sentence,
            clause.invariant,
            title,
            clause.level,
            found.symptom,
            found.look,
            related,
        )


def clause_of(code: str) -> Clause:
    """A clause by its code, whatever the case of the letters. Raises `BadInput` with near matches."""
    by_upper = {known.upper(): clause for known, clause in BY_CODE.items()}
    if clause := by_upper.get(code.upper()):
        return clause
    wanted = code.upper() if code.upper().startswith("KV-") else f"KV-{code.upper()}"
    near = [by_upper[each].code for each in difflib.get_close_matches(wanted, by_upper, n=3, cutoff=0.75)]
    near = near or ["'kvproof explain' lists them all"]
    meant = " or ".join([", ".join(near[:-1]), near[-1]] if len(near) > 1 else near)
    raise BadInput(
        f"there is no clause {code!r}; {'did you mean ' + meant + '?' if 'KV-' in meant else meant + '.'}"
    )


@click.command(short_help="Explain a clause.")
@click.argument("code", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print JSON to stdout.")
def command(code: str | None, as_json: bool) -> int:
    """Explain a clause: its sentence, what it needs to be judged, how it shows, where to look.

    Without CODE all clauses are listed.

    \b
    Examples:
      kvproof explain
      kvproof explain KV-I4-handout
    """
    to = console()
    if code is None:
        everything = [Explained.of(clause) for clause in sorted(BY_CODE.values(), key=lambda c: c.invariant)]
        if as_json:
            print_json(everything)
        else:
            _list(to, everything)
        return HOLDS
    explained = Explained.of(clause_of(code))
    if as_json:
        print_json(explained)
    else:
        _one(to, explained)
    return HOLDS


def _one(to: Console, explained: Explained) -> None:
    kind = explained.title if explained.invariant == "P" else f"{explained.invariant} {explained.title}"
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column()
    grid.add_row("needs", f"level {explained.level} ({LEVELS[explained.level]})")
    grid.add_row("symptom", explained.symptom)
    grid.add_row("look at", explained.look)
    if explained.faults:
        grid.add_row("faults", ", ".join(explained.faults))
    with trimmed(to):
        to.print(Text.assemble((explained.code, "bold"), f"  {kind}"))
        to.print(Padding(Text(explained.sentence, "bold"), (0, 0, 1, 2)))
        to.print(Padding(grid, (0, 0, 0, 2)))
        if explained.faults:
            to.print()
            to.print(Text(f"See it fall: kvproof faults --only {explained.faults[0]}"))


def _list(to: Console, clauses: list[Explained]) -> None:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("clause", no_wrap=True)
    table.add_column("level", justify="right", no_wrap=True)
    table.add_column("sentence")
    last = ""
    for each in clauses:
        if each.invariant != last:
            table.add_section()
            kind = each.title if each.invariant == "P" else f"{each.invariant} {each.title}"
            table.add_row(Text(kind, "bold"), "", "")
            last = each.invariant
        table.add_row(each.code, str(each.level), each.sentence)
    with trimmed(to):
        to.print(table)
