"""Observer mode: the engine's own scheduler decides, and its adapter tells what it did.

Preemption, look-ahead and the order of publication live in schedulers, where no driver of
a manager alone can reach. The engine reports each operation with its answer, and from
level 2 on what could be seen afterwards; the oracle judges as in driver mode. A log is the
same as JSON lines: a header, then records.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from kvproof.spec import operations as op
from kvproof.spec.contract import reason_against
from kvproof.spec.oracle import Oracle, Verdict, Violation
from kvproof.spec.vocabulary import CacheConfig, Capabilities, ConfigError


class LogError(ValueError):
    """A log that cannot be read. The message is one sentence."""


class Header(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The first line of a log: who is observed, its configuration, what it shows and takes as its freedom."""

    config: CacheConfig
    capabilities: Capabilities
    target: str = "observed"


class Line(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Any further line: an operation, its answer, what was seen, and wrong places in device memory."""

    operation: op.AnyOperation
    answer: op.AnyAnswer
    observation: op.Observation | None = None
    memory: tuple[op.Mismatch, ...] = ()


class Observer:
    """Judges what an engine reports.

    An operation that contradicts the engine's contract means that reports are missing: from
    there on nothing follows, and the verdict is undecided.
    """

    def __init__(self, header: Header, ignore: frozenset[str] = frozenset()) -> None:
        self.oracle = Oracle(header.config.validate(), header.capabilities, ignore=ignore)
        self._seen_needed = header.capabilities.level >= 2
        self.gap = ""

    @property
    def over(self) -> bool:
        """Whether a clause fell or reports are missing."""
        return self.oracle.violation is not None or bool(self.gap)

    def report(
        self,
        operation: op.AnyOperation,
        answer: op.AnyAnswer,
        seen: op.Observation | None = None,
        memory: tuple[op.Mismatch, ...] = (),
    ) -> Violation | None:
        """Judge one report; after the first violation or gap further ones are ignored."""
        if self.over:
            return self.oracle.violation
        number = self.oracle.records + 1
        if reason := reason_against(self.oracle.state, operation):
            self.gap = f"record {number} does not follow from those before: {reason}"
        elif seen is None and self._seen_needed:
            self.gap = f"record {number} shows no structures, though level 2 is declared"
        else:
            return self.oracle.judge(operation, answer, seen, memory)
        return None

    def verdict(self) -> Verdict:
        """The verdict so far; undecided where reports are missing."""
        verdict = self.oracle.verdict()
        if self.gap and verdict.violation is None:
            return msgspec.structs.replace(verdict, result="undecided", error=self.gap)
        return verdict


def read(path: Path) -> tuple[Header, Iterator[Line]]:
    """A log's header and its lines, read as they are asked for. Raises `LogError`."""
    try:
        rows = path.read_bytes().splitlines()
    except OSError as error:
        raise LogError(f"cannot read {path}: {error.strerror}.") from None
    if not rows:
        raise LogError(f"{path} is empty; the first line of a log is its header.")
    try:
        header = msgspec.json.decode(rows[0], type=Header)
        header.config.validate()
    except (msgspec.MsgspecError, UnicodeDecodeError, ConfigError) as error:
        raise LogError(f"{path}, line 1 is not the header of a log: {str(error).rstrip('.')}.") from None
    return header, _lines(path, rows[1:])


def _lines(path: Path, rows: Iterable[bytes]) -> Iterator[Line]:
    decoder = msgspec.json.Decoder(Line)
    for number, row in enumerate(rows, 2):
        try:
            yield decoder.decode(row)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise LogError(f"{path}, line {number} is not a record: {error}.") from None


def write(header: Header, records: Iterable[op.Record]) -> bytes:
    """A log as JSON lines."""
    encode = msgspec.json.encode
    lines = [
        encode(Line(record.operation, record.answer, record.observation, record.memory)) for record in records
    ]
    return b"\n".join([encode(header), *lines]) + b"\n"
