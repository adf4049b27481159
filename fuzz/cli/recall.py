"""`kvproof recall`."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from kvproof.fuzz import cases
from kvproof.fuzz.cli.console import console, live, print_json, seconds, verdict
from kvproof.fuzz.cli.errors import CODES, HOLDS, BadInput
from kvproof.fuzz.cli.files import check_folder
from kvproof.fuzz.engines.recall import Job, Row, Run, row, run_apart
from kvproof.fuzz.reports import recall as report
from kvproof.fuzz.reports.terminal import trimmed
from kvproof.fuzz.reports.wording import plural
from kvproof.fuzz.targets.known import Known, KnownError, select

SILENT = 3
"""Runs on a fixed release, each of twice the operations of the slowest find, but at least `FLOOR`."""

FLOOR = 20_000
"""A bug that is found at once would else be listened for in a few hundred operations."""

_WORST = ("errored", "violated", "blind", "undecided", "holds")


@click.command(short_help="Find the known bugs of releases.")
@click.option("--only", metavar="ID", multiple=True, help="This bug alone; may be given several times.")
@click.option(
    "--seeds", type=click.IntRange(min=1), default=20, show_default=True, help="Runs on each release."
)
@click.option(
    "--seconds",
    "limit",
    type=click.FloatRange(min=1),
    default=120,
    show_default=True,
    help="Seconds of a core's time at most for each run.",
)
@click.option("--jobs", type=click.IntRange(min=1), default=2, show_default=True, help="Processes at a time.")
@click.option("--record", type=click.Path(path_type=Path), help="A folder for recall.json and recall.md.")
@click.option("--cases", "folder", type=click.Path(path_type=Path), help="A folder for the minimal cases.")
@click.option("--list", "listing", is_flag=True, help="List the known bugs and run nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON to stdout.")
def command(
    only: tuple[str, ...],
    seeds: int,
    limit: float,
    jobs: int,
    record: Path | None,
    folder: Path | None,
    listing: bool,
    as_json: bool,
) -> int:
    """Find known bugs of released allocators by runs that are told nothing.

    A run ends when it has come upon all bugs that its release is known to have. The release
    that fixed one must be silent about it. Exit code 0 says that each bug was found in at
    least nine of ten runs.

    \b
    Examples:
      kvproof recall --list
      kvproof recall --only removed-under-a-copy --seeds 5
      kvproof recall --record ci/recorded
    """
    to = console(as_json)
    try:
        chosen = select(only)
    except KnownError as error:
        raise BadInput(str(error)) from None
    if listing:
        _list(to, chosen, as_json)
        return HOLDS
    for place in (record, folder):
        if place is not None:
            check_folder(place)
    rows = measure(to, chosen, seeds, limit, jobs)
    word = min((each.word for each in rows), key=_WORST.index)
    if as_json:
        print_json(report.document(rows, limit))
    else:
        with trimmed(to):
            to.print(report.table(rows))
        for each in rows:
            if each.reason:
                to.print(Text(f"{each.known.id}: {each.reason}"))
        to.print(Text(report.reading(rows, limit), "dim"))
        reached = sum(each.word == "holds" for each in rows)
        to.print(
            verdict(word) + Text(f": {reached} of {plural(len(rows), 'known bug')} found as they should")
        )
    if folder is not None:
        for each in rows:
            if each.minimal is not None:
                cases.save(each.minimal, folder / each.known.case)
    if record is not None:
        report.keep(rows, limit, record)
    return CODES[word]


def measure(to: Console, chosen: Sequence[Known], seeds: int, limit: float, jobs: int) -> list[Row]:
    """The runs on the releases that have the bugs, then those on the releases that lack them."""
    having = {
        target: [known.id for known in chosen if known.target == target]
        for target in dict.fromkeys(known.target for known in chosen)
    }
    parts = [tuple(range(number, seeds, jobs)) for number in range(jobs)]
    made = [Job(target, tuple(ids), part, 0, limit) for target, ids in having.items() for part in parts]
    runs = _all(to, "releases with bugs", made, jobs)
    first = {known.id: row(known, runs[known.target]) for known in chosen}
    lacking: dict[str, list[Row]] = {}
    for each in first.values():
        if each.known.fixed and each.operations is not None:
            lacking.setdefault(each.known.fixed, []).append(each)
    made = []
    for target, rows in lacking.items():
        slowest = max(each.operations.most for each in rows if each.operations is not None)
        budget = max(FLOOR, round(2 * slowest))
        ids = tuple(each.known.id for each in rows)
        made += [Job(target, ids, (seed,), budget, 2 * limit) for seed in range(min(SILENT, seeds))]
    silent = _all(to, "fixed releases", made, jobs)
    return [
        row(known, runs[known.target], silent.get(known.fixed, ()) if first[known.id].found else ())
        for known in chosen
    ]


def _all(to: Console, what: str, made: Sequence[Job], jobs: int) -> dict[str, list[Run]]:
    """Run jobs side by side; the runs by release, in the order of their seeds."""
    made = [job for job in made if job.seeds]
    total = sum(len(job.seeds) for job in made)
    found: dict[str, list[Run]] = {}
    with live(
        to, lambda count, spent: Text(f"{what}: {count} of {plural(total, 'run')}, {seconds(spent)}")
    ) as line:
        line.count = "0"
        done: list[Run] = []

        def progress(run: Run) -> None:
            done.append(run)
            line.count = f"{len(done)}"

        with ThreadPoolExecutor(jobs) as pool:
            for runs in pool.map(lambda job: run_apart(job, progress), made):
                for run in runs:
                    found.setdefault(run.target, []).append(run)
    return {target: sorted(runs, key=lambda run: run.seed) for target, runs in found.items()}


def _list(to: Console, chosen: Sequence[Known], as_json: bool) -> None:
    if as_json:
        print_json(chosen)
        return
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("known bug", no_wrap=True)
    table.add_column("shipped in", overflow="fold")
    table.add_column("what is wrong")
    for known in chosen:
        table.add_row(known.id, f"{known.target.partition('==')[0]} {known.shipped}", known.title)
    with trimmed(to):
        to.print(table)
