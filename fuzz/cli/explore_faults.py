"""`kvproof explore --every-fault`: each seeded fault in the preset that is on record for it, or in all."""

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from kvproof.fuzz.cli.console import live, print_json, seconds, verdict
from kvproof.fuzz.cli.errors import HOLDS, VIOLATED
from kvproof.fuzz.cli.profiles import profile
from kvproof.fuzz.engines import explore_faults as engine
from kvproof.fuzz.engines.explore_faults import Caught
from kvproof.fuzz.faults import seeded
from kvproof.fuzz.reports.terminal import trimmed


def every_fault(to: Console, folder: Path | None, as_json: bool) -> int:
    """Catch each as it is on record; with a folder, anew in the presets of `ci`, and record it."""
    faults = seeded()
    with live(to, lambda count, spent: Text(f"{count or 'begins'}, {seconds(spent)}")) as line:

        def progress(text: str) -> None:
            line.count = text

        if folder is not None:
            found = engine.catch_all(faults, profile("ci").presets, progress)
            wrong = {name: "" if each else f"No preset catches {name}." for name, each in found.items()}
            engine.record(found, folder)
        else:
            kept = engine.recorded()
            found = {fault.id: kept.get(fault.id) for fault in faults}
            wrong = engine.differences(faults, kept, progress)
    caught = sum(not each for each in wrong.values())
    word = "holds" if caught == len(faults) else "violated"
    if as_json:
        print_json({"verdict": word, "faults": [_row(name, found[name], wrong[name]) for name in wrong]})
    else:
        with trimmed(to):
            to.print(_table({fault.id: fault.clause for fault in faults}, found))
            for each in filter(None, wrong.values()):
                to.print(Text(each))
        to.print()
        to.print(
            verdict(word) + Text(f": {caught} of {len(faults)} faults caught by a shortest sequence", "")
        )
    return HOLDS if word == "holds" else VIOLATED


def _row(name: str, found: Caught | None, wrong: str) -> dict[str, Any]:
    length = found.length if found is not None else 0
    return {"fault": name, "preset": found.preset if found else "", "length": length, "wrong": wrong}


def _table(clauses: dict[str, str], found: dict[str, Caught | None]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("fault", "clause", "preset"):
        table.add_column(name, overflow="fold")
    for name in ("operations", "states", "transitions"):
        table.add_column(name, justify="right", no_wrap=True)
    for name, each in found.items():
        cells = (
            (each.preset, each.length, each.states, each.transitions) if each is not None else ("–", 0, 0, 0)
        )
        table.add_row(name, clauses[name], str(cells[0]), *(f"{cell:,}" for cell in cells[1:]))
    return table
