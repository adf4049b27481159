"""Request traces: lengths, and a chained prefix id for each block of a prompt.

Two formats are read, both one JSON object a line, packed or not. A Mooncake line is a request
with an id for each block of 512 tokens, the last, partial one included. A line of coding
sessions is a session: its requests have ids of full blocks only, which are unique inside the
session. Sessions start a minute apart and are merged by time.
"""

import gzip
import json
import lzma
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Final

import msgspec

from kvproof.spec import operations as op

MOONCAKE_BLOCK: Final = 512
"""Tokens to a prefix id in the Mooncake traces."""
SESSION_GAP: Final = 60
"""Seconds from the start of a session to that of the next."""
BUNDLED: Final = {
    "mooncake_conversation_2k": "mooncake_conversation_2k.jsonl.gz",
    "mooncake_conversation": "mooncake_conversation.jsonl.gz",
    "mooncake_synthetic": "mooncake_synthetic.jsonl.gz",
    "claude_code_sessions": "claude_code_sessions.jsonl.xz",
}
"""The traces that ship, the smallest first."""

_UNPACK: Final[dict[str, Callable[[bytes], bytes]]] = {".gz": gzip.decompress, ".xz": lzma.decompress}


class TraceError(ValueError):
    """A trace that cannot be read. The message is one sentence."""


class Line(msgspec.Struct, frozen=True):
    """One request of a trace. `hash_ids` has an id per full block, perhaps also for the partial one."""

    input_length: int
    output_length: int
    hash_ids: tuple[int, ...]
    timestamp: float = 0


class _Request(msgspec.Struct, frozen=True, rename={"input": "in", "output": "out", "seconds": "t"}):
    """A request of a coding session, `seconds` after its start."""

    input: int
    output: int
    seconds: float
    hash_ids: tuple[int, ...]


class _Session(msgspec.Struct, frozen=True):
    block_size: int
    requests: tuple[_Request, ...]


@dataclass
class Trace:
    """A trace and what is worth keeping between runs over it: the block hashes."""

    name: str
    block_size: int
    lines: list[Line]
    hashes: dict[str, Sequence[bytes]] = field(default_factory=dict)


def bundled(name: str = "mooncake_conversation_2k") -> Path:
    """The file of a trace that ships with kvproof."""
    return Path(str(resources.files("kvproof.fuzz.traces") / BUNDLED[name]))


def expected(trace: Trace) -> dict[int, tuple[int, int]]:
    """Capacity in blocks → hit blocks and evictions by definition D4, for traces that have them recorded."""
    text = (resources.files("kvproof.fuzz.traces") / "expected.json").read_text()
    recorded = json.loads(text).get(trace.name, {}).get("capacity", {})
    return {int(blocks): (row["D4_hit_blocks"], row["D4_evictions"]) for blocks, row in recorded.items()}


def read_trace(path: Path) -> Trace:
    """Read a trace, packed or not. Raises `TraceError`."""
    try:
        rows = _UNPACK.get(path.suffix, bytes)(path.read_bytes()).splitlines()
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise TraceError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}.") from None
    if not rows:
        raise TraceError(f"{path} holds no request.")
    name = path.name.split(".")[0]
    if b'"requests"' in rows[0]:
        return _of_sessions(name, path, rows)
    return Trace(name, MOONCAKE_BLOCK, [_line(row, path, number) for number, row in enumerate(rows, 1)])


def _line(row: bytes, path: Path, number: int) -> Line:
    try:
        line = msgspec.json.decode(row, type=Line)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise TraceError(f"{path}, line {number} is not a request: {error}.") from None
    wanted = -(-line.input_length // MOONCAKE_BLOCK)
    if line.input_length < 1 or len(line.hash_ids) != wanted:
        counted = f"{len(line.hash_ids)} block ids for {line.input_length} tokens"
        raise TraceError(f"{path}, line {number} has {counted}, not {wanted}.")
    return line


def _of_sessions(name: str, path: Path, rows: Sequence[bytes]) -> Trace:
    """Merge sessions by time; the ids of each come behind those of the ones before."""
    found: list[tuple[int, int, int, Line]] = []
    size = offset = 0
    for number, row in enumerate(rows):
        try:
            session = msgspec.json.decode(row, type=_Session)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise TraceError(f"{path}, line {number + 1} is not a session: {error}.") from None
        size = size or session.block_size
        if session.block_size != size:
            raise TraceError(f"{path}, line {number + 1} has blocks of {session.block_size}, not {size}.")
        for place, request in enumerate(session.requests):
            if request.input < 1 or len(request.hash_ids) != request.input // size:
                counted = f"{len(request.hash_ids)} block ids for {request.input} tokens"
                raise TraceError(f"{path}, line {number + 1}, request {place + 1} has {counted}.")
            at = round((SESSION_GAP * number + request.seconds) * 1000)
            ids = tuple([offset + each for each in request.hash_ids])
            found.append((at, number, place, Line(request.input, request.output, ids, at)))
        offset += 1 + max([each for request in session.requests for each in request.hash_ids], default=-1)
    return Trace(name, size, [line for *_, line in sorted(found, key=lambda each: each[:3])])


def prompts(trace: Trace) -> Iterator[tuple[Line, op.Tokens]]:
    """Each request with its prompt as runs of token ids: block id `k` is `k·B … k·B+B−1`.

    A partial block without an id of its own has tokens that nobody else has.
    """
    size = trace.block_size
    fresh = 1 + max([each for line in trace.lines for each in line.hash_ids], default=-1)
    for number, line in enumerate(trace.lines):
        full, tail = divmod(line.input_length, size)
        runs = [(block * size, size) for block in line.hash_ids[:full]]
        if tail:
            block = line.hash_ids[full] if full < len(line.hash_ids) else fresh + number
            runs.append((block * size, tail))
        yield line, tuple(runs)
