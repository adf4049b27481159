"""Hunting a seeded fault: find it by fuzzing, several times, and keep the smallest case."""

import time
from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from kvproof.fuzz.adapters.port import Errored
from kvproof.fuzz.cases import Case
from kvproof.fuzz.engines.soak import Result, soak
from kvproof.fuzz.engines.stateful import stateful
from kvproof.fuzz.faults import Fault, planted, seeded
from kvproof.fuzz.shrink import shrink, size
from kvproof.fuzz.watch import watched

ENGINES: Final[dict[str, Callable[..., Result]]] = {"soak": soak, "hypothesis": stateful}

STRIDE: Final = 10_000
"""Between the seeds of two hunts, so that their runs never meet."""

FURTHER: Final = 4_000
"""Operations after the first find that may still go into a smaller one."""


class Hunted(msgspec.Struct, frozen=True):
    """What became of a fault: `operations` and `seconds` to the first find, the smallest `case`.

    `error` says why the hunt could not go on before the fault was found, in a sentence without its end.
    """

    fault: Fault
    killed: bool
    clause: str
    operations: int
    seconds: float
    case: Case | None
    error: str = ""


class Find(msgspec.Struct, frozen=True):
    """A find: after so many operations and seconds of the hunt. A hunt that ends without one has no case.

    `error` says why there is nothing more to find.
    """

    operations: int
    seconds: float
    case: Case | None = None
    error: str = ""

    @property
    def clause(self) -> str:
        """The clause that fell."""
        return self.case.expected.clause if self.case is not None else ""


def runs(fault: Fault, engine: str, operations: int, seed: int) -> Iterator[Find]:
    """Run after run with a planted fault, each to the first clause that falls.

    All together judge at most `operations` operations (the last run ends as it may). The
    comparison with the policy is off, so that the clause alone must see the fault, but for the
    clauses of that comparison. Shrinking between two runs is not counted. A fault with which the
    allocator cannot be judged ends the hunt, whatever it raises and wherever it hangs.
    """
    spent, seconds = 0, 0.0
    number = seed * STRIDE
    while spent < operations:
        started = time.perf_counter()
        case, error = None, ""
        with planted([fault]), watched():
            try:
                result = ENGINES[engine](
                    operations - spent, number, faults=(fault,), compare_policy=fault.against_policy
                )
                spent += result.operations
                case, error = result.case, result.error.partition("\n")[0]
            except (Exception, SystemExit) as why:
                error = why.reason if isinstance(why, Errored) else f"{type(why).__name__}: {why}"
        seconds += time.perf_counter() - started
        number += 1
        yield Find(spent, seconds, None if error else case, error)
        if error:
            return


def _shrunk(case: Case) -> Case:
    """Smaller if it can be; a fault may do as it likes, such as not to recur."""
    try:
        with watched():
            return shrink(case)
    except (Exception, SystemExit):
        return case


def hunt(
    fault: Fault, *, engine: str = "soak", finds: int = 4, operations: int = 40_000, seed: int = 0
) -> Hunted:
    """Find a planted fault under its own clause, `finds` times at the most, within so many operations.

    A find under another clause counts only if the own one never falls.
    """
    first: Find | None = None
    other: Find | None = None
    last: Find | None = None
    best, found = None, 0
    for last in runs(fault, engine, operations, seed):
        if last.case is not None and last.clause == fault.clause:
            first = first or last
            smaller = _shrunk(last.case)
            if best is None or size(smaller) < size(best):
                best = smaller
            found += 1
        elif last.case is not None:
            other = other or last
        if first is not None and (found == finds or last.operations > first.operations + FURTHER):
            break
    if first is not None and best is not None:
        name = fault.id if fault in seeded() else fault
        named = msgspec.structs.replace(best, title=fault.title, faults=(name,))
        return Hunted(fault, True, fault.clause, first.operations, first.seconds, named)
    assert last is not None, "a hunt judges something"
    return Hunted(
        fault,
        False,
        other.clause if other else "",
        last.operations,
        last.seconds,
        other.case if other else None,
        last.error,
    )
