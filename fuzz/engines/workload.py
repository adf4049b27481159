"""Real traces through the whole path, with the oracle on.

Prompts are runs of token ids, so that claims cost a block each and not a token. Requests are
served one at a time; output tokens are ignored.
Blocks that an operation touches are observed after it; everything is swept now and then.
"""

import time
from collections.abc import Callable
from itertools import islice

import msgspec

from kvproof.fuzz.adapters.reference import ReferenceAdapter
from kvproof.fuzz.engines.traces import Line, Trace, prompts
from kvproof.fuzz.session import Session
from kvproof.spec import operations as op
from kvproof.spec.oracle import Violation
from kvproof.spec.vocabulary import CacheConfig

SWEEP = 2000
"""Requests between two full sweeps."""


class WorkloadResult(msgspec.Struct, frozen=True):
    """What a trace did to a pool. An eviction is a block that lost a key when it was handed out."""

    requests: int
    blocks: int
    hit_blocks: int
    evictions: int
    operations: int
    seconds: float
    violation: Violation | None = None


class _Counter:
    """Hits and evictions as the records show them."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.hit_blocks = 0
        self.evictions = 0
        self._keyed: set[int] = set()

    def watch(self, record: op.Record) -> None:
        """Count a record: a block that had a key and is handed out was evicted."""
        if isinstance(record.operation, op.Admit) and isinstance(record.answer, op.Granted):
            hits = record.answer.hit // self.block_size
            self.hit_blocks += hits
            self.evictions += sum(1 for block in record.answer.rows[0][hits:] if block in self._keyed)
        if record.observation is not None:
            for block, view in record.observation.blocks.items():
                if view.key is None:
                    self._keyed.discard(block)
                else:
                    self._keyed.add(block)


def run(
    trace: Trace,
    blocks: int,
    *,
    limit: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> WorkloadResult:
    """Serve a trace from a pool of `blocks` usable blocks; stops at the first violation.

    A prompt that does not fit into the pool is refused and the trace goes on. `progress` is
    told the number of requests that had their turn.
    """
    longest = max(line.input_length for line in trace.lines)
    config = CacheConfig(blocks, trace.block_size, max_requests=1, max_len=longest + 1, events=False)
    adapter = ReferenceAdapter(level=2)
    adapter.hashes = trace.hashes
    counter, started = _Counter(trace.block_size), time.perf_counter()
    session = Session(adapter, config, full=False, execute=False, watch=counter.watch)
    served = 0
    total = min(limit or len(trace.lines), len(trace.lines))
    for number, (line, tokens) in enumerate(islice(prompts(trace), limit), 1):
        _serve(session, f"r{number}", line, tokens)
        if session.violation is not None:
            break
        served = number
        if number % SWEEP == 0 or number == total:
            session.apply(op.Observe())
        if progress is not None:
            progress(number)
    return WorkloadResult(
        served,
        blocks,
        counter.hit_blocks,
        counter.evictions,
        len(session.operations),
        time.perf_counter() - started,
        session.violation,
    )


def _serve(session: Session, name: str, line: Line, tokens: op.Tokens) -> None:
    """One request from arrival to its end. One that doesn't fit into the pool goes unserved."""
    session.apply(op.Submit(name, tokens))
    answer = session.apply(op.Admit(name, line.input_length))
    if isinstance(answer, op.Refused):
        session.apply(op.Abort(name))
        return
    for life in tuple(session.state.grants):
        session.apply(op.Dispatch(session.state.next_step, (session.state.entry_of(life),)))
    for step in tuple(session.state.steps):
        session.apply(op.Retire(step.number, (op.Output(name, (0,)),)))
    if session.violation is None:
        session.apply(op.Finish(name))
