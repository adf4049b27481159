"""The phases of `kvproof check`. Each is a function that says what it found; none prints."""

import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from kvproof.fuzz import cases, devices, vectors
from kvproof.fuzz.cases import Case
from kvproof.fuzz.cli import bundled, smoke
from kvproof.fuzz.cli.errors import HarnessFault
from kvproof.fuzz.cli.profiles import Expected, Profile
from kvproof.fuzz.engines.traces import Trace
from kvproof.fuzz.reports.junit import Checked
from kvproof.fuzz.reports.terminal import one_line
from kvproof.fuzz.reports.wording import plural
from kvproof.fuzz.smoke import examine
from kvproof.fuzz.targets import make_adapter
from kvproof.fuzz.targets.judge import Judgement
from kvproof.spec.oracle import BY_CODE, CLAUSES, Verdict
from kvproof.spec.properties import REFINEMENT

Progress = Callable[[str], None]
"""Is told how far a phase has come."""

_WORST: Final = ("blind", "violated", "errored", "undecided", "holds", "skipped")


class Phase(msgspec.Struct, frozen=True):
    """What a phase found: its tests, in a count, the clauses that it judged and the situations that it met.

    `failing` are cases of violations that are still to be shrunk and kept.
    """

    count: str
    tests: tuple[Checked, ...]
    exercised: tuple[str, ...] = ()
    unchecked: tuple[str, ...] = ()
    situations: tuple[str, ...] = ()
    failing: tuple[Case, ...] = ()

    @property
    def verdict(self) -> str:
        """The worst verdict of its tests; nothing tested is undecided."""
        return worst(test.verdict for test in self.tests)


def worst(words: Iterable[str]) -> str:
    """The verdict that counts among several."""
    return min(words, key=_WORST.index, default="undecided")


def exercised(verdict: Verdict, policy: bool) -> tuple[str, ...]:
    """The clauses that a history exercised."""
    judged = [code for code, count in verdict.exercised.items() if count]
    return (*judged, *(REFINEMENT if policy else ()))


# --- smoke, timeline, cases ---------------------------------------------------------------


def run_smoke(profile: Profile, seed: int, progress: Progress) -> Phase:
    """The adapter shows what it declares; a planted fault is seen."""
    start = time.perf_counter()
    adapter = make_adapter("reference")
    wrong = examine(adapter)
    message = f"The adapter is wrong: {wrong}." if wrong else ""
    word = "violated" if message else "holds"
    declared = Checked("smoke", "adapter", word, time.perf_counter() - start, "", message)
    progress("canary")
    fault = smoke.canary()
    if fault is None:
        raise HarnessFault(f"no seeded fault breaks {smoke.CANARY}, so there is no canary")
    start = time.perf_counter()
    seen, operations = smoke.sees(fault, seed)
    blind = "" if seen else f"The harness is blind: it misses the planted fault {fault.id}."
    canary = Checked(
        "smoke", "canary", "holds" if seen else "blind", time.perf_counter() - start, fault.clause, blind
    )
    level = adapter.capabilities.level
    count = f"level {level}, found in {operations}" if seen else "blind"
    return Phase(count, (declared, canary), unchecked=tuple(c.code for c in CLAUSES if c.level > level))


def run_timeline(profile: Profile, seed: int, progress: Progress) -> Phase:
    """The golden timeline, record by record."""
    return _replay({bundled.TIMELINE: bundled.timeline()}, "timeline", "operation", progress)


def run_cases(profile: Profile, seed: int, progress: Progress) -> Phase:
    """Every case that ships: extremes, minimized failures, and the conformance vectors."""
    phase = _replay(bundled.conformance(), "cases", "case", progress)
    tests = list(phase.tests)
    adapter = make_adapter("reference")
    for vector in vectors.bundled():
        start = time.perf_counter()
        seen = vectors.run(adapter, vector)
        word = "holds" if seen.result == "valid" else "violated"
        message = f"{seen.result}: {seen.reason}" if word == "violated" else ""
        spent = time.perf_counter() - start
        tests.append(Checked("cases", vector.id, word, spent, vector.clause * bool(message), message))
    count = f"{len(phase.tests)} and {plural(len(tests) - len(phase.tests), 'vector')}"
    return msgspec.structs.replace(phase, count=count, tests=tuple(tests))


def _replay(chosen: dict[str, Case], group: str, thing: str, progress: Progress) -> Phase:
    tests: list[Checked] = []
    judged: dict[str, None] = {}
    unchecked: dict[str, None] = {}
    operations = 0
    for number, (name, case) in enumerate(chosen.items(), 1):
        start = time.perf_counter()
        outcome = cases.replay(case)
        operations += len(outcome.records)
        violation, message = outcome.verdict.violation, outcome.difference
        if not message and not outcome.recurs(case):
            found = one_line(violation) if violation else "it holds"
            message = f"expected {case.expected.result} {case.expected.clause}".rstrip() + f", found: {found}"
        clause = violation.code if violation and message else ""
        word = "violated" if message else "holds"
        tests.append(Checked(group, name, word, time.perf_counter() - start, clause, message))
        judged |= dict.fromkeys(exercised(outcome.verdict, case.compare_policy))
        unchecked |= dict.fromkeys(outcome.verdict.unchecked)
        progress(f"{number} of {len(chosen)}")
    count = plural(operations if thing == "operation" else len(tests), thing)
    return Phase(count, tuple(tests), tuple(judged), tuple(unchecked))


# --- proofs -------------------------------------------------------------------------------


def run_proofs(profile: Profile, seed: int, progress: Progress) -> Phase:
    """Every theorem with its controls."""
    from kvproof.fuzz.engines.prove import prove

    words = {"proved": "holds", "refuted": "violated", "skipped": "skipped"}
    rows = prove(lambda row: progress(row.property), crosshair=profile.crosshair)
    tests = tuple(
        Checked(
            "proofs",
            row.property,
            words.get(str(row.verdict), "undecided"),
            row.seconds,
            message="" if row.verdict == "proved" else f"{row.title} {row.verdict}: {row.detail}",
        )
        for row in rows
    )
    proved = sum(test.verdict == "holds" for test in tests)
    return Phase(f"{proved} of {len(tests)} proved", tests)


# --- exploration --------------------------------------------------------------------------

EXPLORED: Final = ("shared-hit-not-counted", "tiny")
"""The fault that must be found by exploring, and the preset in which it must be."""


def run_explore(profile: Profile, seed: int, progress: Progress) -> Phase:
    """Every sequence of each preset, as many states as are on record; a planted fault is found."""
    from kvproof.fuzz.engines.explore import explore
    from kvproof.fuzz.engines.explore_moves import preset
    from kvproof.fuzz.engines.explore_record import difference, recorded

    judged: Counter[str] = Counter()
    met: dict[str, None] = {}
    tests: list[Checked] = [_explored_canary()]
    failing: list[Case] = []
    total = 0
    kept = recorded()
    for name in profile.presets:
        start = time.perf_counter()
        found = explore(
            preset(name),
            progress=lambda states, _, name=name: progress(f"{name}, {states:,}"),  # type: ignore[misc]
        )
        total += sum(found.states)
        judged.update(found.exercised)
        met |= dict.fromkeys(found.situations)
        clause, message, word = "", "", found.verdict
        if found.case is not None:
            clause, failing = found.case.expected.clause, [*failing, found.case]
            message = f"{clause}: {BY_CODE[clause].sentence}"
        elif found.missed:
            message = f"The preset is too easy: it never came upon {', '.join(found.missed)}."
        elif message := difference(name, found, kept):
            word = "violated"
        tests.append(Checked("explore", name, word, time.perf_counter() - start, clause, message))
    if profile.faults:
        tests.append(_explored_faults(progress))
    policy = REFINEMENT if judged and smoke.claims_policy() else ()
    codes = (*(code for code, count in judged.items() if count), *policy)
    return Phase(plural(total, "state"), tuple(tests), codes, situations=tuple(met), failing=tuple(failing))


def _explored_canary() -> Checked:
    from kvproof.fuzz.engines.explore import explore
    from kvproof.fuzz.engines.explore_moves import preset
    from kvproof.fuzz.faults import by_id, planted

    start = time.perf_counter()
    fault, name = by_id(EXPLORED[0]), EXPLORED[1]
    with planted([fault]):
        found = explore(preset(name), compare_policy=False)
    seen = found.case is not None and found.case.expected.clause == fault.clause
    blind = "" if seen else f"Exploration is blind: it misses the planted fault {fault.id}."
    word = "holds" if seen else "blind"
    return Checked("explore", "canary", word, time.perf_counter() - start, fault.clause, blind)


def _explored_faults(progress: Progress) -> Checked:
    """Every seeded fault is caught by a sequence as short as on record."""
    from kvproof.fuzz.engines.explore_faults import differences, recorded
    from kvproof.fuzz.faults import seeded

    start = time.perf_counter()
    wrong = [each for each in differences(seeded(), recorded(), progress).values() if each]
    message = f"Exploration is blind: {' '.join(wrong)}" if wrong else ""
    return Checked(
        "explore", "faults", "blind" if wrong else "holds", time.perf_counter() - start, "", message
    )


# --- fuzz ---------------------------------------------------------------------------------


def run_fuzz(profile: Profile, seed: int, progress: Progress) -> Phase:
    """Soak with every answer compared with the policy, then Hypothesis."""
    from kvproof.fuzz.engines.soak import soak
    from kvproof.fuzz.engines.stateful import stateful

    judged: Counter[str] = Counter()
    met: Counter[str] = Counter()
    tests: list[Checked] = []
    failing: list[Case] = []
    total = 0
    for name, engine, operations in (
        ("soak", soak, profile.soak),
        ("hypothesis", stateful, profile.hypothesis),
    ):
        start = time.perf_counter()
        result = engine(
            operations,
            seed,
            progress=lambda done, name=name: progress(f"{name}, {done:,}"),  # type: ignore[misc]
        )
        total += result.operations
        judged.update(result.exercised)
        met.update(result.situations)
        clause, message, word = "", "", "holds" if result.operations else "undecided"
        if result.case is not None:
            clause, word = result.case.expected.clause, result.case.expected.result
            message = f"{clause}: {BY_CODE[clause].sentence}" if clause else result.error
            failing.append(result.case)
        tests.append(Checked("fuzz", name, word, time.perf_counter() - start, clause, message))
    policy = REFINEMENT if smoke.claims_policy() else ()
    codes = (*(code for code, count in judged.items() if count), *policy)
    count = plural(total, "operation")
    return Phase(count, tuple(tests), codes, situations=tuple(met), failing=tuple(failing))


# --- device -------------------------------------------------------------------------------

WATCHED: Final = "minus-one-as-index"
"""The fault of the kernels' source that must be found by watching what they access."""
WATCHED_OPERATIONS: Final = 2_000


def run_device(profile: Profile, seed: int, progress: Progress) -> Phase:
    """Soak with every access of the device's kernels watched, and random calls of them compared with numpy.

    Faults planted in their source are found.
    """
    from kvproof.fuzz.cli.kernel_cases import Compared
    from kvproof.fuzz.engines.soak import soak
    from kvproof.kernels.backends.checked_backend import CheckedBackend
    from kvproof.kernels.builds import AbsentError, BuildError

    progress("building kernels")
    try:
        # Its threads are interleaved as those of the command that repeats the run.
        canary, backend = _watched_canary(seed), CheckedBackend()
        builds = [(Compared(build), count) for build, count in profile.differential.items()]
    except (BuildError, OSError) as error:
        word = "skipped" if isinstance(error, AbsentError) else "errored"
        message = f"The kernels can't be watched: {str(error).splitlines()[0]}"
        return Phase("none", (Checked("device", "all", word, 0.0, "", message),))
    start, before = time.perf_counter(), backend.checked.accesses
    with devices.using(backend):
        found = soak(profile.device, seed, progress=lambda done: progress(f"watched, {done:,}"))
    word = "holds" if backend.checked.accesses > before else "undecided"
    clause, message = "", ""
    if found.case is not None:
        word, clause = "violated", found.case.expected.clause
        what = f"{clause}: {BY_CODE[clause].sentence}" if clause else found.error.splitlines()[0]
        again = f"kvproof fuzz --device {backend.name} --ops {profile.device} --seed {seed}"
        message = f"{what.rstrip('.')}; again: {again}"
    policy = REFINEMENT if smoke.claims_policy() else ()
    codes = (*(code for code, count in found.exercised.items() if count), *policy)
    soaked = Checked("device", "soak", word, time.perf_counter() - start, clause, message)
    tests, total = [canary, soaked], 0
    for build, count in builds:
        test, done = build.cases(count, seed, progress)
        tests, total = [*tests, build.control(), test], total + done
    said = f"{plural(found.operations, 'operation')}, {plural(total, 'case')}"
    return Phase(said, tuple(tests), codes, (), tuple(found.situations))


def _watched_canary(seed: int) -> Checked:
    from kvproof.fuzz.engines.soak import soak
    from kvproof.kernels.backends.checked_backend import CheckedBackend
    from kvproof.kernels.faults import all_faults

    start = time.perf_counter()
    (fault,) = [each for each in all_faults() if each.name == WATCHED]
    with devices.using(CheckedBackend(seed, fault.plant())):
        found = soak(WATCHED_OPERATIONS, seed)
    seen = f"{fault.finding.lower()}:" in found.error
    blind = "" if seen else f"Watching the kernels is blind: it misses the planted fault {fault.name}."
    word = "holds" if seen else "blind"
    return Checked("device", "canary", word, time.perf_counter() - start, "", blind)


# --- workload, faults ---------------------------------------------------------------------


def run_workload(profile: Profile, seed: int, progress: Progress) -> Phase:
    """Real traces: hits and evictions equal definition D4 at each capacity."""
    from kvproof.fuzz.engines import traces

    tests: list[Checked] = []
    requests = 0
    for name, capacities in profile.traces.items():
        trace = traces.read_trace(traces.bundled(name))
        known = traces.expected(trace)
        for blocks in capacities or tuple(sorted(known)):
            if blocks not in known:
                raise HarnessFault(f"expected.json has no numbers for {name} with {blocks} blocks")
            progress(f"{blocks:,} blocks")
            test, served = _served(trace, blocks, known[blocks])
            tests.append(test)
            requests += served
    return Phase(plural(requests, "request"), tuple(tests))


def _served(trace: Trace, blocks: int, wanted: tuple[int, int]) -> tuple[Checked, int]:
    """A trace at one capacity, and how many requests were served."""
    from kvproof.fuzz.engines import workload

    start = time.perf_counter()
    result = workload.run(trace, blocks)
    clause, message = "", ""
    if result.violation is not None:
        clause, message = result.violation.code, one_line(result.violation)
    elif (result.hit_blocks, result.evictions) != wanted:
        message = (
            f"{result.hit_blocks} hit blocks and {result.evictions} evictions, "
            f"where definition D4 says {wanted[0]} and {wanted[1]}"
        )
    word = "violated" if message else "holds" if result.requests else "undecided"
    name = f"{trace.name}, {blocks} blocks"
    return Checked("workload", name, word, time.perf_counter() - start, clause, message), result.requests


def run_faults(profile: Profile, seed: int, progress: Progress) -> Phase:
    """Every seeded fault falls under its own clause."""
    from kvproof.fuzz.cli.faults import run, select
    from kvproof.fuzz.engines.power import BUDGET
    from kvproof.fuzz.faults import seeded

    tests: list[Checked] = []
    chosen = select(seeded(), ())
    for fault in chosen:
        progress(fault.id)
        start = time.perf_counter()
        row = run(fault, "soak", BUDGET["soak"], seed)
        word = "holds" if row.killed else "errored" if row.error else "blind"
        wrong = {
            "errored": f"This fault cannot be hunted: {row.error}.",
            "blind": f"The harness misses this fault: killed {row.word}, expected {row.clause}.",
        }
        message = wrong.get(word, "")
        tests.append(Checked("faults", fault.id, word, time.perf_counter() - start, row.clause, message))
    killed = sum(test.verdict == "holds" for test in tests)
    return Phase(f"{killed} of {len(tests)} killed", tuple(tests))


def run_targets(profile: Profile, seed: int, progress: Progress) -> Phase:
    """Other people's allocators get the verdicts that they are known to deserve."""
    from kvproof.fuzz.targets.judge import Job, judge_apart

    tests: list[Checked] = []
    operations = 0
    for expected in profile.targets:
        progress(expected.target)
        start = time.perf_counter()
        job = Job(
            expected.target,
            profile.target_operations,
            seed=seed,
            ignore=expected.ignore,
            without=expected.without,
        )
        found = judge_apart(job)
        operations += found.operations
        wrong = _deviation(expected, found)
        word = "skipped" if found.result == "skipped" else "violated" if wrong else "holds"
        message = found.reason if word == "skipped" else wrong
        tests.append(Checked("targets", expected.target, word, time.perf_counter() - start, "", message))
    return Phase(plural(operations, "operation"), tuple(tests))


def _deviation(expected: Expected, found: Judgement) -> str:
    """How a target is judged otherwise than it deserves, as a sentence, or nothing."""
    fell = [finding.clause for finding in found.findings]
    if found.result != expected.result:
        what = ", ".join(fell) or found.reason or "nothing fell"
        return f"{found.result} where {expected.result} was expected: {what}."
    if missing := [code for code in expected.clauses if code not in fell]:
        return f"{', '.join(missing)} must fall and did not: {', '.join(fell) or 'nothing fell'}."
    if others := [code for code in fell if code not in (*expected.clauses, *expected.may)]:
        return f"{', '.join(others)} fell, which the target is not known for."
    return ""


def run_mutants(profile: Profile, seed: int, progress: Progress) -> Phase:
    """Every first-order mutant of the manager and the oracle is killed, or it is on record why not."""
    try:
        from kvproof.fuzz.engines import mutate
    except ModuleNotFoundError as error:
        why = f"{error.name} is not installed; install kvproof with its extra 'dev'."
        return Phase("none", (Checked("mutants", "all", "skipped", 0.0, "", why),))
    from kvproof.fuzz.faults.survivors import survivors
    from kvproof.fuzz.reports.mutants import judged, left

    tests: list[Checked] = []
    total = killed = 0
    for group in mutate.GROUPS:
        start = time.perf_counter()
        rows = mutate.run_mutants(progress, groups=(group,))
        open_ = [each for each in left(judged(rows), survivors()) if not each.kind]
        total, killed = total + len(rows), killed + sum(row.killed for row in rows)
        word = "undecided" if open_ or not rows else "holds"
        message = f"{plural(len(open_), 'survivor')} of {len(rows):,} nobody has explained." if open_ else ""
        tests.append(Checked("mutants", group, word, time.perf_counter() - start, "", message))
    return Phase(f"{killed:,} of {total:,} killed", tuple(tests))


PHASES: Final[dict[str, tuple[str, Callable[[Profile, int, Progress], Phase]]]] = {
    "smoke": ("adapter and canary", run_smoke),
    "timeline": ("the golden timeline", run_timeline),
    "cases": ("cases and seeds that ship", run_cases),
    "proofs": ("theorems and their controls", run_proofs),
    "explore": ("all sequences in small scopes", run_explore),
    "fuzz": ("soak with policy, Hypothesis", run_fuzz),
    "device": ("soak watched; calls against numpy", run_device),
    "targets": ("others' allocators", run_targets),
    "workload": ("real traces, against D4", run_workload),
    "faults": ("seeded faults", run_faults),
    "mutants": ("mutants of manager and oracle", run_mutants),
}
"""Each phase with what it does, in order."""
