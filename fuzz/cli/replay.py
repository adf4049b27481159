"""`kvproof replay`."""

from pathlib import Path

import click
import msgspec
from rich.console import Console

from kvproof.fuzz import cases
from kvproof.fuzz.cases import Case, CaseError, Outcome
from kvproof.fuzz.cli.console import console, print_json, verdict
from kvproof.fuzz.cli.device import elsewhere, with_device
from kvproof.fuzz.cli.errors import HOLDS, VIOLATED
from kvproof.fuzz.reports.sight import capabilities_of
from kvproof.fuzz.reports.steps import step_lines
from kvproof.fuzz.reports.terminal import finding_of, report
from kvproof.fuzz.reports.wording import plural


class Replayed(msgspec.Struct, frozen=True):
    """A replay as JSON shows it."""

    case: str
    recurs: bool
    result: str
    clause: str
    expected_result: str
    expected_clause: str
    operations: int
    difference: str
    error: str
    steps: tuple[str, ...] | None = None


def run_case(path: str, case: Case) -> Outcome:
    """Replay a case; an operation that is not legal is said with the file's name."""
    try:
        return cases.replay(case)
    except CaseError as error:
        raise CaseError(f"{path}: {error}") from None


@click.command(short_help="Replay cases.")
@click.argument("paths", metavar="CASE...", nargs=-1, required=True, type=click.Path())
@with_device
@click.option("--steps", is_flag=True, help="Print a line for every grant: ids and counts.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON to stdout.")
def command(paths: tuple[str, ...], steps: bool, as_json: bool) -> int:
    """Replay cases and compare with the verdict, and the expectations, that they come with.

    The case of a violation expects it: exit code 0 says that the expected verdict recurs.

    \b
    Examples:
      kvproof replay kvproof-failures/KV-I2-key-1f0c9a3e.json
      kvproof replay --steps spec/cases/timeline.json
    """
    to = console(as_json)
    loaded = [(path, cases.load(Path(path))) for path in paths]
    rows = []
    for path, case in loaded:
        outcome = run_case(path, case)
        lines = step_lines(case, outcome.records) if steps else None
        rows.append(_row(path, case, outcome, lines))
        _print(to, rows[-1], case, outcome, single=len(loaded) == 1)
    if as_json:
        print_json(rows)
    return HOLDS if all(row.recurs for row in rows) else VIOLATED


def _row(path: str, case: Case, outcome: Outcome, lines: tuple[str, ...] | None) -> Replayed:
    violation = outcome.verdict.violation
    return Replayed(
        case=path,
        recurs=outcome.recurs(case),
        result=outcome.verdict.result,
        clause=violation.code if violation else "",
        expected_result=case.expected.result,
        expected_clause=case.expected.clause,
        operations=len(outcome.records),
        difference=outcome.difference,
        error=outcome.verdict.error,
        steps=lines,
    )


def _print(to: Console, row: Replayed, case: Case, outcome: Outcome, single: bool) -> None:
    for line in row.steps or ():
        to.print(line, soft_wrap=True, markup=False)
    if outcome.verdict.violation is not None and (single or not row.recurs):
        report(to, finding_of(case, outcome, capabilities_of(case.target), row.case))
        to.print()
    found = verdict(row.result).append(f" {row.clause}" if row.clause else "")
    found.append(
        ", as expected" if row.recurs else f", expected {row.expected_result} {row.expected_clause}".rstrip()
    )
    if row.difference:
        found = verdict("violated").append(f": {row.difference}")
    for line in row.error.splitlines():
        to.print(line, markup=False)
    found.append(f"  {row.case}, {plural(row.operations, 'operation')}{elsewhere()}", "dim")
    to.print(found, soft_wrap=True)
