"""`kvproof faults`."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from kvproof.fuzz.cli.console import console, live, print_json, seconds, verdict
from kvproof.fuzz.cli.errors import HOLDS, VIOLATED, BadInput, HarnessFault
from kvproof.fuzz.cli.files import check_folder
from kvproof.fuzz.cli.fuzz import ENGINES
from kvproof.fuzz.faults import Fault, load, planted, seeded
from kvproof.fuzz.reports.terminal import trimmed
from kvproof.fuzz.reports.wording import plural
from kvproof.fuzz.watch import watched

if TYPE_CHECKING:
    from kvproof.fuzz.engines.power import Power

OPERATIONS: Final = 40_000
"""Of one hunt at most, where nothing else is said."""


class Row(msgspec.Struct, frozen=True):
    """What became of a fault. `killed`: under its own clause; `fell` is the clause that did fall.

    `error` says why it could not be hunted any further.
    """

    fault: str
    title: str
    corpus: tuple[str, ...]
    clause: str
    engine: str
    operations: int
    seconds: float
    killed: bool
    fell: str
    minimal: int
    error: str = ""

    @property
    def word(self) -> str:
        """Whether it was found, in a word or two, or why not."""
        word = "yes" if self.killed else f"under {self.fell}" if self.fell else "no"
        return f"{word}: {self.error}" if self.error else word


def select(faults: Sequence[Fault], only: Sequence[str]) -> tuple[Fault, ...]:
    """The faults to plant, each of which can be planted."""
    known = {fault.id: fault for fault in faults}
    for name in only:
        if name not in known:
            raise BadInput(f"there is no fault {name!r}; 'kvproof faults --list' names them.")
    chosen = tuple(known[name] for name in dict.fromkeys(only)) or tuple(faults)
    with watched():
        for fault in chosen:
            with planted([fault]):
                pass
    return chosen


def run(fault: Fault, engine: str, operations: int, seed: int = 0) -> Row:
    """Plant one fault and hunt it."""
    from kvproof.fuzz.engines.hunt import hunt

    hunted = hunt(fault, engine=engine, operations=operations, seed=seed)
    killed = hunted.killed and hunted.clause == fault.clause
    return Row(
        fault.id,
        fault.title,
        fault.corpus,
        fault.clause,
        engine,
        hunted.operations,
        round(hunted.seconds, 3),
        killed,
        hunted.clause,
        len(hunted.case.operations) if hunted.case else 0,
        hunted.error,
    )


@click.command(short_help="Find the seeded faults.")
@click.option("--only", metavar="ID", multiple=True, help="This fault alone; may be given several times.")
@click.option("--patch", type=click.Path(path_type=Path), help="A TOML file of faults that ship elsewhere.")
@click.option("--engine", type=click.Choice(ENGINES), help="What hunts: soak, and with --seeds both.")
@click.option("--ops", type=click.IntRange(min=1), help="Operations at most for each hunt.")
@click.option("--seed", type=int, default=0, show_default=True, help="Where the engine starts.")
@click.option("--seeds", type=click.IntRange(min=1), help="Measure the power to find each, by so many hunts.")
@click.option("--mutants", is_flag=True, help="Judge mutants of the implementation and the oracle instead.")
@click.option(
    "--since",
    type=click.Path(path_type=Path),
    help="With --mutants: of the folder's record, only judge functions whose text has changed.",
)
@click.option(
    "--matrix", is_flag=True, help="Ask every engine: the two, exploration, the theorems, the workload."
)
@click.option(
    "--record",
    type=click.Path(path_type=Path),
    help="A folder for what --seeds, --matrix or --mutants finds.",
)
@click.option("--list", "listing", is_flag=True, help="List the faults and plant none.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON to stdout.")
def command(
    only: tuple[str, ...],
    patch: Path | None,
    engine: str | None,
    ops: int | None,
    seed: int,
    seeds: int | None,
    mutants: bool,
    since: Path | None,
    matrix: bool,
    record: Path | None,
    listing: bool,
    as_json: bool,
) -> int:
    """Plant the seeded faults one by one: each must fall under its own clause.

    The comparison with the reference policy is off, so that the clause alone must see it; only
    faults that nothing else can see are compared. Exit code 0 says that all were found under
    their own clause, with --seeds in at least 95 of 100 hunts.

    \b
    Examples:
      kvproof faults
      kvproof faults --only stale-hash --engine hypothesis
      kvproof faults --patch my-faults.toml --json
      kvproof faults --seeds 20 --record fuzz/faults
      kvproof faults --matrix --record ci/recorded
      kvproof faults --mutants --record ci/recorded
      kvproof faults --mutants --since ci/recorded --record ci/recorded
    """
    to = console(as_json)
    modes = {"--seeds": seeds is not None, "--matrix": matrix, "--mutants": mutants, "--list": listing}
    asked = [name for name, given in modes.items() if given]
    if len(asked) > 1:
        raise BadInput(f"{' and '.join(asked)} are different things to do; give one of them.")
    if mutants and (only or patch):
        raise BadInput("--mutants makes its own; leave out --only and --patch.")
    if since is not None and not mutants:
        raise BadInput("--since names a record of mutants; give it with --mutants.")
    if matrix and patch:
        raise BadInput("--matrix is of the faults that ship, whose power is on record; leave out --patch.")
    if (matrix or mutants) and (engine or ops or seed):
        raise BadInput(f"{asked[0]} has its own engines and budgets; leave out --engine, --ops and --seed.")
    if record is not None:
        if listing or not asked:
            raise BadInput("--record keeps what --seeds, --mutants or --matrix finds; give one of them.")
        if only or patch:
            raise BadInput("a record has every fault; leave out --only and --patch, or --record.")
        check_folder(record)
    if mutants:
        return _mutants(to, since, record, as_json)
    chosen = select(load(patch) if patch is not None else seeded(), only)
    if listing:
        _list(to, chosen, as_json)
        return HOLDS
    if matrix:
        return _matrix(to, chosen, record, as_json)
    if seeds is not None:
        return _power(
            to, chosen, (engine,) if engine else ENGINES, range(seed, seed + seeds), ops, record, as_json
        )
    return _hunt(to, chosen, engine or "soak", ops or OPERATIONS, seed, as_json)


def _power(
    to: Console,
    chosen: Sequence[Fault],
    engines: Sequence[str],
    seeds: Sequence[int],
    ops: int | None,
    record: Path | None,
    as_json: bool,
) -> int:
    """Measure, show and record the power of each engine to find each fault."""
    from kvproof.fuzz.engines import power
    from kvproof.fuzz.reports import power as report

    rows: list[power.Power] = []
    for engine in engines:
        for number, fault in enumerate(chosen, 1):
            text = f"{engine}, fault {number} of {len(chosen)}: {fault.id}"
            with live(to, lambda _, spent, text=text: Text(f"{text}, {seconds(spent)}")):  # type: ignore[misc]
                rows.append(power.measure(fault, engine, seeds, ops or power.BUDGET[engine]))
    strong = sum(row.probability >= power.NEEDED for row in rows)
    errors = _errors(chosen, rows)
    if as_json:
        print_json({**report.document(rows), "errors": errors})
    else:
        with trimmed(to):
            to.print(report.table(rows))
        to.print()
        to.print(Text(report.reading(rows), "dim"))
        for each in errors:
            to.print(Text(f"{each['fault']}, {each['engine']}: {each['error']}", "bold red"))
        word = verdict("holds" if strong == len(rows) else "violated")
        to.print(word + Text(f": {strong} of {len(rows)} found in at least {power.NEEDED:.0%} of hunts", ""))
    if record is not None:
        report.keep(rows, record)
    return HOLDS if strong == len(rows) else VIOLATED


def _errors(chosen: Sequence[Fault], rows: "Sequence[Power]") -> list[dict[str, str]]:
    """Why a hunt ended without a find and before its budget was spent: one of each row is repeated."""
    from kvproof.fuzz.engines.hunt import hunt

    faults = {fault.id: fault for fault in chosen}
    found = []
    for row in rows:
        seeds = [each.seed for each in row.trials if not each.killed and each.operations < row.budget]
        for seed in seeds[:1]:
            why = hunt(faults[row.fault], engine=row.engine, operations=row.budget, seed=seed).error
            found.append({"fault": row.fault, "engine": row.engine, "error": why})
    return found


def _matrix(to: Console, chosen: Sequence[Fault], record: Path | None, as_json: bool) -> int:
    """Ask every engine for every fault, show and record."""
    from kvproof.fuzz.cli.profiles import profile
    from kvproof.fuzz.engines.matrix import measure
    from kvproof.fuzz.reports import matrix as report

    with live(to, lambda count, spent: Text(f"{count or 'begins'}, {seconds(spent)}")) as line:

        def progress(text: str) -> None:
            line.count = text

        lines = measure(chosen, profile("ci").presets, progress)
    if as_json:
        print_json(lines)
    else:
        with trimmed(to):
            to.print(report.table(lines))
        to.print()
        to.print(Text(report.summary(lines)))
    if record is not None:
        report.keep(lines, record)
    return HOLDS if all(each.killed for each in lines) else VIOLATED


def _mutants(to: Console, since: Path | None, record: Path | None, as_json: bool) -> int:
    """Judge, show and record mutants: those that survive must be explained."""
    try:
        from kvproof.fuzz.engines.mutate import BaselineError, run_mutants
    except ModuleNotFoundError as error:
        raise BadInput(f"mutants need {error.name}; install kvproof with its extra 'dev'.") from None
    from kvproof.fuzz.faults.survivors import survivors
    from kvproof.fuzz.reports import mutants as report

    try:
        before = report.recorded(since) if since is not None else report.Judged((), ())
    except report.RecordError as error:
        raise BadInput(str(error)) from None
    kept = report.unchanged(before)
    with live(to, lambda count, spent: Text(f"{count or 'mutants are made'}, {seconds(spent)}")) as line:

        def progress(text: str) -> None:
            line.count = text

        try:
            rows = run_mutants(progress, targets=lambda target: target not in kept)
        except BaselineError as error:
            raise HarnessFault(str(error)) from None
    found = report.joined(before, kept, report.judged(rows))
    known = survivors()
    left = report.left(found, known)
    unexplained = [each for each in left if not each.kind]
    if as_json:
        print_json(report.document(found, known))
    else:
        with trimmed(to):
            to.print(report.table(found, known))
        for each in unexplained:
            place = f"{each.target.removeprefix('kvproof.')}, line {each.line}"
            to.print(Text(f"{place}: {each.before}  →  {each.after}"))
        to.print()
        word = verdict("violated" if unexplained else "holds")
        count = sum(each.mutants for each in found.functions)
        survived = f"{plural(len(left), 'survivor')}, {len(unexplained):,} of them unexplained"
        to.print(word + Text(f": {count - len(left):,} of {count:,} mutants killed; {survived}", ""))
    if record is not None:
        report.keep(found, known, record)
    return VIOLATED if unexplained else HOLDS


def _hunt(to: Console, chosen: Sequence[Fault], engine: str, ops: int, seed: int, as_json: bool) -> int:
    """Hunt each fault once and show what became of it."""
    rows = []
    for number, fault in enumerate(chosen, 1):
        text = f"fault {number} of {len(chosen)}: {fault.id}"
        with live(to, lambda _, spent, text=text: Text(f"{text}, {seconds(spent)}")):  # type: ignore[misc]
            rows.append(run(fault, engine, ops, seed))
    killed = sum(row.killed for row in rows)
    if as_json:
        print_json(rows)
    else:
        _table(to, rows)
        to.print()
        word = verdict("holds" if killed == len(rows) else "violated")
        to.print(word + Text(f": {killed} of {plural(len(rows), 'fault')} found under their own clause", ""))
    return HOLDS if killed == len(rows) else VIOLATED


def _table(to: Console, rows: Sequence[Row]) -> None:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("fault", "clause", "killed"):
        table.add_column(name, overflow="fold")
    for name in ("operations", "time", "minimal"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        style = "green" if row.killed else "bold red"
        size = str(row.minimal) if row.minimal else "–"
        spent = seconds(row.seconds)
        table.add_row(row.fault, row.clause, Text(row.word, style), f"{row.operations:,}", spent, size)
    with trimmed(to):
        to.print(table)


def _list(to: Console, faults: Sequence[Fault], as_json: bool) -> None:
    if as_json:
        print_json(
            [{"fault": f.id, "clause": f.clause, "title": f.title, "corpus": f.corpus} for f in faults]
        )
        return
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("fault", "clause"):
        table.add_column(name, no_wrap=True)
    table.add_column("what is wrong")
    for fault in faults:
        table.add_row(fault.id, fault.clause, fault.title)
    with trimmed(to):
        to.print(table)
