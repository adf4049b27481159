"""Proofs: every theorem with its controls, and CrossHair on the contracts, as rows of a table."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from types import ModuleType
from typing import Any, Final

from kvproof.fuzz.engines import contracts
from kvproof.impl import arithmetic
from kvproof.spec.theorems import capacity, ordering, ownership, slots
from kvproof.spec.theorems.functions import Functions
from kvproof.spec.theorems.verdict import Theorem, Verdict, judge, refute

SKIPPED: Final = "skipped"
WRONG_CONTRACTS: Final = {
    "rounding forgets the exact case": ("return -(-numerator // divisor)", "return numerator // divisor + 1"),
    "quotient for remainder": ("return position % block_size", "return position // block_size"),
}
"""Replacements in the source of `impl.arithmetic` that break its contracts."""


@dataclass(frozen=True)
class Row:
    """One line of `kvproof prove`."""

    property: str
    verdict: str
    """proved, refuted, undecided, vacuous, or skipped."""
    bound: str
    seconds: float
    controls: str
    """How many wrong variants were refuted and replayed."""
    title: str = ""
    detail: str = ""
    """Why it isn't proved, or how much was."""


def functions_of(module: ModuleType) -> Functions:
    """The functions under proof, from a module that has them under these names."""
    return Functions(*(getattr(module, name) for name in Functions._fields))


def theorems(functions: Functions) -> list[Theorem[Any]]:
    """All theorems, in reading order."""
    return [capacity.theorem(functions), ordering.theorem(), slots.theorem(functions), ownership.theorem()]


def prove_theorem(theorem: Theorem[Any]) -> Row:
    """Judge a theorem and its controls. With a control that stands, the prover is blind: undecided."""
    start = perf_counter()
    judgement = judge(theorem)
    refutations = [refute(theorem, control) for control in theorem.controls]
    counted = sum(each.counts for each in refutations)
    standing = [each.title for each in refutations if not each.counts]
    verdict, detail = judgement.verdict, judgement.detail or f"{judgement.goals} goals"
    if verdict is Verdict.PROVED and (standing or not refutations):
        verdict, detail = Verdict.UNDECIDED, f"not refuted: {', '.join(standing) or 'no control'}"
    seconds = perf_counter() - start
    return Row(
        theorem.id, verdict, theorem.bound, seconds, _count(counted, len(refutations)), theorem.title, detail
    )


def prove_contracts(module: ModuleType) -> Row:
    """CrossHair on a module's contracts: proved if every function has some and all are confirmed."""
    title, bound = f"The contracts of {module.__name__} hold.", "confirmed over all paths"
    if not contracts.installed():
        why = "crosshair-tool isn't installed; install kvproof[proofs]"
        return Row("contracts", SKIPPED, bound, 0.0, "none", title, why)
    start = perf_counter()
    report, wrong = contracts.check(module, WRONG_CONTRACTS)
    detail = f"{len(report.confirmed)} of {len(report.contracts)} confirmed"
    if report.open:
        detail += f"; not: {', '.join(report.open)}"
    verdict = Verdict.PROVED if report.confirmed and not report.open else Verdict.UNDECIDED
    if not all(wrong.values()):
        verdict = Verdict.UNDECIDED
    if report.refuted:
        verdict, detail = Verdict.REFUTED, "; ".join(report.refuted.values())
    seconds = perf_counter() - start
    return Row("contracts", verdict, bound, seconds, _count(sum(wrong.values()), len(wrong)), title, detail)


def _count(counted: int, total: int) -> str:
    return f"{counted} of {total} refuted and replayed"


def prove(progress: Callable[[Row], None], crosshair: bool = True) -> list[Row]:
    """Run everything; `progress` gets each row as it is done."""
    rows = list[Row]()
    found = theorems(functions_of(arithmetic))
    jobs: list[Callable[[], Row]] = [partial(prove_theorem, each) for each in found]
    if crosshair:
        jobs.append(partial(prove_contracts, arithmetic))
    for job in jobs:
        rows.append(job())
        progress(rows[-1])
    return rows
