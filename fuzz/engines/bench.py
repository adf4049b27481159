"""The bench: our manager beside released ones, in one run, in turn.

Each contender has a process of its own. They are asked for one repetition of a row each, one
after the other and round again, so that noise hits all alike; only one works at a time. A row
counts when all have done the same work.
"""

import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import msgspec

from kvproof.fuzz.adapters.port import Errored
from kvproof.fuzz.engines.bench_rows import BLOCK_SIZE, Ask, Row, Said, Sample, Work
from kvproof.fuzz.targets import TargetError, split
from kvproof.fuzz.targets.fetch import parse
from kvproof.fuzz.targets.process import Process
from kvproof.spec.oracle import Mix

OURS: Final = "kvproof"
EQUAL: Final = 0.005
"""How far a ratio may be from 1 and still say that nobody is ahead: it reads 1.00."""
TIMEOUT: Final = 900.0
"""Seconds for one answer; to fetch a release may take most of it."""


class Machine(msgspec.Struct, frozen=True):
    """What it ran on, and how busy that was: the load at the end, as far as the system tells."""

    cores: int
    python: str
    system: str
    load: float | None


class Contender(msgspec.Struct, frozen=True):
    """`measured`, `skipped` or `errored`, and why."""

    name: str
    state: str = "measured"
    reason: str = ""


class Value(msgspec.Struct, frozen=True):
    """A contender's repetitions of a row, in its unit."""

    runs: tuple[float, ...]

    @property
    def median(self) -> float:
        """The middle one."""
        return statistics.median(self.runs)

    @property
    def spread(self) -> float:
        """(max − min) / median."""
        return (max(self.runs) - min(self.runs)) / self.median


class Outcome(msgspec.Struct, frozen=True):
    """A row of the table. With a `reason` nothing is compared; otherwise all did this `work`."""

    row: Row
    values: dict[str, Value]
    work: Work
    reason: str = ""

    @property
    def best_other(self) -> str:
        """The fastest, or smallest, of the others; empty where there is none."""
        others = [name for name in self.values if name != OURS]
        choose = max if self.row.higher_is_better else min
        return choose(others, key=lambda name: self.values[name].median) if others else ""

    @property
    def standing(self) -> str:
        """Whether ours is `ahead` of the best other, `equal` within half a percent, or `behind`."""
        ratio = 1.0 if self.ratio is None else self.ratio
        return "equal" if abs(ratio - 1) < EQUAL else "ahead" if ratio > 1 else "behind"

    @property
    def ratio(self) -> float | None:
        """How many times as good ours is as the best other."""
        if self.reason or not self.best_other or OURS not in self.values:
            return None
        ours, other = self.values[OURS].median, self.values[self.best_other].median
        return ours / other if self.row.higher_is_better else other / ours


class Rate(msgspec.Struct, frozen=True):
    """A row: operations a second of CPU time, repetition by repetition, and the mix behind them.

    An exploration does all that a scope allows, and has no mix.
    """

    name: str
    value: Value
    mix: Mix | None


class Judging(msgspec.Struct, frozen=True):
    """The rates, and how many times as long a judged operation takes as the manager's part of it.

    That is told of the first row, if it is one of fuzzing.
    """

    rates: tuple[Rate, ...]
    overhead: float | None


class Report(msgspec.Struct, frozen=True):
    """A whole run. `share` is how much of the measured wall time the processes had a core.

    `judging` is the harness, where it was measured too.
    """

    machine: Machine
    contenders: tuple[Contender, ...]
    outcomes: tuple[Outcome, ...]
    repeat: int
    quick: bool
    share: float
    seconds: float
    judging: Judging | None = None

    @property
    def complete(self) -> bool:
        """Whether everybody was measured in every row, at the same work."""
        return all(each.state == "measured" for each in self.contenders) and not any(
            outcome.reason for outcome in self.outcomes
        )

    @property
    def measured(self) -> list[str]:
        """The contenders that were measured, ours first."""
        return [each.name for each in self.contenders if each.state == "measured"]


def contenders_of(against: str) -> list[str]:
    """`vllm==0.13.0,0.22.1` as targets by name. Raises `TargetError`."""
    found: list[str] = []
    for part in filter(None, map(str.strip, against.split(","))):
        target = part if "==" in part or not found else f"vllm=={part}"
        family, version = split(target)
        if family != "vllm" or not version:
            raise TargetError(f"a bench is against releases of vllm, as in vllm==0.13.0, not {part!r}.")
        parse(target)
        found.append(target)
    if not found:
        raise TargetError("there is nobody to measure against; name a release, as in vllm==0.13.0.")
    return list(dict.fromkeys(found))


class Seat:
    """A contender's process."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.contender = Contender(name)
        command = [sys.executable, "-P", "-m", "kvproof.fuzz.engines.bench_worker"]
        self._process = Process(command, TIMEOUT)

    def ask(self, ask: Ask) -> Said:
        """What it says. Whoever is gone says why, again and again."""
        what = f"to {ask.do}{f' {ask.row.name!r}' if ask.row else ''}"
        try:
            answer = self._process.ask(msgspec.json.encode(ask) + b"\n", what)
            return msgspec.json.decode(answer, type=Said)
        except Errored as error:
            log = [line for line in error.transcript.splitlines() if line.startswith("! ")]
            return Said(": ".join([error.reason, *log[-1:]]))

    def start(self) -> None:
        """Load it; it may have to be fetched."""
        said = self.ask(Ask("start", contender=self.name))
        if said.reason:
            self.contender = Contender(self.name, "skipped" if said.skipped else "errored", said.reason)
            self.stop()

    def stop(self) -> None:
        """End its process."""
        self._process.stop()


def run(
    against: Sequence[str],
    rows: Sequence[Row],
    repeat: int,
    *,
    quick: bool = False,
    progress: Callable[[str], None] = lambda text: None,
) -> Report:
    """Measure ours and the others. `progress` hears what is being done. Raises `TargetError`."""
    started = time.perf_counter()
    seats: list[Seat] = []
    outcomes: list[Outcome] = []
    times: list[Sample] = []
    try:
        for name in (OURS, *against):
            progress(f"loading {name}")
            seats.append(Seat(name))
            seats[-1].start()
        measured = [seat for seat in seats if seat.contender.state == "measured"]
        for number, row in enumerate(rows, 1):
            told = f"row {number} of {len(rows)}: {row.name}, "
            outcomes.append(_row(measured, row, repeat, partial(_tell, progress, told), times))
    finally:
        for seat in seats:
            seat.stop()
    cpu, wall = sum(each.amount for each in times), sum(each.wall for each in times)
    contenders = tuple(seat.contender for seat in seats)
    spent = time.perf_counter() - started
    return Report(
        machine_now(), contenders, tuple(outcomes), repeat, quick, cpu / wall if wall else 0.0, spent
    )


def _tell(progress: Callable[[str], None], before: str, text: str) -> None:
    progress(before + text)


def _row(
    seats: Sequence[Seat], row: Row, repeat: int, progress: Callable[[str], None], times: list[Sample]
) -> Outcome:
    """Prepare everybody, then repetitions in turn; the samples of time go to `times`."""
    samples: dict[str, list[Sample]] = {seat.name: [] for seat in seats}
    reasons: dict[str, str] = {}
    for seat in seats:
        progress(f"{seat.name} sets up")
        said = seat.ask(Ask("prepare", row=row))
        if said.reason:
            reasons[seat.name] = said.reason
    total = 1 if row.once else repeat
    for repetition in range(1, total + 1):
        progress(f"repetition {repetition} of {total}")
        for seat in seats:
            if seat.name in reasons:
                continue
            said = seat.ask(Ask("measure", repetition=repetition))
            if said.sample is None:
                reasons[seat.name] = said.reason
            else:
                samples[seat.name].append(said.sample)
    for seat in seats:
        seat.ask(Ask("drop"))
    if not row.once:
        times.extend(sample for each in samples.values() for sample in each)
    return _outcome(row, {name: each for name, each in samples.items() if name not in reasons}, reasons)


def _outcome(row: Row, samples: dict[str, list[Sample]], reasons: dict[str, str]) -> Outcome:
    values = {name: Value(tuple(row.value(each.amount) for each in own)) for name, own in samples.items()}
    work = next((own[0].work for own in samples.values()), Work())
    reason = "; ".join(f"{name}: {why}" for name, why in reasons.items())
    if not reason and not alike(samples):
        reason = "the work differs: " + "; ".join(f"{name} {told(own)}" for name, own in samples.items())
    return Outcome(row, values, work, reason)


def alike(samples: dict[str, list[Sample]]) -> bool:
    """Whether all have done the same work, repetition by repetition."""
    works = [[each.work for each in own] for own in samples.values()]
    return all(work == works[0] for work in works)


def told(samples: Sequence[Sample]) -> str:
    """The work of all repetitions in words."""
    works = [msgspec.structs.asdict(each.work) for each in samples]
    counts = {name: sum(work[name] for work in works) for name in Work.__struct_fields__}
    return ", ".join(f"{count:,} {name}" for name, count in counts.items() if count) or "nothing"


def document(report: Report) -> dict[str, object]:
    """The report as plain values for JSON, with what follows from them."""
    machine: object = msgspec.to_builtins(report.machine)
    return {
        "machine": machine,
        "settings": {
            "block_size": BLOCK_SIZE,
            "events": False,
            "clock": "CPU time of the contender's process",
            "collector": "on, frozen after set-up",
            "repeat": report.repeat,
            "quick": report.quick,
        },
        "share": round(report.share, 3),
        "seconds": round(report.seconds, 1),
        "contenders": [msgspec.to_builtins(each) for each in report.contenders],
        "rows": [_document_row(outcome) for outcome in report.outcomes],
        "harness": _document_judging(report.judging),
    }


def _document_judging(judging: Judging | None) -> dict[str, object] | None:
    if judging is None:
        return None
    return {
        "unit": "judged operations/s",
        "overhead": None if judging.overhead is None else round(judging.overhead, 1),
        "rows": [
            {
                "name": rate.name,
                "median": round(rate.value.median),
                "spread": round(rate.value.spread, 4),
                "runs": len(rate.value.runs),
                "mix": msgspec.to_builtins(rate.mix),
            }
            for rate in judging.rates
        ],
    }


def _document_row(outcome: Outcome) -> dict[str, object]:
    row, ratio = outcome.row, outcome.ratio
    return {
        "name": row.name,
        "unit": row.unit,
        "better": "higher" if row.higher_is_better else "lower",
        "count": row.count,
        "values": {
            name: {"median": value.median, "spread": round(value.spread, 4), "runs": value.runs}
            for name, value in outcome.values.items()
        },
        "best_other": outcome.best_other,
        "ratio": None if ratio is None else round(ratio, 3),
        "work": msgspec.to_builtins(outcome.work),
        "reason": outcome.reason,
    }


def machine_now() -> Machine:
    """This machine, and its load now."""
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    load = round(os.getloadavg()[0], 1) if hasattr(os, "getloadavg") else None
    return Machine(cores, platform.python_version(), f"{platform.system()} {platform.machine()}", load)
