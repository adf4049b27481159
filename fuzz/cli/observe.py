"""`kvproof observe`."""

from pathlib import Path

import click
from rich.padding import Padding
from rich.text import Text

from kvproof.fuzz.cli.console import console, print_json, verdict
from kvproof.fuzz.cli.errors import CODES, BadInput
from kvproof.fuzz.reports.terminal import trimmed
from kvproof.fuzz.reports.wording import plural
from kvproof.spec.oracle import BY_CODE


@click.command(short_help="Judge a log.")
@click.argument("log", metavar="LOG", type=click.Path(path_type=Path))
@click.option("--ignore", metavar="CODE", multiple=True, help="A clause to leave unchecked; may be repeated.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON to stdout.")
def command(log: Path, ignore: tuple[str, ...], as_json: bool) -> int:
    """Judge what an engine's own scheduler did, from a log of operations and answers.

    A log is JSON lines: a header with config and capabilities, then a record a line with
    operation, answer and, from level 2 on, observation. A log with gaps is undecided.

    \b
    Examples:
      kvproof observe engine.jsonl
      kvproof observe engine.jsonl --ignore KV-P-events --json
    """
    from kvproof.fuzz.observer import Observer, read

    unknown = [code for code in ignore if code not in BY_CODE]
    if unknown:
        raise BadInput(f"there is no clause {unknown[0]}; 'kvproof explain' lists them.")
    header, lines = read(log)
    observer = Observer(header, frozenset(ignore))
    for line in lines:
        observer.report(line.operation, line.answer, line.observation, line.memory)
        if observer.over:
            break
    found = observer.verdict()
    if as_json:
        print_json({"target": header.target, "verdict": found})
        return CODES[found.result]
    to = console()
    with trimmed(to):
        if found.violation is not None:
            evidence = found.violation.evidence
            to.print(Text(f"✗ {found.violation.code} at record {found.violation.record + 1}", "bold"))
            for text in (
                found.violation.sentence,
                f"expected {evidence.expected}",
                f"observed {evidence.observed}",
            ):
                to.print(Padding(Text(text), (0, 0, 0, 2)))
        elif found.error:
            to.print(Text(found.error))
        to.print(verdict(found.result) + Text(f": {header.target}, {plural(found.records, 'record')}", ""))
    return CODES[found.result]
