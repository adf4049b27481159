"""What becomes of a failing case: it is shrunk, kept as a file, replayed and reported."""

import hashlib
import tempfile
from pathlib import Path
from typing import Final

import msgspec
from rich.console import Console
from rich.text import Text

from kvproof.fuzz import cases
from kvproof.fuzz.cases import Case, CaseError
from kvproof.fuzz.cli.console import live
from kvproof.fuzz.cli.device import on_device
from kvproof.fuzz.cli.errors import BadInput, HarnessFault
from kvproof.fuzz.cli.files import check_folder
from kvproof.fuzz.reports.sight import capabilities_of
from kvproof.fuzz.reports.terminal import Finding, finding_of, report
from kvproof.fuzz.reports.wording import plural

FOLDER: Final = Path("kvproof-failures")
"""Where failing cases go unless told otherwise."""


class Found(msgspec.Struct, frozen=True):
    """A violation as JSON shows it. `case` is the path of the case file."""

    clause: str
    sentence: str
    case: str
    operations: int


def shrunk(console: Console, case: Case) -> Case:
    """The smallest case, with a live line meanwhile."""
    from kvproof.fuzz.shrink import shrink

    with live(console, lambda count, seconds: Text(f"shrinking, {count} left")) as line:
        line.count = plural(len(case.operations), "operation")

        def progress(left: int) -> None:
            line.count = plural(left, "operation")

        return shrink(case, progress)


def file_name(case: Case) -> str:
    """A name that the same case always gets."""
    digest = hashlib.sha256(cases.dumps(case)).hexdigest()[:8]
    return f"{case.expected.clause or 'case'}-{digest}.json"


def keep(case: Case, folder: Path, fall_back: bool = False) -> Path:
    """Write a case to a folder, or to a temporary one where that cannot be written and we may."""
    try:
        check_folder(folder)
    except BadInput:
        if not fall_back:
            raise
        folder = Path(tempfile.mkdtemp(prefix="kvproof-"))
    path = folder / file_name(case)
    cases.save(case, path)
    return path


def finding(case: Case, path: str = "") -> Finding:
    """Replay a failing case to its violation. One that no longer fails is a fault of the harness."""
    try:
        outcome = cases.replay(case)
    except CaseError as error:
        raise HarnessFault(f"a case that failed cannot be replayed: {error}") from error
    if outcome.verdict.violation is None:
        raise HarnessFault(f"a case that broke {case.expected.clause} holds when it is replayed")
    return finding_of(case, outcome, capabilities_of(case.target), path)


def handle(console: Console, case: Case, folder: Path, fall_back: bool = False, why: str = "") -> Found:
    """Shrink, keep and report a failing case; one that could not go on is kept as it is, and `why` told."""
    if case.expected.result == "errored":
        path = keep(case, folder, fall_back)
        after = plural(len(case.operations), "operation")
        for line in why.splitlines():
            console.print(Text(line), soft_wrap=True)
        text = f"Errored after {after}: kvproof replay{on_device()} {path}"
        console.print(Text(text), soft_wrap=True)
        return Found("", "The allocator cannot be asked any more.", str(path), len(case.operations))
    small = shrunk(console, case)
    path = keep(small, folder, fall_back)
    found = finding(small, str(path))
    report(console, found)
    violation = found.violation
    return Found(violation.code, violation.sentence, str(path), len(small.operations))
