"""Recall: are the known bugs of a release found by runs that are told nothing?

A run is a soak of the release with every clause judged. A finding is shrunk, and the run
goes on. Clauses that fell are ignored from then on, but for one of them in turn, with all
key fields or without one that was at fault: a fault must not hide what lies behind it, nor
another one under its own clause. What is looked for decides only which findings are worth
shrinking, beside the first of each clause, and when the run may end.
"""

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence

import msgspec

from kvproof.fuzz import cases
from kvproof.fuzz.adapters.port import Adapter
from kvproof.fuzz.cases import Case, CaseError
from kvproof.fuzz.choices import Choices
from kvproof.fuzz.engines.soak import Result, soak
from kvproof.fuzz.shrink import shrink, size
from kvproof.fuzz.targets import TargetError, TargetSkipped, make_adapter
from kvproof.fuzz.targets.judge import FOLLOWS
from kvproof.fuzz.targets.known import Known, fields_of, select

ROUND = 1500
"""Operations for which a clause that fell before is judged again, until it is the next one's turn."""

CRASH = "KV-P-crash"
"""Never ignored: what follows a crash is meaningless."""


class Job(msgspec.Struct, frozen=True):
    """Runs on one release, one per seed, until all `wanted` bugs are matched or a limit is met (0: none)."""

    target: str
    wanted: tuple[str, ...]
    seeds: tuple[int, ...]
    operations: int = 0
    seconds: float = 0


class First(msgspec.Struct, frozen=True):
    """The first match of a known bug: after so many judged operations and seconds, with the minimal case."""

    known: str
    operations: int
    seconds: float
    case: Case


class Run(msgspec.Struct, frozen=True):
    """One run. `error` says why nothing was judged any further, `skipped` why nothing was at all."""

    target: str
    seed: int
    level: int = 0
    operations: int = 0
    seconds: float = 0.0
    firsts: tuple[First, ...] = ()
    error: str = ""
    skipped: str = ""

    def first(self, known: str) -> First | None:
        """The first match of a bug in this run."""
        return next((first for first in self.firsts if first.known == known), None)


class Turns:
    """Whose turn it is: a clause that fell is judged again, with all key fields or without one at fault.

    In the first turn of each cycle all that fell is ignored.
    """

    def __init__(self) -> None:
        self._fell: dict[str, list[str]] = {}
        """Clauses that fell, with the key fields of their minimal cases."""
        self._turn = ("", "")
        self._end = ROUND

    def fell(self, clause: str, fields: Iterable[str] = ()) -> None:
        """A clause fell."""
        if clause != CRASH:
            known = self._fell.setdefault(clause, [])
            known += [each for each in sorted(fields) if each not in known]

    def __contains__(self, clause: str) -> bool:
        return clause in self._fell

    def at(self, operations: int) -> tuple[frozenset[str], str]:
        """Which clauses to ignore and which key field not to use after so many operations."""
        if operations >= self._end:
            self._turn, self._end = self._next(), operations + ROUND
        clause, field = self._turn
        others = [each for each in self._fell if each != clause]
        ignored = {each for other in others for each in (other, *FOLLOWS.get(other, ()))}
        return frozenset(ignored - {clause}), field

    def _next(self) -> tuple[str, str]:
        """What falls in the wake of another clause has no turn of its own."""
        wake = {each for clause in self._fell for each in FOLLOWS.get(clause, ())}
        judged = {clause: fields for clause, fields in self._fell.items() if clause not in wake}
        turns = [("", ""), *((c, f) for c, fields in judged.items() for f in ("", *fields))]
        now = turns.index(self._turn) if self._turn in turns else 0
        return turns[(now + 1) % len(turns)]


def run(job: Job, seed: int) -> Run:
    """One run, here and now.

    The seconds are this process's own, whoever else uses the machine. They include shrinking, not the
    loading of the release.
    """
    level = make_adapter(job.target).capabilities.level
    wanted = select(job.wanted)
    stream, turns, firsts, done, error = Choices(seed), Turns(), dict[str, First](), 0, ""
    started = time.process_time()

    def spent() -> float:
        return time.process_time() - started

    def over() -> bool:
        return bool(job.seconds) and spent() >= job.seconds

    while len(firsts) < len(wanted) and not over() and not 0 < job.operations <= done:
        found = _round(job, stream.word(), *turns.at(done), done, over)
        done += found.operations
        if found.case is None:
            continue
        if found.case.expected.result == "errored":
            error = "the allocator went away"
            break
        missing = [known for known in wanted if known.id not in firsts]
        clause = found.case.expected.clause
        minimal = _minimal(found.case, missing, clause not in turns)
        turns.fell(clause, fields_of(minimal) if minimal else ())
        known = next((each for each in missing if minimal and each.is_in(minimal)), None)
        if known and minimal and not over():
            firsts[known.id] = First(known.id, done, spent(), _bare(minimal, known))
    return Run(job.target, seed, level, done, spent(), tuple(firsts.values()), error)


def _round(
    job: Job, seed: int, ignore: frozenset[str], without: str, done: int, stop: Callable[[], bool]
) -> Result:
    def adapter() -> Adapter:
        made = make_adapter(job.target)
        features = tuple(each for each in made.capabilities.features if each != without)
        made.capabilities = msgspec.structs.replace(made.capabilities, features=features)
        return made

    operations = min(ROUND, job.operations - done) if job.operations else ROUND
    return soak(operations, seed, compare_policy=False, ignore=ignore, adapter=adapter, stop=stop)


def _minimal(case: Case, wanted: Sequence[Known], new: bool) -> Case | None:
    """The minimal case of a finding that may be a bug that is wanted, or whose clause is new."""
    try:
        return shrink(case) if new or any(known.may_be_in(case) for known in wanted) else None
    except CaseError:
        return None


def _bare(case: Case, known: Known) -> Case:
    """The case under the bug's title, with every clause judged if it breaks the same one all the same."""
    named = msgspec.structs.replace(case, title=known.title)
    bare = msgspec.structs.replace(named, ignore=())
    return bare if cases.replay(bare).recurs(bare) else named


# --- in a process of its own ------------------------------------------------------------


def run_apart(job: Job, progress: Callable[[Run], None] | None = None) -> list[Run]:
    """The runs of a job in a fresh process, with a fixed hash seed; a release is loaded once in it."""
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    runs: list[Run] = []
    with subprocess.Popen(
        [sys.executable, "-m", __name__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment,
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(msgspec.json.encode(job))
            process.stdin.close()
            for line in process.stdout:
                runs.append(msgspec.json.decode(line, type=Run))
                if progress is not None:
                    progress(runs[-1])
        except BaseException:
            process.kill()
            raise
    missing = job.seeds[len(runs) :]
    reason = f"the process ended with code {process.returncode}"
    return runs + [Run(job.target, seed, error=reason) for seed in missing]


def main() -> None:
    """Read a job from stdin, write one line of JSON for each run to the real stdout."""
    out = os.dup(1)
    os.dup2(2, 1)
    job = msgspec.json.decode(sys.stdin.buffer.read(), type=Job)
    with os.fdopen(out, "wb") as file:
        for seed in job.seeds:
            try:
                done = run(job, seed)
            except TargetSkipped as why:
                done = Run(job.target, seed, skipped=str(why))
            except TargetError as why:
                done = Run(job.target, seed, error=str(why))
            file.write(msgspec.json.encode(done) + b"\n")
            file.flush()


# --- what the runs say ------------------------------------------------------------------


class Spread(msgspec.Struct, frozen=True):
    """A median and the range around it."""

    median: float
    least: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """Of at least one value."""
        return cls(statistics.median(values), min(values), max(values))


class Row(msgspec.Struct, frozen=True):
    """What became of a known bug: in how many of how many runs it was found, and whether its end is seen.

    `quiet` counts the runs on the fixed release without a match, of `heard` runs that judged at
    least `judged` operations each.
    """

    known: Known
    level: int
    seeds: int
    found: int
    operations: Spread | None
    seconds: Spread | None
    minimal: Case | None
    heard: int = 0
    quiet: int = 0
    judged: int = 0
    reason: str = ""

    @property
    def word(self) -> str:
        """`holds` when at least nine of ten runs found it and the fixed release is silent."""
        if self.reason:
            return "errored" if not self.reason.startswith("skipped") else "undecided"
        if self.quiet < self.heard:
            return "violated"
        return "holds" if 10 * self.found >= 9 * self.seeds else "blind"


def row(known: Known, runs: Sequence[Run], silent: Sequence[Run] = ()) -> Row:
    """Summarize the runs on the release that has a bug, and those on the release that lacks it."""
    firsts = [first for each in runs if (first := each.first(known.id)) is not None]
    skipped = next((each.skipped for each in (*runs, *silent) if each.skipped), "")
    error = next((each.error for each in (*runs, *silent) if each.error), "")
    return Row(
        known,
        max((each.level for each in runs), default=0),
        len(runs),
        len(firsts),
        Spread.of([first.operations for first in firsts]) if firsts else None,
        Spread.of([first.seconds for first in firsts]) if firsts else None,
        min((first.case for first in firsts), key=size, default=None),
        len(silent),
        sum(each.first(known.id) is None for each in silent),
        min((each.operations for each in silent), default=0),
        error or (f"skipped: {skipped}" if skipped else ""),
    )


if __name__ == "__main__":
    main()
