"""The report of a violation in a terminal."""

import re
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from kvproof.fuzz.cases import Case, Outcome, faults_of
from kvproof.fuzz.reports import wording
from kvproof.fuzz.reports.biography import Chronicle
from kvproof.spec import operations as op
from kvproof.spec.invariants import TITLES
from kvproof.spec.oracle import Violation
from kvproof.spec.vocabulary import Capabilities

STEPS_SHOWN: Final = 40
"""Of a longer case only the last operations are listed."""
WORDS_SHOWN: Final = 6
"""So many wrong places of memory are listed."""
FACTS_SHOWN: Final = 24


@dataclass(frozen=True)
class Finding:
    """A violation with all that a report says about it. `path` is the case file, once it is written."""

    case: Case
    records: tuple[op.Record, ...]
    violation: Violation
    capabilities: Capabilities
    path: str = ""


class Facts:
    """Indented lines of a label and a text."""

    def __init__(self, *, right: bool = False) -> None:
        self._grid = Table.grid(padding=(0, 2, 0, 0))
        self._grid.add_column(justify="right" if right else "left", style="dim", no_wrap=True)
        self._grid.add_column(overflow="fold")

    def add(self, label: str | Text, text: str) -> None:
        """One more line."""
        self._grid.add_row(label, Text(text))

    def __rich__(self) -> Padding:
        return Padding(self._grid, (0, 0, 0, 2))


def finding_of(case: Case, outcome: Outcome, capabilities: Capabilities, path: str = "") -> Finding:
    """The finding of a replay that ended in a violation."""
    assert outcome.verdict.violation is not None, "only a violation is reported"
    return Finding(case, outcome.records, outcome.verdict.violation, capabilities, path)


def report(console: Console, finding: Finding) -> None:
    """Print a violation: clause, steps, biography, claims, and how to reproduce it."""
    chronicle = _follow(finding, _subject(finding))
    with trimmed(console):
        _head(console, finding)
        _steps(console, finding.records, finding.violation)
        if chronicle.block is not None:
            _biography(console, chronicle, finding.violation)
        _claims(console, finding, chronicle)
        _tail(console, finding)


@contextmanager
def trimmed(console: Console) -> Iterator[None]:
    """Print without the blanks with which tables fill their lines, where nobody could see them."""
    if console.is_terminal:
        yield
        return
    with console.capture() as captured:
        yield
    console.file.write("".join(line.rstrip() + "\n" for line in captured.get().splitlines()))


def _follow(finding: Finding, block: int | None) -> Chronicle:
    return Chronicle.of(finding.case.config, finding.capabilities, finding.records, block)


def _subject(finding: Finding) -> int | None:
    """The block that the report is about: the evidence's, that of a key in it, or its request's last."""
    found = finding.violation.evidence
    if found.block is not None:
        return found.block
    chronicle = _follow(finding, None)
    for key in re.findall(r"key ([0-9a-f]{8})\b", f"{found.expected} {found.observed}"):
        if key in chronicle.listed:
            return chronicle.listed[key]
    request = chronicle.state.requests.get(found.request or "")
    if request is None or request.life is None or not request.life.rows[0]:
        return None
    return request.life.rows[0][-1]


def one_line(violation: Violation) -> str:
    """A violation as a message: clause, sentence, expected, observed."""
    expected, observed = wording.evidence(violation.evidence.expected), violation.evidence.observed
    return (
        f"{violation.code}: {violation.sentence} Expected {expected}; observed {wording.evidence(observed)}."
    )


# --- sections -----------------------------------------------------------------------------


def _head(console: Console, finding: Finding) -> None:
    violation, case = finding.violation, finding.case
    invariant = violation.code.split("-")[1]
    title = TITLES.get(invariant, invariant)
    console.print()
    console.print(
        Text.assemble(
            ("✗ ", "bold red"),
            (violation.code, "bold red"),
            f"  {title}" if invariant == "P" else f"  {invariant} {title}",
        )
    )
    console.print(Padding(Text(violation.sentence, "bold"), (0, 0, 0, 2)))
    console.print()
    facts = Facts()
    for fault in faults_of(case):
        facts.add("planted", f"{fault.id}, on purpose: {fault.title}")
    if case.title and not any(case.title == fault.title for fault in faults_of(case)):
        facts.add("found by" if ", seed " in case.title else "case", case.title)
    facts.add("target", f"{case.target}; {wording.config(case.config)}")
    console.print(facts)


def _steps(console: Console, records: Sequence[op.Record], violation: Violation) -> None:
    table = Table(box=None, padding=(0, 2, 0, 0), show_edge=False, header_style="dim", pad_edge=False)
    table.add_column("#", justify="right", style="dim", no_wrap=True)
    table.add_column("operation", ratio=5)
    table.add_column("answer", ratio=3)
    table.add_column("", no_wrap=True, width=1)
    shown = records[-STEPS_SHOWN:]
    first = len(records) - len(shown)
    if first:
        table.add_row("", Text(f"({wording.plural(first, 'operation')} before)", "dim"), "", "")
    for number, record in enumerate(shown, first + 1):
        broken = number - 1 == violation.record
        tables = broken and violation.code.startswith("KV-I5")
        table.add_row(
            str(number),
            Text(wording.operation(record.operation)),
            Text(wording.answer(record.answer, tables)),
            Text("✗", "bold red") if broken else "",
            style="bold" if broken else "",
        )
    console.print()
    console.print(Padding(table, (0, 0, 0, 2)))


def _biography(console: Console, chronicle: Chronicle, violation: Violation) -> None:
    _title(console, f"The life of block {chronicle.block}")
    lines = Facts(right=True)
    shown = chronicle.facts[-FACTS_SHOWN:]
    if len(shown) < len(chronicle.facts):
        lines.add("", f"({wording.plural(len(chronicle.facts) - len(shown), 'earlier line')})")
    for fact in shown:
        mark = " ✗" if fact.record - 1 == violation.record else ""
        lines.add(str(fact.record), fact.text + mark)
    if not shown:
        lines.add("", "nothing ever happened to it")
    console.print(lines)


def _claims(console: Console, finding: Finding, chronicle: Chronicle) -> None:
    violation = finding.violation
    block = chronicle.block
    _title(console, "What is wrong" if block is None else f"Who claims block {block}, and what it holds")
    lines = Facts()
    for label, text in chronicle.standing():
        lines.add(label, text)
    if violation.code == "KV-I2-bytes":
        _bytes(lines, finding.records[violation.record].memory, chronicle.digests())
    expected, observed = evidence(finding, chronicle)
    if violation.evidence.request and violation.evidence.request not in expected + observed:
        lines.add("request", violation.evidence.request)
    lines.add(Text("expected", "green"), expected)
    lines.add(Text("observed", "red"), observed)
    console.print(lines)


def evidence(finding: Finding, chronicle: Chronicle) -> tuple[str, str]:
    """What was expected and what was observed, in words."""
    found = finding.violation.evidence
    if finding.violation.code == "KV-P-atomic":
        seen = [r.observation for r in finding.records if r.observation is not None]
        if len(seen) > 1 and (difference := wording.changed(seen[-2], seen[-1])):
            return difference
    texts = [wording.evidence(text) for text in (found.expected, found.observed)]
    if any("claim digest" in text for text in texts):
        names = chronicle.digests()
        texts = [_resolved(text, names) for text in texts]
    expected, observed = (_named(text, chronicle) for text in texts)
    return expected, observed


def _named(text: str, chronicle: Chronicle) -> str:
    """Keys with what they stand for, tokens of requests that are gone with their place."""

    def key(match: re.Match[str]) -> str:
        stands = chronicle.stands(match.group(1))
        return f"{match.group(0)} ({stands})" if stands else match.group(0)

    def token(match: re.Match[str]) -> str:
        offset = int(match.group(1))
        return f"offset {offset} holds " + (
            chronicle.whose_token(int(match.group(3)), offset) or match.group(2)
        )

    text = re.sub(r"offset (\d+) holds (token (\d+) of a request that is gone)", token, text)
    return re.sub(r"key ([0-9a-f]{8})\b", key, text)


def _resolved(text: str, names: dict[int, str]) -> str:
    def name(match: re.Match[str]) -> str:
        digest = match.group(1)
        return "the content of " + names.get(int(digest, 16), f"a claim that nobody has ({digest})")

    return re.sub(r"claim digest ([0-9a-f]{16})", name, text)


def _bytes(lines: Facts, memory: Sequence[op.Mismatch], names: dict[int, str]) -> None:
    """What the words in memory say, place by place."""
    places: dict[tuple[int, int, int, int | None], list[op.Mismatch]] = {}
    for wrong in memory:
        places.setdefault((wrong.block, wrong.offset, wrong.expected, wrong.found), []).append(wrong)
    for (block, offset, expected, found), wrongs in list(places.items())[:WORDS_SHOWN]:
        writer = "not the words of one writer"
        if found is not None:
            writer = "the words of " + names.get(found, f"a claim that nobody has ({found:016x})")
        layers = ("layer " if len(wrongs) == 1 else "layers ") + wording.ids(each.layer for each in wrongs)
        wanted = names.get(expected, f"claim {expected:016x}")
        count = wording.plural(sum(each.words for each in wrongs), "wrong word")
        lines.add("bytes", f"block {block} offset {offset}, {layers}: {writer}, not of {wanted} ({count})")
    if len(places) > WORDS_SHOWN:
        lines.add("", f"and {wording.plural(len(places) - WORDS_SHOWN, 'wrong place')} more")


def _tail(console: Console, finding: Finding) -> None:
    console.print()
    if finding.violation.also:
        also = Text("also falls: ", "dim") + Text(", ".join(finding.violation.also))
        console.print(Padding(also, (0, 0, 0, 2)))
    console.print(Padding(Text(f"more on it: kvproof explain {finding.violation.code}", "dim"), (0, 0, 0, 2)))
    if finding.path:
        command = f"kvproof replay {shlex.quote(finding.path)}"
        console.print()
        console.print(Text.assemble("Reproduce: ", (command, "bold")), soft_wrap=True)


def _title(console: Console, text: str) -> None:
    console.print()
    console.print(Padding(Text(text, "bold"), (0, 0, 0, 2)))
