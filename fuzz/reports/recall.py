"""Recall as a table, as a record and as JSON."""

import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from rich.table import Table
from rich.text import Text

from kvproof.fuzz.engines.recall import Row, Spread

HEADS = ("known bug", "release", "found", "operations", "seconds", "fixed release")


def document(rows: Sequence[Row], limit: float) -> dict[str, Any]:
    """All figures."""
    return {
        "seconds": limit,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "reading": reading(rows, limit),
        "rows": [_figures(row) for row in rows],
    }


def _figures(row: Row) -> dict[str, Any]:
    known = row.known
    return {
        "known": known.id,
        "title": known.title,
        "clauses": known.clauses,
        "shipped": known.shipped,
        "target": known.target,
        "level": row.level,
        "seeds": row.seeds,
        "found": row.found,
        "operations": row.operations,
        "seconds": row.seconds,
        "minimal": len(row.minimal.operations) if row.minimal else None,
        "fixed": known.fixed or None,
        "silent": {"runs": row.heard, "quiet": row.quiet, "operations": row.judged} if row.heard else None,
        "result": row.word,
        "reason": row.reason,
    }


def _cells(row: Row) -> tuple[str, ...]:
    """A row in words, medians over the range behind them."""
    known = row.known
    operations, spent = _spread(row.operations, 0), _spread(row.seconds, 1)
    if not known.fixed:
        fixed = "none"
    elif not row.heard:
        fixed = known.fixed.partition("==")[2]
    else:
        silent = "silent" if row.quiet == row.heard else f"found in {row.heard - row.quiet} of {row.heard}"
        fixed = f"{known.fixed.partition('==')[2]}: {silent}\n{row.heard} × {row.judged:,}"
    release = known.target.replace("==", " ") + (f", L{row.level}" if row.level else "")
    return known.id, release, f"{row.found}/{row.seeds}", operations, spent, fixed


def _spread(spread: Spread | None, digits: int) -> str:
    if spread is None:
        return "–"
    return f"{spread.median:,.{digits}f}\n{spread.least:,.{digits}f}–{spread.most:,.{digits}f}"


def table(rows: Sequence[Row]) -> Table:
    """For a terminal of 80 columns."""
    made = Table(box=None, pad_edge=False, header_style="dim")
    for head in ("\n".join(HEADS[:2]), *HEADS[2:]):
        right = head in ("found", "operations", "seconds")
        made.add_column(head, justify="right" if right else "left", overflow="fold", no_wrap=right)
    for row in rows:
        name, release, found, *rest = _cells(row)
        style = {"holds": "green", "undecided": "yellow"}.get(row.word, "bold red")
        made.add_row(Text(f"{name}\n{release}"), Text(found, style), *rest)
    return made


def reading(rows: Sequence[Row], limit: float) -> str:
    """How to read the table."""
    seeds = max((row.seeds for row in rows), default=0)
    return (
        f"Runs that are told nothing, {seeds} seeds of at most {limit:g} s of one core's time: "
        "medians, and least to most. Operations and seconds count from the start of the run to the minimal "
        "case, through all other findings. What is judged is a release's cache manager, at the level named; "
        "no GPU ran. A fixed release is silent in so many runs of at least so many judged operations."
    )


def markdown(rows: Sequence[Row], limit: float) -> str:
    """The record."""
    lines = ["# Recall of known bugs", "", reading(rows, limit), ""]
    lines += [f"| {' | '.join(HEADS)} |", "|---|---|---:|---:|---:|---|"]
    lines += [f"| {' | '.join(cell.replace(chr(10), '<br>') for cell in _cells(row))} |" for row in rows]
    lines += ["", "What they are:", ""]
    lines += [
        f"- `{row.known.id}` ({', '.join(row.known.clauses)}; {row.known.target.partition('==')[0]} "
        f"{row.known.shipped}): {row.known.title}."
        for row in rows
    ]
    return "\n".join(lines) + "\n"


def keep(rows: Sequence[Row], limit: float, folder: Path) -> None:
    """Write the record: the figures and the table."""
    from kvproof.fuzz.cli.files import write_whole

    figures = msgspec.json.encode(document(rows, limit), order="deterministic")
    write_whole(folder / "recall.json", msgspec.json.format(figures, indent=2) + b"\n")
    write_whole(folder / "recall.md", markdown(rows, limit).encode())
