"""Judging a target in a process of its own: a job comes in as JSON, a judgement goes out.

After a finding its clause is left unchecked and the run goes on, so that one fault does not
hide the next. What a target's packages print goes to stderr.
"""

import os
import subprocess
import sys
import time
from collections import Counter

import msgspec

from kvproof.fuzz import vectors
from kvproof.fuzz.cases import Case, CaseError
from kvproof.fuzz.engines.soak import Result, soak
from kvproof.fuzz.shrink import shrink
from kvproof.fuzz.smoke import examine
from kvproof.fuzz.targets import TargetError, TargetSkipped, make_adapter
from kvproof.fuzz.vectors import Seen
from kvproof.spec.oracle import BY_CODE, CLAUSES
from kvproof.spec.vocabulary import Capabilities

FOLLOWS = {
    # Who hits what is another's also counts on a hit that nobody else sees.
    "KV-I2-standing": (
        "KV-I2-key",
        "KV-I2-hit",
        "KV-I2-write",
        "KV-I2-read",
        "KV-I4-key",
        "KV-P-isolation",
        "KV-P-chain",
        "KV-P-refusal",
        "KV-P-capacity",
    ),
    "KV-I2-key": ("KV-I2-hit", "KV-I2-write", "KV-I2-read", "KV-I4-key"),
    "KV-I2-hit": ("KV-I2-write", "KV-I2-read"),
    "KV-P-canonical": ("KV-P-chain",),
}
"""Clauses that fall in the wake of another one, and say nothing more once that is ignored."""


class Job(msgspec.Struct, frozen=True):
    """What to judge: at most so many `operations` and `seconds` (0: any), without the `ignore`d clauses."""

    target: str
    operations: int = 20_000
    seconds: float = 0
    seed: int = 0
    ignore: tuple[str, ...] = ()


class Finding(msgspec.Struct, frozen=True):
    """A clause that fell, after how many judged operations and seconds, and the minimal case."""

    clause: str
    sentence: str
    operations: int
    seconds: float
    case: Case


class Judgement(msgspec.Struct, frozen=True):
    """`holds`, `violated`, `errored`, `skipped` or `undecided`; why; and what was judged."""

    target: str
    result: str
    reason: str = ""
    operations: int = 0
    seconds: float = 0.0
    findings: tuple[Finding, ...] = ()
    exercised: dict[str, int] = {}
    unchecked: tuple[str, ...] = ()
    capabilities: Capabilities | None = None
    vectors: tuple[Seen, ...] = ()

    def of_clause(self, code: str) -> str:
        """What is known of a clause: violated, held, unchecked, or not exercised."""
        if any(finding.clause == code for finding in self.findings):
            return "violated"
        if code in self.unchecked or self.result == "skipped":
            return "unchecked"
        return "held" if self.exercised.get(code) else "not exercised"


def judge(job: Job) -> Judgement:
    """Judge a target here and now."""
    started = time.perf_counter()
    try:
        adapter = make_adapter(job.target)
    except TargetSkipped as why:
        return Judgement(job.target, "skipped", str(why))
    except TargetError as why:
        return Judgement(job.target, "errored", str(why))
    capabilities = adapter.capabilities
    wrong = examine(adapter, frozenset(job.ignore))
    seen = () if wrong else tuple(vectors.run(adapter, vector) for vector in vectors.bundled())
    adapter.close()
    if wrong:
        return Judgement(job.target, "errored", f"the adapter is wrong: {wrong}", capabilities=capabilities)
    done, findings, error = 0, list[Finding](), ""
    exercised: Counter[str] = Counter()
    ignore = {code for given in job.ignore for code in (given, *FOLLOWS.get(given, ()))}
    while not error and done < job.operations and not _late(job, started):
        result = _fuzz(job, done, ignore, started, findings)
        done += result.operations
        exercised.update(result.exercised)
        if result.case is None:
            break
        error = _keep(result, done, started, findings, ignore)
    word = "violated" if findings else "errored" if error else "holds" if done else "undecided"
    hidden = ignore - {finding.clause for finding in findings}
    unchecked = tuple(c.code for c in CLAUSES if c.level > capabilities.level or c.code in hidden)
    seconds = time.perf_counter() - started
    return Judgement(
        job.target,
        word,
        error,
        done,
        seconds,
        tuple(findings),
        dict(exercised),
        unchecked,
        capabilities,
        seen,
    )


def _late(job: Job, started: float) -> bool:
    return bool(job.seconds) and time.perf_counter() - started >= job.seconds


def _fuzz(job: Job, done: int, ignore: set[str], started: float, findings: list[Finding]) -> Result:
    return soak(
        job.operations - done,
        job.seed + len(findings),
        compare_policy=False,
        ignore=frozenset(ignore),
        adapter=lambda: make_adapter(job.target),
        stop=lambda: _late(job, started),
    )


def _keep(result: Result, done: int, started: float, findings: list[Finding], ignore: set[str]) -> str:
    """Shrink and note a finding; how the allocator went away, if it did."""
    case = result.case
    assert case is not None
    if case.expected.result == "errored":
        return case.title
    seconds = time.perf_counter() - started
    clause = case.expected.clause
    try:
        case = shrink(case)
    except CaseError as error:
        case = msgspec.structs.replace(case, title=f"{case.title}; {error}")
    findings.append(Finding(clause, BY_CODE[clause].sentence, done, seconds, case))
    ignore |= {clause, *FOLLOWS.get(clause, ())}
    # What follows a crash is meaningless: the allocator is somewhere between two states.
    return "it raised an error, and was not judged any further" if clause == "KV-P-crash" else ""


def judge_apart(job: Job) -> Judgement:
    """Judge a target in a fresh process, with a fixed hash seed."""
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    command = [sys.executable, "-m", __name__]
    run = subprocess.run(command, input=msgspec.json.encode(job), capture_output=True, env=environment)
    try:
        return msgspec.json.decode(run.stdout, type=Judgement)
    except msgspec.MsgspecError:
        tail = run.stderr.decode(errors="replace").strip().splitlines()[-1:] or ["nothing on stderr"]
        reason = f"the judging process ended with code {run.returncode}: {tail[0]}"
        return Judgement(job.target, "errored", reason)


def main() -> None:
    """Read a job from stdin, write the judgement to the real stdout."""
    out = os.dup(1)
    os.dup2(2, 1)
    judgement = judge(msgspec.json.decode(sys.stdin.buffer.read(), type=Job))
    with os.fdopen(out, "wb") as file:
        file.write(msgspec.json.encode(judgement))


if __name__ == "__main__":
    main()
