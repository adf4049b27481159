"""How a mutant gives itself away: what falls, and after how many operations; nothing if all is right.

One of the implementation by a soak of the reference with the policy compared; by one through all its
doors; by one with a hash of few bits, where contents collide and structures must hold all the same;
or by a contract of its arithmetic. One of the oracle by a lie that it swallows, by a seeded fault's
minimal case or tampered records that it judges otherwise than an oracle in order, or by a false
alarm on the reference or on a variant of it.
"""

import inspect
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from importlib import resources
from itertools import product
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from kvproof.fuzz import cases
from kvproof.fuzz.adapters.doors import Doors
from kvproof.fuzz.adapters.port import Adapter
from kvproof.fuzz.adapters.reference import ReferenceAdapter
from kvproof.fuzz.adapters.variants import VARIANTS, Swap
from kvproof.fuzz.cases import Case
from kvproof.fuzz.choices import Choices
from kvproof.fuzz.configs import draw_config
from kvproof.fuzz.engines.contracts import Contract, read
from kvproof.fuzz.engines.soak import soak
from kvproof.fuzz.lies import LIES, Lie
from kvproof.fuzz.session import Session
from kvproof.fuzz.tampering import Tampered, tampered
from kvproof.impl import arithmetic
from kvproof.spec import operations as op
from kvproof.spec.clauses import clause
from kvproof.spec.invariants import TITLES
from kvproof.spec.oracle import CLAUSES, Oracle, Violation
from kvproof.spec.vocabulary import CacheConfig, Capabilities

OPERATIONS: Final = {"impl": 3_000, "oracle": 1_500}
"""Of the soak of the reference that judges a mutant."""
FURTHER: Final = {"impl": 1_500, "oracle": 500}
"""Of each soak of another adapter."""
FEW: Final = 150
"""Of each soak with a configuration that is seldom drawn."""

Found = tuple[str, int]
"""What fell, and after how many operations."""


def judged_impl() -> Found:
    """How a mutated implementation gives itself away."""
    spent = 0
    for look in (_plain, _through_doors, _with_collisions, _swapping, *_seldom()):
        by, operations = look()
        spent += operations
        if by:
            return by, spent
    return _broken_contract(), spent


def judged_oracle() -> Found:
    """How a mutated oracle gives itself away."""
    if by := _misnamed_clause() or _swallowed_lie() or _misjudged_seed() or _missed_tampering():
        return by, 0
    spent = 0
    for look in _looks():
        by, operations = look()
        spent += operations
        if by:
            return by, spent
    return "", spent


def _looks() -> Iterator[Callable[[], Found]]:
    """Correct allocators that the oracle must not accuse: the reference, its variants, less to see of it."""
    further = FURTHER["oracle"]
    yield lambda: _soaked(OPERATIONS["oracle"], ReferenceAdapter)
    for variant in VARIANTS.values():
        yield partial(_soaked, further, variant)
    yield lambda: _soaked(further, _Rows)
    yield lambda: _soaked(further, lambda: ReferenceAdapter(level=2), full=False)


class _Rows(ReferenceAdapter):
    """The reference, of which only answers and rows are seen."""

    def __init__(self) -> None:
        super().__init__(level=2)
        self.capabilities = replace(self.capabilities, level=1, policy=False)


# --- soaks ------------------------------------------------------------------------------


def _soaked(
    operations: int,
    adapter: Callable[[], Adapter],
    *,
    ignore: frozenset[str] = frozenset(),
    full: bool = True,
    seed: int = 1,
) -> Found:
    result = soak(operations, seed, adapter=adapter, ignore=ignore, compare_policy=not ignore, full=full)
    if result.case is None:
        return "", result.operations
    expected = result.case.expected
    return expected.clause or expected.result, result.operations


def _plain() -> Found:
    return _soaked(OPERATIONS["impl"], ReferenceAdapter)


def _through_doors() -> Found:
    return _soaked(FURTHER["impl"], Doors)


def _swapping() -> Found:
    """With rows that do more than grow."""
    return _soaked(FURTHER["impl"], Swap)


def _seldom() -> Iterator[Callable[[], Found]]:
    """Through the doors, with each configuration that is drawn too seldom to be met by then."""
    for seed in _seldom_seeds():
        yield partial(_soaked, FEW, Doors, seed=seed)


@cache
def _seldom_seeds() -> tuple[int, ...]:
    """The first seeds of a soak that begins without events, and with a pool of one block and of two."""
    able = Doors().capabilities
    found: dict[tuple[bool, int], int] = {}
    for seed in range(1, 400):
        config = draw_config(Choices(Choices(seed).word()), able)
        if not config.events or config.blocks < 3:
            found.setdefault((config.events, min(config.blocks, 3)), seed)
    return tuple(found.values())


class _Weak(Doors):
    """Keys of three bits."""

    def configure(self, config: CacheConfig, seed: int) -> None:
        super().configure(replace(config, hash="weak"), seed)


BY_COLLISION: Final = frozenset(
    (
        *("KV-I2-standing", "KV-I2-key", "KV-I2-hit", "KV-I2-read", "KV-I2-write", "KV-I2-bytes"),
        *("KV-I4-key", "KV-P-isolation", "KV-P-chain", "KV-P-refusal"),
    )
)
"""Clauses that a collision of keys breaks; all others hold whatever the hash."""


def _with_collisions() -> Found:
    return _soaked(FURTHER["impl"], _Weak, ignore=BY_COLLISION)


# --- contracts --------------------------------------------------------------------------

_UP_TO: Final = 4
"""Integers of a contract are tried from 0 up to this, demands with parts below it."""


def _broken_contract() -> str:
    """The first function of the arithmetic that doesn't do what it says of small numbers."""
    return next((contract.function for contract in _contracts() if not _kept(contract)), "")


@cache
def _contracts() -> tuple[Contract, ...]:
    return read(inspect.getsource(arithmetic))[0]


def _kept(contract: Contract) -> bool:
    function: Callable[..., Any] = vars(arithmetic)[contract.function]
    before = [compile(line, contract.function, "eval") for line in contract.pre]
    after = compile(contract.post, contract.function, "eval")
    for arguments in _arguments(function):
        space = {**vars(arithmetic), **arguments}
        if all(eval(line, space) for line in before):
            space["__return__"] = function(**arguments)
            if not eval(after, space):
                return False
    return True


def _arguments(function: Callable[..., Any]) -> Iterator[dict[str, Any]]:
    some = {
        int: range(_UP_TO + 1),
        arithmetic.Demand: list(map(arithmetic.Demand._make, product(range(3), repeat=2))),
    }
    wanted = inspect.signature(function).parameters.values()
    names = [each.name for each in wanted]
    for values in product(*[some[each.annotation] for each in wanted]):
        yield dict(zip(names, values, strict=True))


# --- lies and faults --------------------------------------------------------------------


def _misnamed_clause() -> str:
    """Clauses are made as they are loaded, before a mutant is planted: made again they are the same."""
    for each in CLAUSES:
        if each.invariant not in TITLES or clause(each.code, each.level, *each.on)(each.check) != each:
            return f"{each.code}: made otherwise"
    return ""


class Told(NamedTuple):
    """The true and the forged records of a lie, and what an oracle in order finds in these."""

    lie: Lie
    true: Sequence[op.Record]
    forged: Sequence[op.Record]
    violation: Violation | None


@cache
def _told() -> tuple[Told, ...]:
    return tuple(Told(lie, lie.true(), lie.forged(), lie.judge(lie.forged())) for lie in LIES)


def _swallowed_lie() -> str:
    other = ""
    for told in _told():
        if violation := told.lie.judge(told.true):
            return f"false alarm: {violation.code}"
        violation = told.lie.judge(told.forged)
        if not told.lie.found(violation):
            return f"{told.lie.code}: {violation.code if violation else 'swallowed'}"
        if violation != told.violation:
            other = other or f"{told.lie.code}: other evidence"
    return other


class Replayed(NamedTuple):
    """A seeded fault's case, the records of its replay, and what its target declares."""

    case: Case
    records: tuple[op.Record, ...]
    capabilities: Capabilities

    def judge(self) -> str:
        """The clause that falls, or nothing."""
        policy = self.case.compare_policy
        oracle = Oracle(self.case.config, self.capabilities, compare_policy=policy, memory=True)
        for record in self.records:
            if violation := oracle.judge(record.operation, record.answer, record.observation, record.memory):
                return violation.code
        return ""


@cache
def _replayed() -> tuple[Replayed, ...]:
    """Made while the oracle is in order. What a target declares may be the fault."""
    made: list[Replayed] = []
    for case in seeds():
        sessions: list[Session] = []
        outcome = cases.replay(case, lambda session, _, kept=sessions: kept.append(session))  # type: ignore[misc]
        made.append(Replayed(case, outcome.records, sessions[0].capabilities))
    return tuple(made)


def _misjudged_seed() -> str:
    for replayed in _replayed():
        wanted, found = replayed.case.expected.clause, replayed.judge()
        if found != wanted:
            return f"{wanted}: {found or 'swallowed'}"
    return ""


TAMPERED: Final = 60
"""Cases of each way to tamper with records."""


@cache
def _tampered() -> tuple[tuple[Tampered, Violation | None], ...]:
    """What an oracle in order says of records that were tampered with."""
    return tuple((case, case.judge()) for case in tampered(TAMPERED, 1))


def _missed_tampering() -> str:
    for case, wanted in _tampered():
        found = case.judge()
        if found != wanted:
            codes = [each.code if each else "nothing" for each in (found, wanted)]
            return (
                f"{case.what}: {codes[0]}, not {codes[1]}"
                if len({*codes}) > 1
                else f"{case.what}: other evidence"
            )
    return ""


def seeds() -> list[Case]:
    """The minimal cases of the seeded faults."""
    files = sorted(resources.files("kvproof.fuzz.seeds").iterdir(), key=lambda file: file.name)
    return [cases.parse(file.read_bytes(), file.name) for file in files if file.name.endswith(".json")]
