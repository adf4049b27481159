"""Real traces through the whole path, with the oracle on.

The Mooncake format has one request a line: lengths, and a chained prefix id for each block.
Prompts become runs of token ids (block id `k` is `k·B … k·B+B−1`), so that claims cost a
block each and not a token. Requests are served one at a time; output tokens are ignored.
Blocks that an operation touches are observed after it; everything is swept now and then.
"""

import gzip
import json
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path

import msgspec

from kvproof.fuzz.adapters.reference import ReferenceAdapter
from kvproof.fuzz.session import Session
from kvproof.spec import operations as op
from kvproof.spec.oracle import Violation
from kvproof.spec.vocabulary import CacheConfig

BLOCK_SIZE = 512
"""Tokens to a prefix id in the Mooncake traces."""

SWEEP = 2000
"""Requests between two full sweeps."""


class TraceError(ValueError):
    """A trace that cannot be read. The message is one sentence."""


class Line(msgspec.Struct, frozen=True):
    """One request of a trace. `hash_ids` has an id per block, the last, partial one included."""

    input_length: int
    output_length: int
    hash_ids: tuple[int, ...]
    timestamp: float = 0


@dataclass
class Trace:
    """A trace and what is worth keeping between runs over it: the block hashes."""

    name: str
    lines: list[Line]
    hashes: dict[str, Sequence[bytes]] = field(default_factory=dict)


class WorkloadResult(msgspec.Struct, frozen=True):
    """What a trace did to a pool. An eviction is a block that lost a key when it was handed out."""

    requests: int
    blocks: int
    hit_blocks: int
    evictions: int
    operations: int
    seconds: float
    violation: Violation | None = None


def read_trace(path: Path) -> Trace:
    """Read a Mooncake trace, packed or not. Raises `TraceError`."""
    try:
        data = path.read_bytes()
        rows = (gzip.decompress(data) if path.suffix == ".gz" else data).splitlines()
    except (OSError, EOFError, zlib.error) as error:
        raise TraceError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}.") from None
    lines = [_line(row, path, number) for number, row in enumerate(rows, 1)]
    if not lines:
        raise TraceError(f"{path} holds no request.")
    return Trace(path.name.split(".")[0], lines)


def _line(row: bytes, path: Path, number: int) -> Line:
    try:
        line = msgspec.json.decode(row, type=Line)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise TraceError(f"{path}, line {number} is not a request: {error}.") from None
    wanted = -(-line.input_length // BLOCK_SIZE)
    if line.input_length < 1 or len(line.hash_ids) != wanted:
        counted = f"{len(line.hash_ids)} block ids for {line.input_length} tokens"
        raise TraceError(f"{path}, line {number} has {counted}, not {wanted}.")
    return line


def bundled() -> Path:
    """The trace that ships with kvproof."""
    return Path(str(resources.files("kvproof.fuzz.traces") / "mooncake_conversation_2k.jsonl.gz"))


def expected(trace: Trace) -> dict[int, tuple[int, int]]:
    """Capacity in blocks → hit blocks and evictions by definition D4, for traces that have them recorded."""
    text = (resources.files("kvproof.fuzz.traces") / "expected.json").read_text()
    recorded = json.loads(text).get(trace.name, {}).get("capacity", {})
    return {int(blocks): (row["D4_hit_blocks"], row["D4_evictions"]) for blocks, row in recorded.items()}


def prompt(line: Line) -> op.Tokens:
    """A prompt as runs of token ids."""
    *full, last = line.hash_ids
    tail = line.input_length - len(full) * BLOCK_SIZE
    return (*((block * BLOCK_SIZE, BLOCK_SIZE) for block in full), (last * BLOCK_SIZE, tail))


class _Counter:
    """Hits and evictions as the records show them."""

    def __init__(self) -> None:
        self.hit_blocks = 0
        self.evictions = 0
        self._keyed: set[int] = set()

    def watch(self, record: op.Record) -> None:
        """Count a record: a block that had a key and is handed out was evicted."""
        if isinstance(record.operation, op.Admit) and isinstance(record.answer, op.Granted):
            hits = record.answer.hit // BLOCK_SIZE
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
    lines = trace.lines[:limit]
    longest = max(line.input_length for line in lines)
    config = CacheConfig(blocks, BLOCK_SIZE, max_requests=1, max_len=longest + 1, events=False)
    adapter = ReferenceAdapter(level=2)
    adapter.hashes = trace.hashes
    counter, started = _Counter(), time.perf_counter()
    session = Session(adapter, config, full=False, execute=False, watch=counter.watch)
    served = 0
    for number, line in enumerate(lines, 1):
        _serve(session, f"r{number}", line)
        if session.violation is not None:
            break
        served = number
        if number % SWEEP == 0 or number == len(lines):
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


def _serve(session: Session, name: str, line: Line) -> None:
    """One request from arrival to its end. One that doesn't fit into the pool goes unserved."""
    session.apply(op.Submit(name, prompt(line)))
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
