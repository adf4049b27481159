"""Detection power as a table, as JSON and as a record."""

import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from kvproof.fuzz.engines.power import NEEDED, Median, Power
from kvproof.fuzz.engines.power_record import FILE, read

HEADS = ("fault", "clause", "engine", "found", "probability", "operations", "seconds")


def document(rows: Sequence[Power]) -> dict[str, Any]:
    """All figures, of every trial too."""
    return {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "reading": reading(rows),
        "rows": [_figures(row) for row in rows],
    }


def _figures(row: Power) -> dict[str, Any]:
    least, most = row.interval
    return {
        "fault": row.fault,
        "corpus": row.corpus,
        "clause": row.clause,
        "engine": row.engine,
        "budget": row.budget,
        "seeds": len(row.trials),
        "killed": row.killed,
        "seen": row.seen,
        "probability": {"value": row.probability, "least": round(least, 4), "most": round(most, 4)},
        "operations": row.operations,
        "seconds": row.seconds,
        "trials": row.trials,
    }


def _cells(row: Power) -> tuple[str, ...]:
    least, _ = row.interval
    return (
        row.fault,
        row.clause,
        row.engine,
        f"{row.killed}/{len(row.trials)}",
        f"≥ {least:.0%}",
        _median(row.operations, 0),
        _median(row.seconds, 2),
    )


def _median(median: Median | None, digits: int) -> str:
    if median is None:
        return "–"
    ends = ("?" if end is None else f"{end:,.{digits}f}" for end in (median.least, median.most))
    return f"{median.value:,.{digits}f} ({'–'.join(ends)})"


def table(rows: Sequence[Power]) -> Table:
    """For a terminal."""
    made = Table(box=None, pad_edge=False, header_style="dim")
    for head in HEADS:
        right = head in HEADS[3:]
        made.add_column(head, justify="right" if right else "left", overflow="fold", no_wrap=right)
    for row in rows:
        name, clause, engine, found, *rest = _cells(row)
        style = "green" if row.probability >= NEEDED else "bold red"
        made.add_row(name, clause, engine, Text(found, style), *rest)
    return made


def reading(rows: Sequence[Power]) -> str:
    """How to read the table."""
    hunts = {row.engine: (len(row.trials), row.budget) for row in rows}
    each = "; ".join(
        f"{seeds} seeds and {budget:,} operations with {engine}"
        for engine, (seeds, budget) in sorted(hunts.items())
    )
    return (
        "A hunt from each seed, until the fault's own clause fell or the budget was spent "
        f"({each}). The probability is the lower end of Wilson's 95 % interval; "
        "operations and seconds are medians with their 95 % intervals by order statistics, on one core "
        "of a shared machine."
    )


def markdown(rows: Sequence[Power]) -> str:
    """The record."""
    lines = ["# Detection power", "", reading(rows), ""]
    lines += [f"| {' | '.join(HEADS)} |", "|---|---|---|---:|---:|---:|---:|"]
    lines += [f"| {' | '.join(_cells(row))} |" for row in rows]
    return "\n".join(lines) + "\n"


def keep(rows: Sequence[Power], folder: Path) -> None:
    """Write the record: the figures and the table. What is there of other engines stays."""
    from kvproof.fuzz.cli.files import write_whole

    path, measured = folder / FILE, {row.engine for row in rows}
    kept = read(path.read_bytes()) if path.exists() else ()
    rows = [*[row for row in kept if row.engine not in measured], *rows]
    write_whole(path, encoded(document(rows)))
    write_whole(folder / "power.md", markdown(rows).encode())


def encoded(value: dict[str, Any]) -> bytes:
    """JSON with a line for each row, so that a record's changes can be read."""
    import msgspec

    rows = value.pop("rows")
    head = msgspec.json.format(msgspec.json.encode(value, order="deterministic"), indent=2).decode()
    body = ",\n".join("    " + msgspec.json.encode(row, order="deterministic").decode() for row in rows)
    return f'{head.removesuffix("}").rstrip()},\n  "rows": [\n{body}\n  ]\n}}\n'.encode()
