"""Conformance vectors: short histories with the abstract facts that every allocator must show.

A fact is a hit, a refusal, the length of a row or the blocks that two requests share; never a
block id, an order or a key. What is seen is `valid`, `acceptable` (safe, but of less use: a
shorter hit, a block more), or invalid. Vectors have a version of their own.
"""

from collections.abc import Iterator
from importlib import resources

import msgspec

from kvproof.fuzz.adapters.port import Adapter
from kvproof.fuzz.fitting import fitted
from kvproof.fuzz.session import Session
from kvproof.spec import operations as op
from kvproof.spec.oracle import CLAUSES
from kvproof.spec.state import State
from kvproof.spec.vocabulary import OPERATIONS, CacheConfig, Capabilities

VERSION = 2
_STRUCTURES = frozenset(clause.code for clause in CLAUSES if clause.level > 1)


class Fact(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What must be seen at one operation, counted from 1.

    `hit` in tokens, `blocks` of the row, and `shared`: how many blocks of the row another
    request holds too. A refusal has none of them. `least_hit` and `most_blocks` bound what
    is acceptable, and `most_hit` where an allocator may hit the last token too. `counted` are the
    queries and hits in tokens that metrics must show by then, where there are any to be seen.
    """

    after: int
    refused: bool = False
    hit: int = 0
    least_hit: int = 0
    blocks: int = 0
    most_hit: int = 0
    most_blocks: int = 0
    shared: dict[str, int] = {}
    counted: tuple[int, int] | None = None


class Vector(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A history and its facts. `clause` is the one that breaking it would break."""

    id: str
    title: str
    clause: str
    config: CacheConfig
    operations: tuple[op.AnyOperation, ...]
    facts: tuple[Fact, ...]
    version: int = VERSION


class Seen(msgspec.Struct, frozen=True):
    """`valid`, `acceptable`, `invalid`, `skipped` or `errored`, and why."""

    vector: str
    result: str
    reason: str = ""


def bundled() -> tuple[Vector, ...]:
    """The vectors that ship, in the order of their index."""
    folder = resources.files("kvproof.spec.cases") / "vectors"
    index = msgspec.json.decode((folder / "index.json").read_bytes())
    names = index["vectors"]
    return tuple(msgspec.json.decode((folder / f"{name}.json").read_bytes(), type=Vector) for name in names)


def schema() -> dict[str, object]:
    """The JSON Schema of a vector."""
    return msgspec.json.schema(Vector)


def needs(vector: Vector) -> Iterator[str]:
    """The optional operations and features that a vector uses."""
    known: dict[str, int] = {}
    for operation in vector.operations:
        name = type(operation).__name__.lower()
        if name in OPERATIONS:
            yield name
        if isinstance(operation, op.Submit):
            known[operation.request] = op.count_of(operation.tokens)
            yield from _of_extras(operation)
        if isinstance(operation, op.Admit | op.Extend):
            if operation.lookahead:
                yield "lookahead"
            if isinstance(operation, op.Admit) and operation.n < known.get(operation.request, 0):
                yield "chunks"


def _of_extras(submit: op.Submit) -> Iterator[str]:
    extras = submit.extras
    present = {
        "adapters": extras.adapter is not None,
        "salts": bool(extras.salt),
        "items": bool(extras.items),
        "embeddings": bool(extras.embeddings),
        "opt_out": not submit.options.read_cache,
    }
    yield from (name for name, used in present.items() if used)


def unfit(vector: Vector, capabilities: Capabilities) -> str:
    """Why an allocator can't run a vector, or nothing."""
    missing = [name for name in needs(vector) if not capabilities.has(name)]
    if missing:
        return f"the allocator has no {missing[0]}"
    sizes = capabilities.block_sizes
    if sizes and vector.config.block_size not in sizes:
        return f"the allocator has no blocks of {vector.config.block_size} tokens"
    return "" if vector.config.depth <= capabilities.depth else f"{vector.config.depth} steps in flight"


def run(adapter: Adapter, vector: Vector) -> Seen:
    """Run a vector on an allocator and compare the facts; the oracle judges along what rows show."""
    if reason := unfit(vector, adapter.capabilities):
        return Seen(vector.id, "skipped", reason)
    records: list[op.Record] = []
    session = Session(
        adapter,
        vector.config,
        compare_policy=False,
        execute=False,
        ignore=_STRUCTURES,
        watch=records.append,
    )
    facts = {fact.after: fact for fact in vector.facts}
    result = "valid"
    for number, operation in enumerate(vector.operations, 1):
        fit = fitted(session.state, operation)
        if fit is None:
            return Seen(vector.id, "skipped", f"operation {number} is not legal here")
        answer = session.apply(fit)
        if session.errored is not None:
            return Seen(vector.id, "errored", session.errored.reason)
        if session.violation is not None:
            return Seen(vector.id, "invalid", f"operation {number}: {session.violation.code}")
        if number in facts:
            seen = observe(session.state, number, fit, answer)
            if seen is not None and seen.refused != facts[number].refused:
                # From here on the two histories differ.
                return _room(vector.id, session.state, fit, facts[number], adapter.capabilities)
            word, reason = _compare(facts[number], seen, adapter.capabilities.max_hit == "len")
            if word == "invalid":
                return Seen(vector.id, word, f"operation {number}: {reason}")
            result = word if word == "acceptable" else result
            if result == "valid" and (reason := _miscounted(facts[number], records[-1])):
                return Seen(vector.id, "invalid", f"operation {number}: {reason}")
    return Seen(vector.id, result)


def _miscounted(wanted: Fact, record: op.Record) -> str:
    """How metrics differ from what must be counted, or nothing; where hits differ they may differ, too."""
    if wanted.counted is None or record.observation is None:
        return ""
    seen = record.observation.metrics
    if (seen.queries, seen.hits) == wanted.counted:
        return ""
    queries, hits = wanted.counted
    return f"{queries} tokens queried and {hits} hit expected, {seen.queries} and {seen.hits} counted"


def _room(name: str, state: State, operation: op.Operation, wanted: Fact, has: Capabilities) -> Seen:
    """Whether it is right to refuse what the reference grants, or to grant what it refuses.

    A grant whose rows break no clause has found room. A refusal is right where the pool, as this
    allocator holds it, has no room for the request without any hit.
    """
    expected, found = ("a refusal", "a grant") if wanted.refused else ("a grant", "a refusal")
    right = has.level >= 1 if wanted.refused else _short(state, operation)
    reason = f"operation {wanted.after}: {expected} expected, {found} seen"
    return Seen(name, "acceptable" if right else "invalid", reason)


def _short(state: State, operation: op.Operation) -> bool:
    """Whether fewer blocks are without a holder than a request needs that hits nothing."""
    assert isinstance(operation, op.Admit | op.Extend)
    request = state.requests[operation.request]
    life, size = request.life, state.config.block_size
    start = life.scheduled if life is not None else 0
    most = min(request.paths[0].length + (life.pending if life is not None else 0), request.limit)
    slots = min(min(start + operation.n, most) + operation.lookahead, request.limit)
    owned = len(life.rows[0]) if life is not None else 0
    return -(-slots // size) - owned > state.config.blocks - len(state.holders)


def observe(state: State, number: int, operation: op.Operation, answer: op.Answer | None) -> Fact | None:
    """The fact that an admission or extension shows."""
    if not isinstance(operation, op.Admit | op.Extend):
        return None
    if not isinstance(answer, op.Granted):
        return Fact(number, refused=True)
    life = state.requests[operation.request].life
    assert life is not None, "a granted request lives"
    row = set(answer.rows[0])
    others = [other for other in state.living() if other is not life]
    shared = {other.request: len(row & set(other.rows[0])) for other in others}
    hit = answer.hit if isinstance(operation, op.Admit) else 0
    size = state.config.block_size
    whole = hit + size if hit + size == state.requests[operation.request].paths[0].length else hit
    return Fact(number, False, hit, 0, len(row), whole, 0, {name: n for name, n in shared.items() if n})


def _compare(wanted: Fact, seen: Fact | None, whole: bool) -> tuple[str, str]:
    """`valid`, `acceptable` or `invalid`, and why."""
    if seen is None:
        return "invalid", "an answer expected, an error seen"
    if wanted.refused or (seen.hit, seen.blocks, seen.shared) == (wanted.hit, wanted.blocks, wanted.shared):
        return "valid", ""
    most = wanted.most_hit if whole else wanted.hit
    if not wanted.least_hit <= seen.hit <= most:
        return "invalid", f"a hit of {wanted.least_hit}…{most} expected, {seen.hit} seen"
    # With a shorter hit the same grant ends earlier.
    least = wanted.blocks if seen.hit >= wanted.hit else 1
    if not least <= seen.blocks <= wanted.most_blocks:
        return "invalid", f"{least}…{wanted.most_blocks} blocks expected, {seen.blocks} seen"
    more = seen.hit > wanted.hit
    for name, count in seen.shared.items():
        if count > wanted.shared.get(name, 0) + more:
            return "invalid", f"{wanted.shared.get(name, 0)} blocks shared with {name} expected, {count} seen"
    return "acceptable", ""
