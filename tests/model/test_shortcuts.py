"""The oracle asks fewer clauses where nothing that is seen has changed: with the same verdicts.

The plain oracle, which asks all of them each time, is the truth here.
"""

from collections.abc import Callable
from importlib import resources

import pytest
from msgspec.structs import replace

from kvproof.fuzz import cases
from kvproof.fuzz.adapters.reference import ReferenceAdapter
from kvproof.fuzz.adapters.variants import PublishAtRetire, StreamOrdered
from kvproof.fuzz.choices import Choices
from kvproof.fuzz.configs import draw_config
from kvproof.fuzz.engines.soak import advance
from kvproof.fuzz.faults import planted
from kvproof.fuzz.prompts import World
from kvproof.fuzz.rules import weighted
from kvproof.fuzz.session import Session
from kvproof.spec import operations as op
from kvproof.spec.clauses import Clause
from kvproof.spec.oracle import CLAUSES, Oracle, Violation
from kvproof.spec.vocabulary import CacheConfig, Capabilities

HAS = ReferenceAdapter(level=2).capabilities
Records = list[op.Record]
Forge = Callable[[op.Observation, op.Observation], op.Observation]


class Plain(Oracle):
    """Never takes a shortcut."""

    def _unchanged(self, *_: object) -> tuple[Clause, ...] | None:
        return None


def judged(
    kind: type[Oracle],
    records: Records,
    config: CacheConfig,
    has: Capabilities,
    policy: bool,
    ignore: frozenset[str] = frozenset(),
) -> Violation | None:
    oracle = kind(config, has, compare_policy=policy, ignore=ignore)
    for record in records:
        if oracle.judge(record.operation, record.answer, record.observation, record.memory):
            break
    return oracle.violation


def history(
    seed: int, operations: int = 160, adapter: ReferenceAdapter | None = None
) -> tuple[CacheConfig, Records]:
    """A correct history at level 2."""
    adapter = adapter or ReferenceAdapter(level=2)
    choices, records = Choices(seed), list[op.Record]()
    config = draw_config(choices, adapter.capabilities)
    session = Session(adapter, config, execute=False, watch=records.append)
    world, rules = World(config, session.state), weighted(adapter.capabilities)
    while len(records) < operations:
        advance(session, world, choices.pick(rules), choices)
    assert session.violation is None
    return config, records


def first_block(**changes: int) -> Forge:
    def forge(seen: op.Observation, before: op.Observation) -> op.Observation:
        block = min(seen.blocks)
        view = seen.blocks[block]
        changed = {name: getattr(view, name) + by for name, by in changes.items()}
        return replace(seen, blocks={**seen.blocks, block: replace(view, **changed)})

    return forge


FORGERIES: dict[str, Forge] = {
    "shown as before": lambda seen, before: replace(before, events=()),
    "shown as before, with events": lambda seen, before: replace(before, events=seen.events),
    "a count": first_block(ref_cnt=1),
    "a key's tokens": first_block(tokens=1),
    "the queue": lambda seen, before: replace(seen, free=(seen.free or ())[::-1]),
    "the queue's head": lambda seen, before: replace(seen, free=(seen.free or ())[1:]),
    "the free count": lambda seen, before: replace(seen, free_count=seen.free_count + 1),
    "a key is gone": lambda seen, before: replace(seen, index=seen.index[1:]),
    "a row is gone": lambda seen, before: replace(seen, rows=dict(list((seen.rows or {}).items())[1:])),
    "the hits": lambda seen, before: replace(seen, metrics=replace(seen.metrics, hits=seen.metrics.hits + 1)),
    "an event": lambda seen, before: replace(seen, events=(op.Cleared(),)),
    "usage": lambda seen, before: replace(seen, usage=seen.usage / 2 + 0.3),
}


@pytest.mark.parametrize("policy", [False, True], ids=["clauses", "policy"])
@pytest.mark.parametrize("name", FORGERIES)
def test_a_forged_observation_gets_the_verdict_of_the_plain_oracle(name: str, policy: bool) -> None:
    fallen = 0
    for seed in range(4):
        config, records = history(seed)
        choices = Choices(seed)
        for _ in range(6):
            at = choices.between(1, len(records) - 1)
            seen, before = records[at].observation, records[at - 1].observation
            assert seen is not None and before is not None
            forged = [*records]
            forged[at] = replace(records[at], observation=FORGERIES[name](seen, before))
            fast, plain = (judged(kind, forged, config, HAS, policy) for kind in (Oracle, Plain))
            assert fast == plain
            fallen += plain is not None
    assert fallen


class TwoLevels(ReferenceAdapter):
    """The reference without its worker."""

    def __init__(self) -> None:
        super().__init__(level=2)


Lie = Callable[[op.Observation], op.Observation]


def queued(seen: op.Observation) -> op.Observation:
    """Block 1 is always in the free queue."""
    assert seen.free is not None
    return seen if 1 in seen.free else replace(seen, free=(*seen.free, 1))


def listed(seen: op.Observation) -> op.Observation:
    """The oldest key lists a second block as well."""
    if not seen.index or 2 in seen.index[0].blocks:
        return seen
    first = seen.index[0]
    return replace(seen, index=(replace(first, blocks=(*first.blocks, 2)), *seen.index[1:]))


def fewer(seen: op.Observation) -> op.Observation:
    """One block fewer is free than there is."""
    return replace(seen, free_count=seen.free_count - 1)


LASTING: dict[str, tuple[Lie, type[ReferenceAdapter]]] = {
    "KV-I4-release": (queued, TwoLevels),
    "KV-I6-withdraw": (listed, TwoLevels),
    # Where the stream orders releases a step may be the last thing that was waited for.
    "KV-P-leak": (fewer, StreamOrdered),
}


@pytest.mark.parametrize("code", LASTING)
def test_a_lie_that_lasts_is_seen_at_the_step_that_makes_it_one(code: str) -> None:
    """Behind all other clauses: what the allocator shows is as before, and the step makes it wrong."""
    ignore = frozenset(clause.code for clause in CLAUSES) - {code}
    (lie, kind), steps = LASTING[code], 0
    for seed in range(60):
        adapter = kind()
        config, records = history(seed, 120, adapter)
        since = Choices(seed).below(60)
        told = [
            replace(each, observation=lie(shown(each))) if i >= since else each
            for i, each in enumerate(records)
        ]
        has = adapter.capabilities
        fast, plain = (judged(oracle, told, config, has, False, ignore) for oracle in (Oracle, Plain))
        assert fast == plain
        if plain is not None and plain.record > since:
            at, before = told[plain.record], shown(told[plain.record - 1])
            steps += isinstance(at.operation, STEPS) and shown(at) == replace(before, events=())
    assert steps, f"{code} never fell at a step after which all is shown as before"


def test_a_token_that_comes_true_makes_a_key_wrong_though_all_is_shown_as_before() -> None:
    """A key lists a block too early; when the token that the block waits for is another one, it is wrong."""
    config = CacheConfig(blocks=6, block_size=2, depth=2, max_requests=2, max_len=8)
    adapter, records = PublishAtRetire(), list[op.Record]()
    session = Session(adapter, config, execute=False, watch=records.append)
    session.run(
        [
            op.Submit("c", (1, 9, 9)),
            op.Admit("c", 3),
            op.Dispatch(1, (op.Entry("c", 3),)),
            op.Retire(1, (op.Output("c", (5,)),)),
            op.Submit("a", (1,)),
            op.Admit("a", 1),
            op.Dispatch(2, (op.Entry("a", 1),)),
            op.Extend("a", 1),
            op.Dispatch(3, (op.Entry("a", 1),)),
            op.Observe(),
            op.Retire(2, (op.Output("a", (7,)),)),
        ]
    )
    assert session.violation is None and shown(records[-1]) == shown(records[-2])
    (block,) = session.state.requests["a"].life.rows[0]  # type: ignore[union-attr]

    def early(record: op.Record) -> op.Record:
        (entry,) = shown(record).index
        forged = replace(shown(record), index=(replace(entry, blocks=(*entry.blocks, block)),))
        return replace(record, observation=forged)

    told = [*records[:-2], *map(early, records[-2:])]
    ignore = frozenset(clause.code for clause in CLAUSES) - {"KV-I2-key"}
    for kind in (Oracle, Plain):
        found = judged(kind, told, config, adapter.capabilities, False, ignore)
        assert found is not None and (found.code, found.record) == ("KV-I2-key", len(told) - 1)


STEPS = (op.Dispatch, op.Retire)


def shown(record: op.Record) -> op.Observation:
    assert record.observation is not None
    return record.observation


def test_a_history_without_a_lie_holds_for_both() -> None:
    for seed in range(4):
        config, records = history(seed)
        assert judged(Oracle, records, config, HAS, True) is judged(Plain, records, config, HAS, True) is None


def bundled() -> dict[str, cases.Case]:
    folder = resources.files("kvproof.fuzz.seeds")
    files = [file for file in folder.iterdir() if file.name.endswith(".json")]
    return {file.name: cases.parse(file.read_bytes(), file.name) for file in files}


def test_every_seeded_fault_gets_the_verdict_of_the_plain_oracle() -> None:
    different = []
    for name, case in bundled().items():
        records = list[op.Record]()
        with planted(cases.faults_of(case)):
            session = Session(ReferenceAdapter(), case.config, compare_policy=False, watch=records.append)
            for operation in case.operations:
                session.apply(operation)
            has = session.capabilities
        fast, plain = (judged(kind, records, case.config, has, False) for kind in (Oracle, Plain))
        if fast != plain:
            different.append((name, fast, plain))
    assert different == []
