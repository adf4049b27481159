"""Hunting a seeded fault: find it by fuzzing, several times, and keep the smallest case."""

import time
from collections.abc import Callable

import msgspec

from kvproof.fuzz.cases import Case
from kvproof.fuzz.engines.soak import Result, soak
from kvproof.fuzz.engines.stateful import stateful
from kvproof.fuzz.faults import Fault, planted, seeded
from kvproof.fuzz.shrink import shrink, size

ENGINES: dict[str, Callable[..., Result]] = {"soak": soak, "hypothesis": stateful}

ATTEMPTS = 4
"""Runs to a find, since another clause may fall first."""


class Hunted(msgspec.Struct, frozen=True):
    """What became of a fault: `operations` and `seconds` to the first find, the smallest `case`."""

    fault: Fault
    killed: bool
    clause: str
    operations: int
    seconds: float
    case: Case | None


def hunt(
    fault: Fault, *, engine: str = "soak", finds: int = 4, operations: int = 40_000, seed: int = 0
) -> Hunted:
    """Find a planted fault under its own clause, `finds` times with different seeds at the most.

    The comparison with the policy is off: the clause alone must see it. A find under
    another clause counts only if the own one never falls.
    """
    spent, first, started = 0, 0, time.perf_counter()
    seconds, found, best, other = 0.0, 0, None, None
    shipped = fault in seeded()
    for i in range(finds * ATTEMPTS):
        with planted([fault]):
            result = ENGINES[engine](operations, seed + i, faults=(fault,), compare_policy=False)
        spent += result.operations
        case = result.case
        if case is None:
            break
        if case.expected.clause != fault.clause:
            other = other or case
            continue
        if best is None:
            first, seconds = spent, time.perf_counter() - started
        smaller = shrink(case)
        if best is None or size(smaller) < size(best):
            best = smaller
        found += 1
        if found == finds:
            break
    if best is not None:
        named = msgspec.structs.replace(best, title=fault.title, faults=(fault.id if shipped else fault,))
        return Hunted(fault, True, fault.clause, first, seconds, named)
    clause = other.expected.clause if other is not None else ""
    return Hunted(fault, False, clause, spent, time.perf_counter() - started, other)
