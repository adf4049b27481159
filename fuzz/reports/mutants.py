"""What became of the mutants, as JSON, as a record and for a terminal."""

import platform
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from rich.table import Table

from kvproof.fuzz.engines.mutate import OPERATIONS, Row
from kvproof.fuzz.faults.survivors import Survivor, explanation
from kvproof.fuzz.reports.power import encoded


class Left(msgspec.Struct, frozen=True):
    """A survivor, with what kind it is and why; empty as long as nobody said."""

    group: str
    target: str
    line: int
    before: str
    after: str
    kind: str
    reason: str


def left(rows: Sequence[Row], known: Sequence[Survivor]) -> list[Left]:
    """The mutants that survived."""
    found = []
    for row in rows:
        if not row.killed:
            why = explanation(known, row.target, row.before, row.after)
            kind, reason = (why.kind, why.reason) if why else ("", "")
            found.append(Left(row.group, row.target, row.line, row.before, row.after, kind, reason))
    return found


def document(
    rows: Sequence[Row], known: Sequence[Survivor], operations: Mapping[str, int] = OPERATIONS
) -> dict[str, Any]:
    """The counts of each module, what killed how many, and every survivor of soaks of `operations`."""
    return {
        "python": platform.python_version(),
        "operations": {group: operations[group] for group in dict.fromkeys(row.group for row in rows)},
        "modules": [
            {"module": module, "mutants": count, "killed": killed}
            for module, (count, killed) in _modules(rows).items()
        ],
        "killers": dict(Counter(row.by for row in rows if row.killed)),
        "rows": left(rows, known),
    }


def _modules(rows: Sequence[Row]) -> dict[str, tuple[int, int]]:
    found: dict[str, tuple[int, int]] = {}
    for row in rows:
        count, killed = found.get(row.module, (0, 0))
        found[row.module] = count + 1, killed + row.killed
    return found


def table(rows: Sequence[Row], known: Sequence[Survivor]) -> Table:
    """Modules with their mutants, for a terminal."""
    kinds = {module: Counter[str]() for module in _modules(rows)}
    for row in rows:
        if not row.killed:
            why = explanation(known, row.target, row.before, row.after)
            kinds[row.module][why.kind if why else "unexplained"] += 1
    made = Table(box=None, pad_edge=False, header_style="dim")
    made.add_column("module", overflow="fold")
    for head in ("mutants", "killed"):
        made.add_column(head, justify="right", no_wrap=True)
    made.add_column("survivors")
    for module, (count, killed) in _modules(rows).items():
        words = ", ".join(f"{number} {kind}" for kind, number in sorted(kinds[module].items()))
        made.add_row(module.removeprefix("kvproof."), f"{count:,}", f"{killed:,}", words or "–")
    return made


def keep(
    rows: Sequence[Row],
    known: Sequence[Survivor],
    folder: Path,
    operations: Mapping[str, int] = OPERATIONS,
) -> None:
    """Write the record."""
    from kvproof.fuzz.cli.files import write_whole

    write_whole(folder / "mutants.json", encoded(document(rows, known, operations)))
