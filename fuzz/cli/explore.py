"""`kvproof explore`."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from kvproof.fuzz.cli.console import console, live, print_json, seconds, verdict
from kvproof.fuzz.cli.errors import CODES, BadInput
from kvproof.fuzz.cli.failures import FOLDER, Found, finding, keep
from kvproof.fuzz.cli.files import check_folder
from kvproof.fuzz.engines.explore import Exploration, explore
from kvproof.fuzz.engines.explore_moves import Preset, presets
from kvproof.fuzz.engines.explore_record import difference, record, recorded
from kvproof.fuzz.engines.explore_tally import SENTENCES
from kvproof.fuzz.faults import by_id, planted
from kvproof.fuzz.reports.terminal import report, trimmed
from kvproof.fuzz.reports.wording import plural

_WORST: Final = ("violated", "undecided", "holds")


@click.command(short_help="Try every sequence of operations in a small scope.")
@click.option("--preset", "names", metavar="NAME", multiple=True, help="A scope; may be repeated.  [tiny]")
@click.option("--no-policy", is_flag=True, help="Do not compare with the reference policy.")
@click.option("--fault", "faults", metavar="ID", multiple=True, help="Plant a seeded fault first.")
@click.option("--every-fault", is_flag=True, help="See that every seeded fault is caught as it is on record.")
@click.option(
    "--out", type=click.Path(path_type=Path), default=FOLDER, show_default=True, help="For failing cases."
)
@click.option("--record", "folder", type=click.Path(path_type=Path), help="A folder to record in.")
@click.option("--list", "listing", is_flag=True, help="List the presets and explore none.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON to stdout.")
def command(
    names: tuple[str, ...],
    no_policy: bool,
    faults: tuple[str, ...],
    every_fault: bool,
    out: Path,
    folder: Path | None,
    listing: bool,
    as_json: bool,
) -> int:
    """Try every sequence of operations of a preset on the reference manager and judge each of them.

    Sequences that lead to the same state are merged. A violation comes out as a shortest
    sequence, in a case file; the exit code is 1 then, and where counts differ from the record.

    \b
    Examples:
      kvproof explore
      kvproof explore --preset small --json
      kvproof explore --fault stale-hash --no-policy
      kvproof explore --every-fault --record fuzz/engines
    """
    to = console(as_json)
    if every_fault:
        if names or faults or no_policy or listing:
            raise BadInput("--every-fault knows its presets; leave out all but --record and --json.")
        if folder is not None:
            check_folder(folder)
        from kvproof.fuzz.cli import explore_faults

        return explore_faults.every_fault(to, folder, as_json)
    chosen = select(names)
    if listing:
        _list(to, presets(), as_json)
        return CODES["holds"]
    if folder is not None and (faults or no_policy):
        raise BadInput("only explorations without faults and with the policy are recorded.")
    plant = [by_id(name) for name in faults]
    for place in (out, folder):
        if place is not None:
            check_folder(place)
    kept = {} if plant or no_policy or folder is not None else recorded()
    rows, explored = [], {}
    for name, preset in chosen.items():
        with planted(plant):
            found, spent = run(to, name, preset, not no_policy, faults)
        explored[name] = found
        changed = difference(name, found, kept) if kept and found.case is None else ""
        case = _keep(to, found, out)
        rows.append(row(name, found, spent, changed, case))
        if not as_json:
            _print(to, name, found, spent, changed)
    if folder is not None and all(each.verdict == "holds" for each in explored.values()):
        record(explored, folder)
    word = min((each["verdict"] for each in rows), key=_WORST.index)
    if as_json:
        print_json({"verdict": word, "faults": list(faults), "presets": rows})
    return CODES[word]


def select(names: Sequence[str]) -> dict[str, Preset]:
    """The presets of these names, or tiny."""
    known = presets()
    for name in names:
        if name not in known:
            raise BadInput(f"there is no preset {name!r}; there are {', '.join(known)}.")
    return {name: known[name] for name in dict.fromkeys(names or ("tiny",))}


def run(
    to: Console, name: str, preset: Preset, compare_policy: bool, faults: Sequence[str]
) -> tuple[Exploration, float]:
    """Explore a preset with a live line; what was found, and in how many seconds."""
    with live(to, lambda count, spent: Text(f"{name}, {count}, {seconds(spent)}")) as line:
        line.count = plural(1, "state")

        def progress(states: int, length: int) -> None:
            line.count = f"{plural(states, 'state')}, length {length} of {preset.length}"

        start = time.perf_counter()
        found = explore(preset, compare_policy=compare_policy, faults=faults, progress=progress)
        return found, time.perf_counter() - start


def row(name: str, found: Exploration, spent: float, changed: str, case: Found | None) -> dict[str, Any]:
    """An exploration as JSON shows it."""
    return {
        "preset": name,
        "verdict": "violated" if changed else found.verdict,
        "length": len(found.states) - 1,
        "states": sum(found.states),
        "states_by_length": found.states,
        "transitions": found.transitions,
        "transitions_per_second": round(found.transitions / max(spent, 1e-9)),
        "audited": found.audited,
        "situations": {each: found.situations[each] for each in SENTENCES},
        "missed": found.missed,
        "changed": changed,
        "violations": [case] if case is not None else [],
    }


def _keep(to: Console, found: Exploration, out: Path) -> Found | None:
    """Keep and report the case of a violation as it is: no sequence of this scope is shorter."""
    if found.case is None:
        return None
    path = keep(found.case, out)
    told = finding(found.case, str(path))
    report(to, told)
    to.print()
    return Found(told.violation.code, told.violation.sentence, str(path), len(found.case.operations))


def _print(to: Console, name: str, found: Exploration, spent: float, changed: str) -> None:
    states, rate = sum(found.states), round(found.transitions / max(spent, 1e-9))
    length = plural(len(found.states) - 1, "operation")
    what = f"all {states:,} states within {length}" if found.case is None else f"{states:,} states"
    word = verdict("violated" if changed else found.verdict)
    head = f": {name}, {what}, {plural(found.transitions, 'transition')}, {rate:,} a second"
    to.print(word + Text(head, ""), soft_wrap=True)
    with trimmed(to):
        to.print(Text(f"  {found.preset.title}", "dim"))
        if found.case is not None:
            shortest = plural(len(found.case.operations), "operation")
            to.print(Text(f"  no sequence of fewer than {shortest} breaks a clause here", "dim"))
            return
        to.print(Text("  states by length: " + ", ".join(f"{each:,}" for each in found.states), "dim"))
        to.print(Text(f"  merged sequences that were expanded as well, as a check: {found.audited:,}", "dim"))
        to.print(_situations(found))
    if found.missed:
        to.print(Text(f"  too easy: it never came upon {', '.join(found.missed)}"))
    if changed:
        to.print(Text(f"  {changed} 'kvproof explore --record FOLDER' records anew."))


def _situations(found: Exploration) -> Table:
    table = Table(box=None, show_header=False, style="dim")
    table.add_column(justify="right", no_wrap=True)
    table.add_column(overflow="fold")
    for name, sentence in SENTENCES.items():
        if found.situations[name]:
            table.add_row(f"{found.situations[name]:,}", sentence)
    return table


def _list(to: Console, known: Mapping[str, Preset], as_json: bool) -> None:
    if as_json:
        print_json(known)
        return
    for name, preset in known.items():
        length = plural(preset.length, "operation")
        to.print(Text.assemble((f"{name:<9}", "bold"), f" {preset.title}; {length}"), soft_wrap=True)
