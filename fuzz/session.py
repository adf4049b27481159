"""A session applies operations to one adapter and hands each record to the oracle.

Nothing else talks to an allocator. It keeps the engine's contract: an operation that the
engine must not do is refused before it reaches the allocator, and lives that would rest
on discarded writes are preempted first, as operations of their own.
"""

from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec

from kvproof.fuzz.adapters.port import Adapter, Errored
from kvproof.fuzz.device import MOST_TOKENS, Device, Digests, Place
from kvproof.fuzz.harness_worker import HarnessWorker
from kvproof.spec import operations as op
from kvproof.spec.content import POISON, Runs
from kvproof.spec.contract import preempted_first, reason_against
from kvproof.spec.oracle import Oracle, Verdict, Violation
from kvproof.spec.state import State, StepEntry
from kvproof.spec.vocabulary import CacheConfig

_SWEEPS: Final = (op.Observe, op.Reset)
"""After these everything is looked at, however large the pool."""


_VERIFIES: Final = (op.Retire, op.Observe)
"""After these memory is compared."""


class IllegalOperation(ValueError):
    """The engine must not do this now; says why."""


def ask(adapter: Adapter, operation: op.AnyOperation) -> op.AnyAnswer:
    """Hand an operation to the allocator, in its own words."""
    answer: op.AnyAnswer | None = _ASK[type(operation)](adapter, operation)
    return _DONE if answer is None else answer


_DONE: Final = op.Done()
_ASK: Final[dict[type[op.Operation], Callable[[Adapter, Any], op.AnyAnswer | None]]] = {
    op.Submit: lambda adapter, asked: adapter.submit(asked),
    op.Lookup: lambda adapter, asked: adapter.lookup(asked.request),
    op.Admit: lambda adapter, asked: adapter.admit(asked.request, asked.n, asked.lookahead),
    op.Extend: lambda adapter, asked: adapter.extend(asked.request, asked.n, asked.lookahead),
    op.Row: lambda adapter, asked: op.Read(adapter.row(asked.request, asked.group)),
    op.Dispatch: lambda adapter, asked: adapter.dispatch(asked),
    op.Retire: lambda adapter, asked: adapter.retire(asked),
    op.Finish: lambda adapter, asked: adapter.finish(asked.request),
    op.Abort: lambda adapter, asked: adapter.abort(asked.request),
    op.Preempt: lambda adapter, asked: adapter.preempt(asked.request),
    op.Evict: lambda adapter, asked: _done(adapter.evict(asked.request, asked.boundary)),
    op.Reset: lambda adapter, asked: _done(adapter.reset()),
    op.Table: lambda adapter, asked: adapter.table(asked),
    op.Observe: lambda adapter, asked: None,
}


def _done(done: bool) -> op.Done | op.Refused:
    return op.Done() if done else op.Refused()


class Session:
    """One history on one allocator.

    `full` false observes only the blocks that an operation touched, which is what large
    pools can afford; `op.Observe` sweeps everything all the same. `execute` true gives an allocator
    that shows rows but no memory a device of the harness, so that bytes are judged from level 1 on.
    Clauses in `ignore` are not judged. `watch` is called with every record before it is judged.
    """

    def __init__(
        self,
        adapter: Adapter,
        config: CacheConfig,
        *,
        seed: int = 0,
        compare_policy: bool = True,
        full: bool = True,
        execute: bool = True,
        ignore: frozenset[str] = frozenset(),
        watch: Callable[[op.Record], None] | None = None,
    ) -> None:
        self.adapter = adapter
        self.config = config.validate()
        self.capabilities = adapter.capabilities
        self.errored: Errored | None = None
        try:
            adapter.configure(config, seed)
        except Errored as error:
            self.errored = error
        own = execute and 1 <= self.capabilities.level < 3 and _holds(config)
        self.oracle = Oracle(
            config, self.capabilities, compare_policy=compare_policy, memory=own, ignore=ignore
        )
        self._worker = HarnessWorker(config, self.oracle.state) if own else None
        self.operations: list[op.AnyOperation] = []
        self._digests = Digests()
        self._full = full
        self._watch = watch

    @property
    def state(self) -> State:
        """What the history implies so far."""
        return self.oracle.state

    @property
    def violation(self) -> Violation | None:
        """The clause that fell, once one did."""
        return self.oracle.violation

    def verdict(self) -> Verdict:
        """The verdict so far."""
        verdict = self.oracle.verdict()
        if self.errored is not None and verdict.violation is None:
            error = f"{self.errored.reason}\n{self.errored.transcript}".rstrip()
            return msgspec.structs.replace(verdict, result="errored", error=error)
        return verdict

    @property
    def over(self) -> bool:
        """Whether a clause fell or the allocator is gone."""
        return self.oracle.violation is not None or self.errored is not None

    def apply(self, operation: op.AnyOperation) -> op.Answer | None:
        """Do it, preempting first whom the contract demands; none once the session is over.

        Raises `IllegalOperation` before anything happened.
        """
        if isinstance(operation, op.ENDS):
            for first in preempted_first(self.state, operation):
                if not self.over:
                    self._one(first)
        return None if self.over else self._one(operation)

    def run(self, operations: Iterable[op.AnyOperation]) -> Verdict:
        """Apply operations until they end or a clause falls."""
        for operation in operations:
            if self.over:
                break
            self.apply(operation)
        return self.verdict()

    def _one(self, operation: op.AnyOperation) -> op.Answer | None:
        if reason := reason_against(self.state, operation):
            raise IllegalOperation(reason)
        before = set() if self._full else self._touched(operation)
        answer: op.AnyAnswer
        try:
            answer = ask(self.adapter, operation)
        except Errored as error:
            # Kept, so that a case of this session ends with the operation that was not answered.
            self.operations.append(operation)
            self.errored = error
            return None
        except Exception as error:
            answer = op.Crashed(type(error).__name__, str(error))
        try:
            seen = self._observe(operation, answer, before)
        except Errored as error:
            self.operations.append(operation)
            self.errored = error
            return None
        if self._worker is not None and not isinstance(answer, op.FAILURES):
            self._worker.follow(operation)
        memory = self._verify(operation, seen)
        if self._watch is not None:
            self._watch(op.Record(len(self.operations), operation, answer, seen, memory))
        self.operations.append(operation)
        self.oracle.judge(operation, answer, seen, memory)
        return answer

    # --- observing ------------------------------------------------------------------------

    def _touched(self, operation: op.AnyOperation) -> set[int]:
        """The blocks that an operation may change, as known before it."""
        blocks: set[int] = set()
        if isinstance(operation, op.Retire) and self.state.steps:
            blocks.update(self.state.steps[0].touched)
            for life in self.state.deferred:
                blocks.update(block for row in life.rows for block in row)
        request = self.state.requests.get(getattr(operation, "request", ""))
        if request is not None and request.life is not None:
            blocks.update(block for row in request.life.rows for block in row)
        return blocks

    def _observe(
        self, operation: op.AnyOperation, answer: op.AnyAnswer, touched: set[int]
    ) -> op.Observation | None:
        if self.capabilities.level < 2:
            return None
        if self._full or isinstance(operation, _SWEEPS):
            seen = self.adapter.observe(None)
        else:
            touched.update(block for row in getattr(answer, "rows", ()) for block in row)
            seen = self.adapter.observe(sorted(touched), self.oracle.listed(touched))
        return seen

    @property
    def device(self) -> Device | None:
        """The memory that is verified: the adapter's, or the harness's own."""
        if self.adapter.device is not None:
            return self.adapter.device
        return None if self._worker is None or self._worker.lost else self._worker.device

    def _verify(self, operation: op.AnyOperation, seen: op.Observation | None) -> tuple[op.Mismatch, ...]:
        """Compare device memory with the claims: what a step wrote and read, or all that is keyed."""
        if type(operation) not in _VERIFIES or (device := self.device) is None:
            return ()
        places: list[Place] = []
        if isinstance(operation, op.Retire) and self.state.steps:
            for entry in self.state.steps[0].entries:
                places += self._step_places(entry)
        elif isinstance(operation, op.Observe) and seen is not None:
            for index_entry in seen.index:
                places += self._key_places(index_entry)
        return device.verify(list(dict.fromkeys(places))) if places else ()

    def _step_places(self, entry: StepEntry) -> list[Place]:
        """What a step of a life must leave in memory: its whole prefix, and its drafts behind."""
        places: list[Place] = []
        size = self.config.block_size
        for group, row in enumerate(entry.rows):
            path = entry.life.paths[group]
            runs = path.runs(0, entry.stop)
            if entry.stop <= path.length:
                claim = path.at(entry.stop - 1)
                for token in entry.drafts:
                    claim = self.state.claims.after(claim, token)
                    runs = (*runs, (claim, 1))
            places += self._places(row, runs, size)
        return places

    def _key_places(self, entry: op.IndexEntry) -> list[Place]:
        """What the blocks of a key must hold, where nothing is still to be written."""
        claim = self.oracle.keys.claim_of.get((entry.group, entry.key))
        if claim is None:
            return []
        size = self.config.block_size
        runs = self.state.claims.back(claim, size)
        quiet = [block for block in entry.blocks if block not in self.state.writes]
        return [place for block in quiet for place in self._places((block,), runs, size)]

    def _places(self, row: tuple[int, ...], runs: Runs, size: int) -> list[Place]:
        claims = [claim + i if claim > POISON else claim for claim, count in runs for i in range(count)]
        return [
            (row[position // size], position % size, self._digests.of(claim, self.state.claims))
            for position, claim in enumerate(claims)
            if claim > POISON and position // size < len(row)
        ]


def _holds(config: CacheConfig) -> bool:
    """Whether a device of the harness can be as large."""
    return (config.blocks + 1) * config.block_size <= MOST_TOKENS
