"""`kvproof check`."""

import sys
import time
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import click
import msgspec
from rich.console import Console
from rich.text import Text

from kvproof.fuzz import devices
from kvproof.fuzz.cli.background import Ahead
from kvproof.fuzz.cli.console import STYLES, console, live, print_json, seconds
from kvproof.fuzz.cli.device import level_3, with_device
from kvproof.fuzz.cli.errors import CODES
from kvproof.fuzz.cli.failures import FOLDER, Found, handle
from kvproof.fuzz.cli.files import check_file, write_whole
from kvproof.fuzz.cli.phases import PHASES, Phase, worst
from kvproof.fuzz.cli.profiles import NAMES, Profile, profile
from kvproof.fuzz.engines.power import NEEDED
from kvproof.fuzz.engines.power_record import Detected, detects
from kvproof.fuzz.reports.junit import junit
from kvproof.fuzz.reports.wording import plural
from kvproof.fuzz.targets import make_adapter
from kvproof.spec.oracle import BY_CODE
from kvproof.spec.situations import SITUATIONS

AHEAD: Final = ("proofs", "workload", "faults")
"""Phases that a second process runs meanwhile: about half of the work."""


class Ran(msgspec.Struct, frozen=True):
    """A phase that has run."""

    name: str
    phase: Phase
    seconds: float


def versions() -> str:
    """The line that says what runs here."""
    table = f"torch {metadata.version('torch')}" if find_spec("torch") else "numpy (torch is not installed)"
    python = ".".join(map(str, sys.version_info[:3]))
    return (
        f"kvproof {metadata.version('kvproof')}, Python {python}, "
        f"numpy {metadata.version('numpy')}, device table: {table}, {level_3()}"
    )


@click.command(short_help="Run every phase.")
@click.option(
    "--profile", "name", type=click.Choice(NAMES), default="quick", show_default=True, help="How much."
)
@click.option("--seed", type=int, default=0, show_default=True, help="Where the fuzz engines start.")
@with_device
@click.option("--junit", "xml", type=click.Path(path_type=Path), help="Write JUnit XML to this file as well.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON to stdout.")
def command(name: str, seed: int, xml: Path | None, as_json: bool) -> int:
    """Run every phase: smoke, timeline, cases, proofs, explore, fuzz, workload; also device, targets, faults.

    A violation is shrunk and written to kvproof-failures.

    \b
    Examples:
      kvproof check
      kvproof check --profile ci --junit report.xml
      kvproof check --seed 7 --json
    """
    if xml is not None:
        check_file(xml)
    to = console(as_json)
    to.print(Text(versions(), "dim"), soft_wrap=True)
    start = time.perf_counter()
    how = profile(name)
    ran, stopped = _run(to, how, seed)
    word = worst(each.phase.verdict for each in ran)
    found = [handle(to, case, FOLDER, True) for each in ran for case in each.phase.failing]
    for each in ran:
        for test in each.phase.tests:
            if test.message and test.verdict != "holds" and not (each.phase.failing and test.clause):
                to.print(Text.assemble((f"{each.name}/{test.name}", "bold"), f": {test.message}"))
    if xml is not None:
        write_whole(xml, junit([test for each in ran for test in each.phase.tests]))
    clauses, situations = _clauses(ran), _situations(ran)
    if word == "holds" and (clauses["not_exercised"] or situations["missed"]):
        word = "undecided"
    detected = [] if stopped else detects({"soak": how.soak, "hypothesis": how.hypothesis})
    _close(to, word, clauses, situations, detected, time.perf_counter() - start, stopped)
    if as_json:
        print_json(_document(name, seed, ran, word, clauses, situations, detected, found))
    return CODES[word]


def _run(to: Console, how: Profile, seed: int) -> tuple[list[Ran], bool]:
    """Run the phases in order. A blind harness says nothing about anything, so it ends the run."""
    switched = {
        "explore": bool(how.presets),
        "device": bool(how.device),
        "faults": how.faults,
        "targets": bool(how.targets),
        "mutants": how.mutants,
    }
    names = [name for name in PHASES if switched.get(name, True)]
    ran: list[Ran] = []
    ahead = Ahead([name for name in AHEAD if name in names], how, seed, devices.current().name)
    try:
        for name in names:
            ran.append(_phase(to, name, how, seed, ahead))
            to.print(_line(to, name, ran[-1].phase.count, ran[-1].seconds, ran[-1].phase.verdict))
            if name == "smoke" and ran[-1].phase.verdict == "blind":
                return ran, True
    finally:
        ahead.stop()
    return ran, False


def _phase(to: Console, name: str, how: Profile, seed: int, ahead: Ahead) -> Ran:
    def draw(count: str, spent: float) -> Text:
        return _line(to, name, count, spent, "…")

    with live(to, draw) as line:
        if name in AHEAD:
            while not ahead.ready(name, 0.2):
                line.count = ahead.said
            return Ran(name, *ahead.take(name))

        def progress(text: str) -> None:
            line.count = text

        phase = PHASES[name][1](how, seed, progress)
        return Ran(name, phase, line.seconds)


def _line(to: Console, name: str, count: str, spent: float, word: str) -> Text:
    """`name  what it does   count   seconds  verdict`, as wide as the console."""
    # A count that is longer than others takes its room from what is said before it.
    room = max(12, min(to.width, 100) - 49 - max(0, len(count) - 18))
    what = PHASES[name][0]
    what = what if len(what) <= room else what[: room - 1] + "…"
    text = Text(f"{name:<9} {what:<{room}} {count:>18} {seconds(spent):>8}  ")
    return text.append(word, STYLES.get(word, ""))


def _clauses(ran: list[Ran]) -> dict[str, list[str]]:
    judged = {code for each in ran for code in each.phase.exercised}
    unchecked = {code for each in ran for code in each.phase.unchecked} - judged
    return {
        "judged": [code for code in BY_CODE if code in judged],
        "unchecked": [code for code in BY_CODE if code in unchecked],
        "not_exercised": [code for code in BY_CODE if code not in judged | unchecked],
    }


def _situations(ran: list[Ran]) -> dict[str, list[str]]:
    capabilities = make_adapter("reference").capabilities
    possible = [each.name for each in SITUATIONS if each.possible(capabilities)]
    reached = {name for each in ran for name in each.phase.situations}
    return {
        "met": [name for name in possible if name in reached],
        "missed": [name for name in possible if name not in reached],
    }


def _close(
    to: Console,
    word: str,
    clauses: dict[str, list[str]],
    situations: dict[str, list[str]],
    detected: list[Detected],
    spent: float,
    stopped: bool,
) -> None:
    to.print()
    if stopped:
        to.print(Text("stopped: a harness that misses a planted fault can't judge anything"))
    counts = ", ".join(f"{len(codes)} {name.replace('_', ' ')}" for name, codes in clauses.items())
    to.print(
        Text.assemble((word, STYLES[word]), f": {plural(len(BY_CODE), 'clause')}, {counts}; {seconds(spent)}")
    )
    for name in ("unchecked", "not_exercised"):
        if clauses[name]:
            to.print(Text(f"  {name.replace('_', ' ')}: {', '.join(clauses[name])}", "dim"))
    if detected:
        to.print(Text(f"  {_power(detected)}", "dim"))
    met, missed = situations["met"], situations["missed"]
    to.print(Text(f"  {len(met)} of {len(met) + len(missed)} situations met", "dim"))
    if missed:
        to.print(Text(f"  never met: {', '.join(missed)}", "dim"))


def _power(detected: list[Detected]) -> str:
    """What the budget of this run can be expected to find."""
    strong = [each for each in detected if each.probability >= NEEDED]
    text = f"a run of this size finds {len(strong)} of {plural(len(detected), 'seeded fault')}"
    text += f" in at least {NEEDED:.0%} of cases"
    weakest = detected[0]
    if weakest.probability < 1:
        text += f"; the least likely is {weakest.fault}, {weakest.probability:.0%}"
    return text


def _document(
    name: str,
    seed: int,
    ran: list[Ran],
    word: str,
    clauses: dict[str, list[str]],
    situations: dict[str, list[str]],
    detected: list[Detected],
    found: list[Found],
) -> dict[str, Any]:
    phases = [
        {
            "name": each.name,
            "verdict": each.phase.verdict,
            "count": each.phase.count,
            "seconds": round(each.seconds, 3),
            "tests": each.phase.tests,
        }
        for each in ran
    ]
    return {
        "version": metadata.version("kvproof"),
        "profile": name,
        "seed": seed,
        "device": devices.current().name,
        "verdict": word,
        "exit_code": CODES[word],
        "phases": phases,
        "clauses": clauses,
        "situations": situations,
        "power": detected,
        "violations": found,
    }
