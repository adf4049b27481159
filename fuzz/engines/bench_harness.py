"""The bench of the harness: judged operations a second, and what judging costs.

Each row is a seeded run on the reference; with its rate goes the mix of its operations. Exploration
is of a whole preset, where each transition is an operation. The overhead is what a judged operation
costs beside the same calls on the manager alone.
"""

import time
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from kvproof.fuzz.adapters.port import Adapter
from kvproof.fuzz.adapters.reference import ReferenceAdapter
from kvproof.fuzz.engines.bench import Judging, Rate, Value
from kvproof.fuzz.engines.soak import Result, soak
from kvproof.spec.oracle import Mix

OPERATIONS: Final = 5_000
"""Operations of a repetition."""
EXPLORATION: Final = "harness: exploration, tiny"
PRESET: Final = "tiny"
EXPLORED: Final = 3
"""Repetitions of the exploration at most: each takes seconds, and does the same."""
_CALLS: Final = (
    "configure",
    "submit",
    "lookup",
    "admit",
    "extend",
    "row",
    "dispatch",
    "retire",
    "finish",
    "preempt",
    "evict",
    "reset",
)

Call = tuple[str, tuple[Any, ...]]


def measure(repeat: int, only: str = "", progress: Callable[[str], None] | None = None) -> Judging | None:
    """Measure every row whose name contains the text, in turn; none if there is no such row."""
    chosen = {name: run for name, run in _ROWS.items() if only.lower() in name.lower()}
    if not chosen:
        return None
    seconds: dict[str, list[float]] = {name: [] for name in chosen}
    ran: dict[str, Ran] = {}
    alone: list[float] = []
    calls = recorded(OPERATIONS)
    for turn in range(repeat):
        for name, run in chosen.items():
            if name == EXPLORATION and turn >= EXPLORED:
                continue
            if progress is not None:
                progress(f"{name}, {turn + 1} of {repeat}")
            started = time.process_time()
            ran[name] = run()
            seconds[name].append((time.process_time() - started) / ran[name].operations)
        alone.append(_repeat(calls) / OPERATIONS)
    rates = [
        Rate(name, Value(tuple(1 / each for each in seconds[name])), each.mix) for name, each in ran.items()
    ]
    first = next(iter(seconds))
    judged, manager = Value(tuple(seconds[first])).median, Value(tuple(alone)).median
    return Judging(tuple(rates), None if first == EXPLORATION else judged / manager)


class Ran(NamedTuple):
    """Operations of one repetition, and their mix, where chance decides it."""

    operations: int
    mix: Mix | None


def _of(result: Result) -> Ran:
    return Ran(result.operations, result.mix)


def _soak(level: int) -> Ran:
    return _of(soak(OPERATIONS, 1, adapter=lambda: ReferenceAdapter(level), execute=False))


def _hypothesis() -> Ran:
    from kvproof.fuzz.engines.stateful import stateful

    return _of(stateful(OPERATIONS, 1, adapter=lambda: ReferenceAdapter(2), execute=False))


def _exploration() -> Ran:
    from kvproof.fuzz.engines.explore import explore
    from kvproof.fuzz.engines.explore_moves import preset

    found = explore(preset(PRESET))
    assert found.verdict == "holds", "the reference is in order"
    return Ran(found.transitions, None)


_ROWS: Final[dict[str, Callable[[], Ran]]] = {
    "harness: soak, level 2": lambda: _soak(2),
    "harness: soak, level 3": lambda: _soak(3),
    "harness: Hypothesis, level 2": _hypothesis,
    EXPLORATION: _exploration,
}
NAMES: Final = tuple(_ROWS)
"""The rows; of the first measured one the overhead is told."""


# --- the manager alone --------------------------------------------------------------------


def recorded(operations: int) -> list[Call]:
    """The calls that a soak at level 2 makes of its adapter, observations left out."""
    calls: list[Call] = []

    def adapter() -> Adapter:
        made = ReferenceAdapter(2)
        for name in _CALLS:
            setattr(made, name, _noting(calls, name, getattr(made, name)))
        return made

    soak(operations, 1, adapter=adapter, execute=False)
    return calls


def _noting(calls: list[Call], name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    def noting(*arguments: Any) -> Any:
        calls.append((name, arguments))
        return call(*arguments)

    return noting


def _repeat(calls: list[Call]) -> float:
    """Make the same calls of a fresh adapter; the CPU seconds that they take."""
    bound = list(_bound(ReferenceAdapter(2), calls))
    started = time.process_time()
    for call, arguments in bound:
        call(*arguments)
    return time.process_time() - started


def _bound(adapter: Adapter, calls: list[Call]) -> Iterator[tuple[Callable[..., Any], tuple[Any, ...]]]:
    for name, arguments in calls:
        yield getattr(adapter, name), arguments
