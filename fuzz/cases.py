"""Cases: a configuration and operations with the expected verdict, in one JSON format.

The replay seed, the conformance vector and the minimal bug report are all cases. They
speak in operations, so they outlive versions of the generator and of the allocator.
"""

import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from kvproof.fuzz.faults import Fault, by_id, planted
from kvproof.fuzz.session import IllegalOperation, Session
from kvproof.fuzz.targets import make_adapter
from kvproof.spec import operations as op
from kvproof.spec.oracle import BY_CODE, Verdict
from kvproof.spec.vocabulary import CacheConfig, ConfigError

FORMAT = 1


class CaseError(ValueError):
    """A case that cannot be read or replayed. The message is one sentence."""


class Expected(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The verdict that a replay must reach: `holds`, `violated` under a clause, or `errored`."""

    result: str = "holds"
    clause: str = ""


class Expect(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What must be seen after one operation, for adapters that claim the policy. Absent: not compared.

    `answer` is the kind of answer; `keys` names each key by a request, the tokens of its
    prefix and the block; `refs` the ref counts that are not zero.
    """

    answer: str | None = None
    hit: int | None = None
    owned: dict[str, tuple[tuple[int, ...], ...]] | None = None
    free: tuple[int, ...] | None = None
    keys: tuple[tuple[str, int, int], ...] | None = None
    refs: dict[int, int] | None = None


class Case(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A configuration, operations and the expected verdict. `faults` are ids, or faults in full.

    Clauses in `ignore` are not judged, to see behind a known fault of the target.
    """

    config: CacheConfig
    operations: tuple[op.AnyOperation, ...]
    title: str = ""
    target: str = "reference"
    format: int = FORMAT
    seed: int = 0
    faults: tuple[str | Fault, ...] = ()
    compare_policy: bool = True
    ignore: tuple[str, ...] = ()
    expected: Expected = Expected()
    expect: tuple[Expect | None, ...] = ()


_DECODER = msgspec.json.Decoder(Case)


def parse(data: bytes, name: str) -> Case:
    """The case in a JSON text. Raises `CaseError`."""
    try:
        case = _DECODER.decode(data)
        case.config.validate()
    except (msgspec.MsgspecError, UnicodeDecodeError, ConfigError) as error:
        raise CaseError(f"{name} is not a case: {str(error).rstrip('.')}.") from None
    if case.format != FORMAT:
        raise CaseError(f"{name} has case format {case.format}, this version reads {FORMAT}.")
    if not case.operations:
        raise CaseError(f"{name} has no operations.")
    for code in (*case.ignore, *filter(None, (case.expected.clause,))):
        if code not in BY_CODE:
            raise CaseError(f"{name} names a clause that there is not: {code!r}.")
    if case.expect and len(case.expect) != len(case.operations):
        raise CaseError(f"{name} expects {len(case.expect)} records of {len(case.operations)} operations.")
    return case


def load(path: Path) -> Case:
    """Read a case file. Raises `CaseError`."""
    try:
        return parse(path.read_bytes(), str(path))
    except OSError as error:
        raise CaseError(f"cannot read {path}: {error.strerror}.") from None


def dumps(case: Case) -> bytes:
    """The file form: one operation a line."""
    head = msgspec.to_builtins(case)
    rows = {name: head.pop(name) for name in ("operations", "expect") if head.get(name)}
    encode = msgspec.json.encode
    lines = [f'  "{name}": {encode(value).decode()}' for name, value in head.items()]
    for name, values in rows.items():
        body = ",\n".join("    " + encode(value).decode() for value in values)
        lines.append(f'  "{name}": [\n{body}\n  ]')
    return ("{\n" + ",\n".join(lines) + "\n}\n").encode()


def save(case: Case, path: Path) -> None:
    """Write a case file whole or not at all. Raises `CaseError`."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=path.name, delete=False) as file:
            file.write(dumps(case))
        os.chmod(file.name, 0o644)
        os.replace(file.name, path)
    except OSError as error:
        raise CaseError(f"cannot write {path}: {error.strerror}.") from None


def faults_of(case: Case) -> tuple[Fault, ...]:
    """The faults that a case plants."""
    return tuple(by_id(fault) if isinstance(fault, str) else fault for fault in case.faults)


class Outcome(msgspec.Struct, frozen=True):
    """What a replay found: its verdict, its records, and where an `expect` was not met."""

    verdict: Verdict
    records: tuple[op.Record, ...]
    difference: str = ""

    def recurs(self, case: Case) -> bool:
        """Whether the expected verdict came out, and every expectation was met."""
        violation = self.verdict.violation
        clause = violation.code if violation is not None else ""
        met = self.verdict.result == case.expected.result and clause == case.expected.clause
        return met and not self.difference


def replay(case: Case, watch: Callable[[Session, op.Record], None] | None = None) -> Outcome:
    """Run a case on its target. Raises `CaseError` where an operation is not legal."""
    records: list[op.Record] = []
    with planted(faults_of(case)):
        session = Session(
            make_adapter(case.target),
            case.config,
            seed=case.seed,
            compare_policy=case.compare_policy,
            ignore=frozenset(case.ignore),
            watch=records.append,
        )
        difference = ""
        for i, operation in enumerate(case.operations):
            if session.over:
                break
            try:
                session.apply(operation)
            except IllegalOperation as error:
                raise CaseError(f"operation {i + 1} is not legal: {error}.") from None
            if session.errored is not None:
                break
            if watch is not None:
                watch(session, records[-1])
            expect = case.expect[i] if case.expect else None
            if expect is not None and not difference and session.capabilities.policy:
                difference = _difference(session, expect, records[-1], i)
        session.adapter.close()
        return Outcome(session.verdict(), tuple(records), difference)


def _difference(session: Session, expect: Expect, record: op.Record, i: int) -> str:
    """The first expectation that is not met after an operation, as a sentence, or nothing."""
    seen = record.observation
    assert seen is not None, "an adapter that claims the policy shows its structures"
    requests = session.state.requests
    found: dict[str, object] = {
        "answer": type(record.answer).__name__.lower(),
        "hit": getattr(record.answer, "hit", None),
        "owned": seen.rows,
        "free": seen.free,
        "refs": {block: view.ref_cnt for block, view in seen.blocks.items() if block and view.ref_cnt},
    }
    if expect.keys is not None:
        claims = {
            (name, tokens): session.oracle.keys.key_of.get(requests[name].paths[0].at(tokens - 1))
            for name, tokens, _ in expect.keys
        }
        wanted = {(claims[name, tokens], block) for name, tokens, block in expect.keys}
        index = {(entry.key, block) for entry in seen.index for block in entry.blocks}
        if wanted != index:
            return f"operation {i + 1}: keys {list(expect.keys)} expected, the index has {len(index)} entries"
    for name, value in found.items():
        wanted_value = getattr(expect, name)
        if wanted_value is not None and wanted_value != value:
            return f"operation {i + 1}: {name} {wanted_value} expected, {value} found"
    return ""


def of_session(
    session: Session, title: str, faults: Sequence[str | Fault] = (), *, compare_policy: bool = True
) -> Case:
    """The case that repeats a session's history and expects its verdict."""
    violation = session.violation
    expected = Expected(session.verdict().result, violation.code if violation else "")
    return Case(
        config=session.config,
        operations=tuple(session.operations),
        title=title,
        target=session.adapter.name,
        faults=tuple(faults),
        compare_policy=compare_policy,
        ignore=tuple(sorted(session.oracle.ignore)),
        expected=expected,
    )
