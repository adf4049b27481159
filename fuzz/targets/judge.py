"""Judging a target in a process of its own: a job comes in as JSON, a judgement goes out.

After a finding its clause is left unchecked and the run goes on, so that one fault does not
hide the next. What a target's packages print goes to stderr.

A policy that is claimed is compared in the second half of the run, on prompts of tokens alone, until
it differs. A fault in a key field changes what is hit and held, so that the policy would differ in
its wake and say nothing new; the first half has judged those fields without it.
"""

import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Collection

import msgspec

from kvproof.fuzz import devices, vectors
from kvproof.fuzz.adapters.port import Adapter
from kvproof.fuzz.cases import Case, CaseError
from kvproof.fuzz.engines.soak import Result, soak
from kvproof.fuzz.shrink import shrink
from kvproof.fuzz.smoke import examine
from kvproof.fuzz.targets import TargetError, TargetSkipped, make_adapter
from kvproof.fuzz.targets.known import FIELDS
from kvproof.fuzz.vectors import Seen
from kvproof.spec.oracle import BY_CODE
from kvproof.spec.properties import REFINEMENT
from kvproof.spec.vocabulary import Capabilities

FOLLOWS = {
    # Who hits what is another's also counts on a hit that nobody else sees.
    "KV-I2-standing": (
        "KV-I2-key",
        "KV-I2-hit",
        "KV-I2-write",
        "KV-I2-read",
        "KV-I2-bytes",
        "KV-I4-key",
        "KV-P-isolation",
        "KV-P-chain",
        "KV-P-refusal",
        "KV-P-capacity",
    ),
    "KV-I2-key": ("KV-I2-hit", "KV-I2-write", "KV-I2-read", "KV-I2-bytes", "KV-I4-key"),
    "KV-I2-hit": ("KV-I2-write", "KV-I2-read", "KV-I2-bytes"),
    "KV-P-canonical": ("KV-P-chain",),
}
"""Clauses that fall in the wake of another one, and say nothing more once that is ignored."""


class Job(msgspec.Struct, frozen=True):
    """What to judge: at most so many `operations` and `seconds` (0: any), without the `ignore`d clauses.

    `without` are features that are not used: those in which the target is known to be at fault. `device`
    is where a process of its own runs the kernels.
    """

    target: str
    operations: int = 20_000
    seconds: float = 0
    seed: int = 0
    ignore: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    device: str = devices.DEFAULT


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
    device: str = ""

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
    run = _Run(job, capabilities, started)
    run.run()
    word = "violated" if run.findings else "errored" if run.error else "holds" if run.done else "undecided"
    return Judgement(
        job.target,
        word,
        run.error,
        run.done,
        time.perf_counter() - started,
        tuple(run.findings),
        dict(run.exercised),
        run.unchecked(),
        capabilities,
        seen,
    )


class _Run:
    """Rounds of fuzzing: each ends with a finding, or where the next one must be of another kind."""

    def __init__(self, job: Job, capabilities: Capabilities, started: float) -> None:
        self.done = 0
        self.error = ""
        self.findings: list[Finding] = []
        self.exercised: Counter[str] = Counter()
        self._job = job
        self._has = capabilities
        self._started = started
        self._ignore = {code for given in job.ignore for code in (given, *FOLLOWS.get(given, ()))}
        self._rounds = 0

    def run(self) -> None:
        """Fuzz until a limit is met, or the allocator can't be judged any further."""
        while not self.error and self.done < self._job.operations and not self._late():
            result = self._round()
            self.done += result.operations
            self.exercised.update(result.exercised)
            if result.case is not None:
                self._keep(result.case, result.error)

    def unchecked(self) -> tuple[str, ...]:
        """The clauses that were not judged at all."""
        hidden = self._ignore - {finding.clause for finding in self.findings}
        policy = () if self._has.policy else REFINEMENT
        unseen = {c.code for c in BY_CODE.values() if c.level > self._has.level} - self.exercised.keys()
        return tuple(code for code in BY_CODE if code in {*hidden, *policy, *unseen})

    def _late(self, share: float = 1.0) -> bool:
        spent = time.perf_counter() - self._started
        return bool(self._job.seconds) and spent >= share * self._job.seconds

    def _round(self) -> Result:
        """Fuzz with all that the allocator has; or, to compare its policy, with prompts of tokens alone."""
        claimed = self._has.policy and not self._ignore & REFINEMENT.keys()
        half = self._job.operations // 2
        plain = claimed and (self.done >= half or self._late(0.5))
        first = claimed and not plain
        result = soak(
            (half if first else self._job.operations) - self.done,
            self._job.seed + self._rounds,
            compare_policy=plain,
            ignore=frozenset(self._ignore),
            adapter=lambda: self._made(FIELDS if plain else ()),
            stop=lambda: self._late(0.5 if first else 1.0),
        )
        self._rounds += 1
        if plain:
            self.exercised.update(dict.fromkeys(REFINEMENT, result.operations))
        return result

    def _made(self, without: Collection[str]) -> Adapter:
        adapter = make_adapter(self._job.target)
        names = adapter.capabilities.features
        kept = tuple(name for name in names if name not in without and name not in self._job.without)
        adapter.capabilities = msgspec.structs.replace(adapter.capabilities, features=kept)
        return adapter

    def _keep(self, case: Case, gone: str) -> None:
        """Shrink and note a finding; or how the allocator went away."""
        if case.expected.result == "errored":
            first, _, _ = gone.partition("\n")
            self.error = f"{case.title}: {first}"
            return
        seconds = time.perf_counter() - self._started
        clause = case.expected.clause
        try:
            case = shrink(case)
        except CaseError as error:
            case = msgspec.structs.replace(case, title=f"{case.title}; {error}")
        self.findings.append(Finding(clause, BY_CODE[clause].sentence, self.done, seconds, case))
        self._ignore |= {clause, *FOLLOWS.get(clause, ())}
        if clause == "KV-P-crash":
            # What follows a crash is meaningless: the allocator is somewhere between two states.
            self.error = "it raised an error, and was not judged any further"


def judge_apart(job: Job) -> Judgement:
    """Judge a target in a fresh process, with a fixed hash seed, on the backend that is chosen here."""
    job = msgspec.structs.replace(job, device=devices.current().name)
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
    job = msgspec.json.decode(sys.stdin.buffer.read(), type=Job)
    with devices.using(devices.make(job.device)):
        judgement = msgspec.structs.replace(judge(job), device=job.device)
    with os.fdopen(out, "wb") as file:
        file.write(msgspec.json.encode(judgement))


if __name__ == "__main__":
    main()
