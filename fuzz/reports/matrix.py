"""The fault × engine matrix as Markdown and as JSON."""

from collections.abc import Sequence
from pathlib import Path

import msgspec
from rich.table import Table

from kvproof.fuzz.engines.matrix import BLOCKS, REQUESTS, Cell, Line
from kvproof.fuzz.reports.power import encoded

ENGINES = ("soak", "hypothesis", "exploration", "theorems", "workload")


def summary(lines: Sequence[Line]) -> str:
    """How many faults each engine found."""
    counts = [
        f"{engine} {sum(_cell(each, engine).state == 'killed' for each in lines)}" for engine in ENGINES
    ]
    missed = [each.fault for each in lines if not each.killed]
    tail = f"; found by none: {', '.join(missed)}" if missed else ""
    return f"Of {len(lines)} faults found by {', '.join(counts)}{tail}."


def table(lines: Sequence[Line]) -> Table:
    """For a terminal."""
    made = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="dim")
    made.add_column("fault", overflow="fold")
    for engine in ENGINES:
        made.add_column(engine, justify="right", overflow="fold")
    for each in lines:
        made.add_row(each.fault, *(_text(_cell(each, engine), each) for engine in ENGINES))
    return made


def markdown(lines: Sequence[Line]) -> str:
    """The record."""
    head = ["fault", "clause", "smallest case", *ENGINES]
    rows = [
        [each.fault, each.clause, str(each.known), *(_text(_cell(each, engine), each) for engine in ENGINES)]
        for each in lines
    ]
    parts = [
        "# Faults × engines",
        f"{summary(lines)} Soak and Hypothesis: median operations to find and, where it is less than "
        "all, the share of seeds. Exploration: the first preset in which the fault's own clause falls, and "
        "states and transitions there until it did; no sequence of that preset is shorter. Workload: the "
        f"first {REQUESTS} requests of the conversation, {BLOCKS} blocks; `D4` says that hits or evictions "
        "differ. +n: the case that came out is n operations longer than the smallest that is known. "
        "– is missed, and (…) the clause that fell instead; a dot: outside what the engine looks at.",
        "\n".join(
            ["| " + " | ".join(head) + " |", "|---|---|---:|" + "---|" * len(ENGINES)]
            + ["| " + " | ".join(row) + " |" for row in rows]
        ),
    ]
    return "\n\n".join(parts) + "\n"


def _cell(each: Line, engine: str) -> Cell:
    return next((cell for cell in each.cells if cell.engine == engine), Cell(engine, "outside"))


def _text(cell: Cell, each: Line) -> str:
    if cell.state == "outside":
        return "·"
    if cell.state == "missed":
        return f"– ({cell.clause})" if cell.clause else "–"
    parts = [f"{cell.operations:,.0f}" if cell.operations is not None else cell.clause]
    if cell.preset:
        parts = [cell.preset, f"{cell.states:,} / {parts[0]}"]
    if cell.probability is not None and cell.probability < 1:
        parts.append(f"{cell.probability:.0%}")
    if cell.engine == "workload":
        parts.append(cell.clause)
    if cell.minimal is not None and cell.minimal > each.known:
        parts.append(f"+{cell.minimal - each.known}")
    return ", ".join(parts)


def keep(lines: Sequence[Line], folder: Path) -> None:
    """Write the record: the figures and the table."""
    from kvproof.fuzz.cli.files import write_whole

    figures = {"summary": summary(lines), "rows": msgspec.to_builtins(lines)}
    write_whole(folder / "matrix.json", encoded(figures))
    write_whole(folder / "matrix.md", markdown(lines).encode())
