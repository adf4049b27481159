"""A session applies operations to one adapter and hands each record to the oracle.

Nothing else talks to an allocator. It keeps the engine's contract: an operation that the
engine must not do is refused before it reaches the allocator, and lives that would rest
on discarded writes are preempted first, as operations of their own.
"""

import traceback
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import msgspec

from kvproof.fuzz import demands
from kvproof.fuzz.adapters.port import Adapter, Errored
from kvproof.fuzz.contents import Contents
from kvproof.fuzz.device import MOST_TOKENS, Device
from kvproof.fuzz.harness_worker import HarnessWorker
from kvproof.kernels.checked import Finding
from kvproof.spec import operations as op
from kvproof.spec.contract import preempted_first, reason_against
from kvproof.spec.oracle import Oracle, Verdict, Violation
from kvproof.spec.state import State
from kvproof.spec.vocabulary import CacheConfig

_SWEEPS: Final = (op.Observe, op.Reset)
"""After these everything is looked at, however large the pool."""


class IllegalOperation(ValueError):
    """The engine must not do this now; says why."""


class KernelFault(Errored):
    """A kernel of the device did what none may, whatever it computed: memory means nothing any more."""

    def __init__(self, findings: Sequence[Finding]) -> None:
        # The first of each kind: a thread that goes wrong seldom does so once.
        kinds = {(each.wrong, each.kernel): each for each in reversed(findings)}
        first, *others = sorted(kinds.values(), key=findings.index)
        super().__init__(f"a kernel of the device goes wrong: {first}", "\n".join(map(str, others)))


def _failed(at: str, error: BaseException) -> Errored:
    """What an allocator raised where it is not asked to do an operation, with the end of the traceback."""
    what = f"{type(error).__name__}: {error}".removesuffix(": ")
    return Errored(f"it failed at {at}: {what}", "".join(traceback.format_exception(error, limit=-3)))


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
        except (Exception, SystemExit) as error:
            self.errored = error if isinstance(error, Errored) else _failed("configure", error)
        own = execute and 1 <= self.capabilities.level < 3 and _holds(config)
        self.oracle = Oracle(
            config, self.capabilities, compare_policy=compare_policy, memory=own, ignore=ignore
        )
        self._worker = HarnessWorker(config, self.oracle.state) if own else None
        self.operations: list[op.AnyOperation] = []
        self._contents = Contents(self.oracle.state.claims)
        self._index: tuple[op.IndexEntry, ...] = ()
        self._listed: dict[tuple[int, int], bytes] = {}
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
        except (Exception, SystemExit) as error:
            answer = op.Crashed(type(error).__name__, str(error))
        try:
            seen = self._observe(operation, answer, before)
        except (Exception, SystemExit) as error:
            if not isinstance(answer, op.Crashed):
                self.operations.append(operation)
                self.errored = error if isinstance(error, Errored) else _failed("observe", error)
                return None
            seen = None
        if self._worker is not None and not isinstance(answer, op.FAILURES):
            self._worker.follow(operation)
        device = self.device
        memory = self._verify(device, operation, answer, seen) if device is not None else ()
        findings = device.take_findings() if device is not None else ()
        if self._watch is not None:
            self._watch(op.Record(len(self.operations), operation, answer, seen, memory))
        self.operations.append(operation)
        if findings:
            # It explains whatever else is wrong by now.
            self.errored = KernelFault(findings)
        else:
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

    def _verify(
        self, device: Device, operation: op.AnyOperation, answer: op.AnyAnswer, seen: op.Observation | None
    ) -> tuple[op.Mismatch, ...]:
        """The places of device memory that don't hold what they must at this operation."""
        if isinstance(answer, op.FAILURES):
            return ()
        wanted = self._demands(operation, answer)
        if seen is not None and (seen.index != self._index or isinstance(operation, op.Observe)):
            wanted += self._of_keys(operation, answer, seen)
        if not wanted:
            return ()
        return self._contents.wrong(device, wanted, every_word=isinstance(operation, op.Observe))

    def _demands(self, operation: op.AnyOperation, answer: op.AnyAnswer) -> list[demands.Demand]:
        """What rows demand."""
        if isinstance(operation, op.Admit) and isinstance(answer, op.Granted):
            return demands.of_hit(self.state, operation.request, answer) if answer.hit else []
        if isinstance(operation, op.Dispatch):
            return demands.of_reads(self.state, operation)
        if isinstance(operation, op.Retire):
            return demands.of_step(self.state)
        return demands.of_lives(self.state) if isinstance(operation, op.Observe) else []

    def _of_keys(
        self, operation: op.AnyOperation, answer: op.AnyAnswer, seen: op.Observation
    ) -> list[demands.Demand]:
        """What keys demand that are new, or whoever observes wants to know of all."""
        before = {} if isinstance(operation, op.Observe) else self._listed
        self._index = seen.index
        self._listed = {(entry.group, block): entry.key for entry in seen.index for block in entry.blocks}
        new = [named for named in self._listed.items() if before.get(named[0]) != named[1]]
        granted: set[int] = set()
        if isinstance(operation, op.Admit | op.Extend) and isinstance(answer, op.Granted):
            life = self.state.requests[operation.request].life
            first = (answer.hit if life is None else life.scheduled) // self.config.block_size
            granted = {block for row in answer.rows for block in row[max(0, first) :]}
        return demands.of_keys(self.state, self.oracle.keys, new, granted)


def _holds(config: CacheConfig) -> bool:
    """Whether a device of the harness can be as large."""
    return (config.blocks + 1) * config.block_size <= MOST_TOKENS
