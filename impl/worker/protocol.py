"""What the engine tells a worker at each step: only what the worker doesn't know yet (REQ-5.6)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from kvproof.spec.vocabulary import GroupRows


@dataclass(frozen=True, slots=True)
class NewRequest:
    """A request that the worker has never seen, or an id in a new life of its own; all it needs to know.

    `payload` is what contents depend on besides tokens; nobody here looks into it.
    """

    request_id: str
    tokens: tuple[int, ...]
    payload: object
    rows: GroupRows
    num_computed: int


@dataclass(frozen=True, slots=True)
class CachedRequest:
    """A request that the worker knows: the ids behind its rows' ends, per group.

    If it `resumed` after a preemption `rows` replace the old ones, and `tokens` are all that
    are known by then. If its rows were `replaced` they are whole, too, and all else goes on.
    """

    request_id: str
    rows: GroupRows
    resumed: bool = False
    tokens: tuple[int, ...] = ()
    replaced: bool = False


@dataclass(frozen=True, slots=True)
class Scheduled:
    """A request's part of a step: positions `start … start+n−1`, and the draft tokens behind them."""

    request_id: str
    start: int
    n: int
    drafts: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class StepDiff:
    """A step as it is sent to the worker, whose ended requests come first. `padding` dummy rows go last."""

    step: int
    scheduled: tuple[Scheduled, ...]
    new: tuple[NewRequest, ...] = ()
    cached: tuple[CachedRequest, ...] = ()
    finished: tuple[str, ...] = ()
    preempted: tuple[str, ...] = ()
    padding: int = 0


class Running(NamedTuple):
    """A scheduled request as the engine knows it: all known tokens and whole rows."""

    request_id: str
    tokens: Sequence[int]
    payload: object
    rows: GroupRows
    start: int
    n: int
    drafts: tuple[int, ...] = ()


class DiffBuilder:
    """The engine's memory of what the worker has been sent."""

    def __init__(self) -> None:
        self._sent: dict[str, GroupRows] = {}
        """The rows of each living request that the worker has."""
        self._waiting: set[str] = set()
        """Preempted requests that the worker still knows."""
        self._finished: list[str] = []
        self._preempted: list[str] = []

    def finish(self, request_id: str) -> None:
        """The request is gone, in whatever state; its id may come back as another's."""
        if self._sent.pop(request_id, None) is None and request_id not in self._waiting:
            return
        self._waiting.discard(request_id)
        if request_id in self._preempted:
            self._preempted.remove(request_id)
        self._finished.append(request_id)

    def preempt(self, request_id: str) -> None:
        """The request's life ended; it waits. What the worker was never sent needs no word."""
        if self._sent.pop(request_id, None) is not None:
            self._waiting.add(request_id)
            self._preempted.append(request_id)

    def build(self, step: int, running: Sequence[Running], padding: int = 0) -> StepDiff:
        """The step's message; from now on the worker knows what it says."""
        new: list[NewRequest] = []
        cached: list[CachedRequest] = []
        for each in running:
            name = each.request_id
            sent = self._sent.get(name)
            if sent is not None and _begin_with(each.rows, sent):
                appended = tuple(row[len(old) :] for row, old in zip(each.rows, sent, strict=True))
                cached.append(CachedRequest(name, appended))
            elif sent is not None:
                cached.append(CachedRequest(name, each.rows, replaced=True))
            elif name in self._waiting:
                self._waiting.remove(name)
                cached.append(CachedRequest(name, each.rows, True, tuple(each.tokens)))
            else:
                new.append(NewRequest(name, tuple(each.tokens), each.payload, each.rows, each.start))
            self._sent[name] = each.rows
        finished, preempted = tuple(self._finished), tuple(self._preempted)
        self._finished.clear()
        self._preempted.clear()
        scheduled = tuple(Scheduled(each.request_id, each.start, each.n, each.drafts) for each in running)
        return StepDiff(step, scheduled, tuple(new), tuple(cached), finished, preempted, padding)


def _begin_with(rows: GroupRows, sent: GroupRows) -> bool:
    """Whether rows have only grown since they were sent."""
    return all(row[: len(old)] == old for row, old in zip(rows, sent, strict=True))
