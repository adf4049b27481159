"""The table of a bench of the device's kernels, for a terminal and as Markdown."""

from collections.abc import Sequence
from typing import Any, Final

from rich.table import Table
from rich.text import Text

from kvproof.fuzz.engines.bench import Machine
from kvproof.fuzz.reports.bench import percent, short
from kvproof.kernels.bench import OURS, Row

READING: Final = (
    "The processor's time of one thread, µs a call, median of {rounds} in turn; contenders share their "
    "memory, which is warm. × is how many times as fast kvproof is as torch, or as numpy where torch "
    "has nothing of the kind."
)


def contenders(rows: Sequence[Row]) -> list[str]:
    """Ours first, others in order of appearance."""
    return list(dict.fromkeys([OURS, *(who for row in rows for who in row.micros)]))


def aim(row: Row) -> str:
    """What a row should reach."""
    if row.aim is None or not (row.aim.limit or row.aim.ratio):
        return "–"
    return f"≤ {row.aim.limit:g} µs" if row.aim.limit else f"≥ {row.aim.ratio:g}× {row.aim.against}"


def _met(row: Row) -> str:
    if aim(row) == "–":
        return ""
    return {True: "yes", False: "no", None: "not measured"}[row.met]


def _cells(row: Row, who: Sequence[str]) -> list[str]:
    ratio = f"{row.ratio:.2f}" if row.ratio is not None else "–"
    times = [short(row.micros[each]) if each in row.micros else "–" for each in who]
    rate = f"{row.moved / row.micros[OURS] / 1e3:.1f}" if row.moved else "–"
    return [row.name, *times, ratio, percent(row.spread), rate, aim(row), _met(row)]


def table(rows: Sequence[Row]) -> Table:
    """For a terminal: ours, whom it is compared with, and a plain copy of the same bytes."""
    made = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    for name in ("µs a call", OURS, "other", "copy", "×", "aim", ""):
        made.add_column(name, justify="left" if name in ("µs a call", "aim") else "right", no_wrap=True)
    styles = {"yes": "green", "no": "red"}
    for row in rows:
        other = next((short(row.micros[each]) for each in ("torch", "numpy") if each in row.micros), "–")
        copy = short(row.micros["copy"]) if "copy" in row.micros else "–"
        ratio = f"{row.ratio:.2f}" if row.ratio is not None else "–"
        reached = Text(_met(row), styles.get(_met(row), "dim"))
        made.add_row(row.name, short(row.micros[OURS]), other, copy, ratio, aim(row), reached)
    return made


def summary(rows: Sequence[Row]) -> str:
    """How many aims are reached."""
    aimed = [row for row in rows if aim(row) != "–"]
    return f"{sum(row.met is True for row in aimed)} of {len(aimed)} aims are reached."


def markdown(rows: Sequence[Row], rounds: int, machine: Machine) -> str:
    """The recorded page."""
    who = contenders(rows)
    head = ["", *who, "×", "spread", "GB/s", "aim", "reached", "because"]
    lines = [
        "# Bench of the device on `cpu`",
        "",
        "Written by `kvproof bench --device cpu --record`; no figure here is typed.",
        "",
    ]
    load = "" if machine.load is None else f", load {machine.load}"
    lines += [f"{machine.cores} cores, Python {machine.python}, {machine.system}{load}.", ""]
    spread = " Spread is that of the middle half, the widest in the row; GB/s are those read and written."
    lines += [READING.format(rounds=rounds) + spread, "", f"| {' | '.join(head)} |"]
    lines += [f"|---|{'---:|' * (len(who) + 3)}---|---|---|"]
    lines += [f"| {' | '.join([*_cells(row, who), row.reason])} |" for row in rows]
    return "\n".join([*lines, "", summary(rows), ""])


def document(rows: Sequence[Row], rounds: int, machine: Machine) -> dict[str, Any]:
    """The recorded figures."""
    return {
        "device": "cpu",
        "machine": machine,
        "rounds": rounds,
        "unit": "µs of one thread a call",
        "rows": [
            {
                "name": row.name,
                "micros": {who: round(value, 3) for who, value in row.micros.items()},
                "spread": row.spread,
                "moved": row.moved,
                "ratio": None if row.ratio is None else round(row.ratio, 3),
                "aim": aim(row),
                "reached": row.met if aim(row) != "–" else None,
                "reason": row.reason,
            }
            for row in rows
        ],
    }
