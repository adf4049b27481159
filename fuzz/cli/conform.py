"""`kvproof conform`."""

from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import click
import msgspec
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from kvproof.fuzz import cases, devices
from kvproof.fuzz.cli.console import console, live, print_json, seconds, verdict
from kvproof.fuzz.cli.device import on_device, with_device
from kvproof.fuzz.cli.errors import HARNESS_FAULT, HOLDS, UNDECIDED, VIOLATED, BadInput
from kvproof.fuzz.cli.failures import file_name
from kvproof.fuzz.cli.files import check_folder
from kvproof.fuzz.reports.terminal import trimmed
from kvproof.fuzz.reports.wording import plural
from kvproof.fuzz.targets import named, split
from kvproof.fuzz.targets.judge import Job, Judgement, judge_apart
from kvproof.spec.oracle import BY_CODE

_MARKS = {"violated": "✗", "held": "✓", "unchecked": "–", "not exercised": "·"}


def targets_of(targets: Sequence[str], releases: str) -> list[str]:
    """The targets by name; `releases` are those of the last one, which names none itself."""
    chosen = list(targets)
    if releases:
        last = chosen.pop()
        if split(last)[1]:
            raise BadInput(f"--releases spreads the last target, and {last} names a release already.")
        chosen += [f"{last}=={release.strip()}" for release in releases.split(",") if release.strip()]
    for target in chosen:
        named(target)
    return list(dict.fromkeys(chosen))


@click.command(short_help="Judge allocators.")
@click.option("--target", "targets", metavar="T", multiple=True, required=True, help="Repeat for several.")
@click.option("--releases", metavar="A,B,…", default="", help="Releases of the last target.")
@click.option(
    "--ops",
    type=click.IntRange(min=1),
    default=20_000,
    show_default=True,
    help="Operations at most for each.",
)
@click.option("--seconds", "limit", type=click.FloatRange(min=0), default=0, help="Seconds at most for each.")
@click.option("--seed", type=int, default=0, show_default=True, help="Where the engine starts.")
@click.option("--ignore", metavar="CODE", multiple=True, help="A clause to leave unchecked; may be repeated.")
@with_device
@click.option("--jobs", type=click.IntRange(min=1), default=2, show_default=True, help="Targets at a time.")
@click.option("--out", type=click.Path(path_type=Path), default="kvproof-failures", help="Where cases go.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON to stdout.")
def command(
    targets: tuple[str, ...],
    releases: str,
    ops: int,
    limit: float,
    seed: int,
    ignore: tuple[str, ...],
    jobs: int,
    out: Path,
    as_json: bool,
) -> int:
    """Judge allocators, each in a process of its own: a table of targets and clauses.

    After a finding its clause is left unchecked and the run goes on. A target is reference,
    vllm==0.27.0, tokasaurus, nano-vllm-voxcpm, transformers, python:package.module:Class, or
    cmd:./my-allocator with its arguments.

    \b
    Examples:
      kvproof conform --target reference --target tokasaurus
      kvproof conform --target vllm --releases 0.9.2,0.13.0,0.32.0 --seconds 60
      kvproof conform --target 'cmd:./my-allocator --fast' --json
    """
    unknown = [code for code in ignore if code not in BY_CODE]
    if unknown:
        raise BadInput(f"there is no clause {unknown[0]}; 'kvproof explain' lists them.")
    chosen = targets_of(targets, releases)
    check_folder(out)
    to = console(as_json)
    made = [Job(target, ops, limit, seed, ignore) for target in chosen]
    judged: list[Judgement] = []
    with live(
        to, lambda count, spent: Text(f"{count} of {plural(len(made), 'target')}, {seconds(spent)}")
    ) as line:
        line.count = "0"
        with ThreadPoolExecutor(jobs) as pool:
            for judgement in pool.map(judge_apart, made):
                judged.append(judgement)
                line.count = str(len(judged))
    paths = _keep(judged, out)
    if as_json:
        print_json([_row(judgement, paths) for judgement in judged])
    else:
        with trimmed(to):
            _matrix(to, judged)
            to.print()
            _vectors(to, judged)
            _findings(to, judged, paths)
    return _code(judged)


def _code(judged: Sequence[Judgement]) -> int:
    """The worst result counts; a run in which every target was skipped is undecided."""
    results = {judgement.result for judgement in judged}
    if "errored" in results:
        return HARNESS_FAULT
    if "violated" in results:
        return VIOLATED
    return HOLDS if "holds" in results else UNDECIDED


def _keep(judged: Sequence[Judgement], folder: Path) -> dict[tuple[str, str], str]:
    """Write the minimal case of each finding; target and clause → path."""
    paths = {}
    for judgement in judged:
        for finding in judgement.findings:
            path = folder / file_name(finding.case)
            cases.save(finding.case, path)
            paths[judgement.target, finding.clause] = str(path)
    return paths


def _row(judgement: Judgement, paths: dict[tuple[str, str], str]) -> dict[str, object]:
    row: dict[str, object] = msgspec.to_builtins(judgement)
    row["clauses"] = {code: judgement.of_clause(code) for code in BY_CODE}
    row["findings"] = [
        {
            "clause": finding.clause,
            "sentence": finding.sentence,
            "operations": finding.operations,
            "seconds": round(finding.seconds, 3),
            "minimal": len(finding.case.operations),
            "case": paths[judgement.target, finding.clause],
        }
        for finding in judgement.findings
    ]
    return row


def _matrix(to: Console, judged: Sequence[Judgement]) -> None:
    """Targets down, clauses across: those that fell anywhere, the others counted.

    Where the clauses don't fit side by side each target lists its own.
    """
    fell = [code for code in BY_CODE if any(j.of_clause(code) == "violated" for j in judged)]
    names = {code: code.removeprefix("KV-").split("-", 1) for code in fell}
    wide = 45 + max(len(j.target) for j in judged) + sum(2 + len(name[1]) for name in names.values())
    side_by_side = wide <= to.width
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("target", "verdict", "judged"):
        table.add_column(name, justify="right" if name == "judged" else "left", no_wrap=True)
    for name in ("✓", "–", "·"):
        table.add_column(name, justify="right")
    if side_by_side:
        for code in fell:
            table.add_column("\n".join(names[code]), justify="center", no_wrap=True)
    elif fell:
        table.add_column("✗")
    for judgement in judged:
        marks = {code: judgement.of_clause(code) for code in BY_CODE}
        counts = [
            str(sum(mark == word for mark in marks.values()))
            for word in ("held", "unchecked", "not exercised")
        ]
        cells = [Text(_MARKS[marks[code]], "bold red" if marks[code] == "violated" else "") for code in fell]
        listed = Text(
            " ".join("-".join(names[code]) for code in fell if marks[code] == "violated"), "bold red"
        )
        done = f"{judgement.operations:,}" if judgement.operations else ""
        shown = cells if side_by_side else [listed] if fell else []
        table.add_row(judgement.target, verdict(judgement.result), done, *counts, *shown)
    to.print(table)
    to.print(Text("✗ fell  ✓ held  – unchecked  · not exercised", "dim"))
    if on_device():
        to.print(Text(f"device memory on {devices.current().name}", "dim"))


def _vectors(to: Console, judged: Sequence[Judgement]) -> None:
    """How the conformance vectors came out, and which are invalid."""
    for judgement in judged:
        counts = Counter(seen.result for seen in judgement.vectors)
        if counts:
            to.print(
                Text(f"{judgement.target}: vectors " + ", ".join(f"{n} {word}" for word, n in counts.items()))
            )
        for seen in judgement.vectors:
            if seen.result in ("invalid", "errored"):
                to.print(Text(f"  {seen.vector}: {seen.reason}"))


def _findings(to: Console, judged: Sequence[Judgement], paths: dict[tuple[str, str], str]) -> None:
    for judgement in judged:
        if judgement.reason:
            to.print()
            to.print(Text(f"{judgement.target}: {judgement.result}: {judgement.reason}"))
        for finding in judgement.findings:
            to.print()
            where = f"after {plural(finding.operations, 'operation')}, {seconds(finding.seconds)}"
            to.print(Text(f"✗ {judgement.target}  {finding.clause}  {where}"))
            to.print(Padding(finding.sentence, (0, 0, 0, 2)))
            minimal = plural(len(finding.case.operations), "operation")
            to.print(Text(f"  {minimal}: kvproof replay {paths[judgement.target, finding.clause]}"))
