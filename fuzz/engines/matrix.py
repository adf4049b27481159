"""The matrix: which engine finds which seeded fault, after how much, and how near to the smallest case.

Soak and Hypothesis are told from the recorded power, which has many seeds. Exploration, the
theorems and the workload know no chance: each is run once with the fault in place, exploration
in one preset after the other.
"""

import time
from collections.abc import Callable, Sequence
from functools import cache
from importlib import resources
from typing import Final

import msgspec

from kvproof.fuzz import cases
from kvproof.fuzz.engines.hunt import runs
from kvproof.fuzz.engines.power import Power
from kvproof.fuzz.engines.power_record import recorded
from kvproof.fuzz.faults import Fault, edits, planted
from kvproof.fuzz.shrink import shrink

REQUESTS: Final = 300
"""Requests of the trace that the workload is given."""
BLOCKS: Final = 300
"""Blocks of its pool, so that it evicts all the time."""
ARITHMETIC: Final = "kvproof.impl.arithmetic."


class Cell(msgspec.Struct, frozen=True):
    """An engine on a fault: `killed`, `missed` or `outside` what it looks at.

    `clause` is what fell, `operations` how many it took, transitions for exploration; `minimal` is
    the length of the case that came out. `preset` is the first one in which exploration found the
    fault, `states` what it had met there: no sequence of that preset is shorter.
    """

    engine: str
    state: str
    clause: str = ""
    operations: float | None = None
    seconds: float | None = None
    probability: float | None = None
    minimal: int | None = None
    preset: str = ""
    states: int | None = None


class Line(msgspec.Struct, frozen=True):
    """A fault and its cells. `known` is the length of the smallest case of it that anybody found."""

    fault: str
    clause: str
    cells: tuple[Cell, ...]
    known: int

    @property
    def killed(self) -> bool:
        """Whether any engine found it."""
        return any(cell.state == "killed" for cell in self.cells)


def line(fault: Fault, rows: Sequence[Power], presets: Sequence[str]) -> Line:
    """All engines on one fault; exploration has these presets."""
    own = [_fuzzed(fault, row) for row in rows if row.fault == fault.id]
    cells = (*own, _explored(fault, presets), _proved(fault), _served(fault))
    lengths = [cell.minimal for cell in cells if cell.minimal is not None]
    return Line(fault.id, fault.clause, cells, min([_seeded(fault), *lengths]))


def _seeded(fault: Fault) -> int:
    """The length of the case that ships with the fault."""
    file = resources.files("kvproof.fuzz.seeds") / f"{fault.id}.json"
    return len(cases.parse(file.read_bytes(), file.name).operations)


def _fuzzed(fault: Fault, row: Power) -> Cell:
    """From the record; one find is made anew and shrunk, to see how small it gets."""
    operations, seconds = row.operations, row.seconds
    minimal = None
    if row.killed:
        for find in runs(fault, row.engine, row.budget, 1_000):
            if find.case is not None and find.clause == fault.clause:
                minimal = len(shrink(find.case).operations)
                break
    return Cell(
        row.engine,
        "killed" if row.killed else "missed",
        fault.clause if row.killed else "",
        operations.value if operations else None,
        seconds.value if seconds else None,
        row.probability,
        minimal,
    )


def _explored(fault: Fault, presets: Sequence[str]) -> Cell:
    """The first preset that catches the fault. It is outside where no state could be told from another."""
    from kvproof.fuzz.engines.explore_faults import attempts, caught

    started = time.perf_counter()
    found = dict(attempts(fault, presets))
    seconds = time.perf_counter() - started
    for name, each in found.items():
        if (kept := caught(name, each)) is not None:
            return Cell(
                "exploration",
                "killed",
                fault.clause,
                kept.transitions,
                seconds,
                minimal=kept.length,
                preset=name,
                states=kept.states,
            )
    explored = [each for each in found.values() if each is not None]
    others = sorted({code for each in explored for code in each.others})
    count = sum(each.transitions for each in explored)
    return Cell("exploration", "missed" if explored else "outside", ", ".join(others), count, seconds)


def _proved(fault: Fault) -> Cell:
    """The theorems look at the arithmetic alone."""
    from kvproof.fuzz.engines.prove import prove

    if not any(edit.target.startswith(ARITHMETIC) for edit in edits(fault)):
        return Cell("theorems", "outside")
    started = time.perf_counter()
    with planted([fault]):
        refuted = [
            row.property for row in prove(lambda row: None, crosshair=False) if row.verdict == "refuted"
        ]
    state = "killed" if refuted else "missed"
    return Cell("theorems", state, ", ".join(refuted), seconds=time.perf_counter() - started)


def _served(fault: Fault) -> Cell:
    """A violation, or other hits and evictions than without the fault."""
    from kvproof.fuzz.engines import traces, workload

    trace = traces.read_trace(traces.bundled())
    started = time.perf_counter()
    with planted([fault]):
        result = workload.run(trace, BLOCKS, limit=REQUESTS)
    seconds = time.perf_counter() - started
    counts = (result.hit_blocks, result.evictions)
    if result.violation is not None:
        return Cell("workload", "killed", result.violation.code, result.operations, seconds)
    if counts != _healthy():
        return Cell("workload", "killed", "D4", result.operations, seconds)
    return Cell("workload", "missed", operations=result.operations, seconds=seconds)


@cache
def _healthy() -> tuple[int, int]:
    """Hits and evictions without a fault."""
    from kvproof.fuzz.engines import traces, workload

    result = workload.run(traces.read_trace(traces.bundled()), BLOCKS, limit=REQUESTS)
    assert result.violation is None, "the reference holds"
    return result.hit_blocks, result.evictions


def measure(
    faults: Sequence[Fault], presets: Sequence[str], progress: Callable[[str], None]
) -> tuple[Line, ...]:
    """A line for each fault; exploration has these presets."""
    rows = recorded()
    _healthy()
    found = []
    for number, fault in enumerate(faults, 1):
        progress(f"fault {number} of {len(faults)}: {fault.id}")
        found.append(line(fault, rows, presets))
    return tuple(found)
