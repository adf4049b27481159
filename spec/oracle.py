"""The oracle: apply each record, check every clause, give a verdict.

Pure: it is handed records and holds no allocator. The level decides what can be judged;
clauses above it are reported unchecked, never passed.
"""

from collections import Counter
from collections.abc import Iterable
from functools import lru_cache
from typing import Final

import msgspec

from kvproof.spec import operations as op
from kvproof.spec.clauses import Clause, Evidence, Keys, Moment
from kvproof.spec.content import Runs
from kvproof.spec.invariants import INVARIANTS
from kvproof.spec.invariants.content import bytes_
from kvproof.spec.policy import Policy
from kvproof.spec.properties import PROPERTIES, REFINEMENT
from kvproof.spec.properties.refinement import against_policy
from kvproof.spec.situations import Watch
from kvproof.spec.state import State
from kvproof.spec.transitions import Effects, apply
from kvproof.spec.vocabulary import CacheConfig, Capabilities

_GRANTS: Final = (op.Admit, op.Extend)
_STEPS: Final = (op.Dispatch, op.Retire)
_IN_TIME: Final = ("KV-I4-release", "KV-I6-withdraw", "KV-I2-key", "KV-P-leak")
"""Clauses of every operation that depend on content or on what is in flight."""
_CRASHES: Final = tuple(clause for clause in PROPERTIES if clause.code in ("KV-P-capacity", "KV-P-crash"))
CLAUSES: Final[tuple[Clause, ...]] = (
    *_CRASHES,
    *INVARIANTS,
    *(clause for clause in PROPERTIES if clause not in _CRASHES),
)
"""Every clause in the order in which a contradiction is named: an error first, since it explains the rest."""
BY_CODE: Final[dict[str, Clause]] = {clause.code: clause for clause in CLAUSES} | REFINEMENT


class Violation(msgspec.Struct, frozen=True):
    """A clause that fell at a record, the evidence, and the other clauses that fell with it."""

    code: str
    sentence: str
    record: int
    evidence: Evidence
    also: tuple[str, ...] = ()


class Mix(msgspec.Struct):
    """What the operations of a history were about: a rate without it says little."""

    allocations: int = 0
    hits: int = 0
    refusals: int = 0
    evictions: int = 0

    def count(self, moment: Moment) -> None:
        """Count an admission or a further grant; evictions show from level 2 on."""
        if isinstance(moment.answer, op.Refused):
            self.refusals += 1
            return
        self.allocations += 1
        self.hits += bool(moment.effects.hits)
        before = moment.previous.blocks if moment.previous is not None else {}
        for block, _, _ in moment.effects.handed:
            view = before.get(block)
            self.evictions += view is not None and view.key is not None

    def add(self, other: "Mix") -> None:
        """Take in another history's."""
        self.allocations += other.allocations
        self.hits += other.hits
        self.refusals += other.refusals
        self.evictions += other.evictions


class Verdict(msgspec.Struct, frozen=True):
    """`holds`, `violated`, `undecided` or `errored`, after so many records.

    `exercised` counts judgements per clause, none where the situation in which it can fall was never
    met; `situations` are those that were. `error` says how an allocator that cannot be
    asked any more went away.
    """

    result: str
    records: int
    violation: Violation | None = None
    exercised: dict[str, int] = {}
    unchecked: tuple[str, ...] = ()
    situations: tuple[str, ...] = ()
    mix: Mix = msgspec.field(default_factory=Mix)
    error: str = ""


_ByKind = dict[type[op.Operation], tuple[Clause, ...]]


@lru_cache(64)
def _tables(
    level: int, memory: bool, ignore: frozenset[str]
) -> tuple[tuple[Clause, ...], _ByKind, _ByKind, _ByKind]:
    """The clauses that can be judged; by kind of operation all of them, those of that kind alone, and
    what is left to ask of a step after which nothing else has changed."""
    blind = () if memory else (bytes_,)
    judged = tuple(c for c in CLAUSES if c.level <= level and c.code not in ignore and c not in blind)
    clauses = {kind: tuple(c for c in judged if not c.on or kind in c.on) for kind in op.OPERATIONS}
    asked = {kind: tuple(c for c in found if c.on) for kind, found in clauses.items()}
    moved: _ByKind = {kind: tuple(c for c in clauses[kind] if c.on or c.code in _IN_TIME) for kind in _STEPS}
    return judged, clauses, asked, moved


class Oracle:
    """Judges one history, record by record.

    `memory` says whether there is a device whose bytes are verified; at level 3 there is. Clauses
    in `ignore` are left unchecked, to see behind a fault.
    """

    def __init__(
        self,
        config: CacheConfig,
        capabilities: Capabilities,
        *,
        compare_policy: bool = True,
        memory: bool = False,
        ignore: frozenset[str] = frozenset(),
    ) -> None:
        self.state = State(config, capabilities)
        self.ignore = ignore
        self.keys = Keys()
        self.policy = Policy.of(self.state) if compare_policy and capabilities.policy else None
        self.violation: Violation | None = None
        self.records = 0
        self.operations: Counter[str] = Counter()
        self.watch = Watch(capabilities)
        self.mix = Mix()
        self._previous: op.Observation | None = None
        self._indexed: dict[tuple[int, int], bytes] = {}
        tables = _tables(capabilities.level, memory or capabilities.level >= 3, ignore)
        self._judged, self._clauses, self._asked, self._moved = tables

    def judge(
        self,
        operation: op.Operation,
        answer: op.Answer,
        seen: op.Observation | None,
        memory: tuple[op.Mismatch, ...] = (),
    ) -> Violation | None:
        """Apply a record and check it; the first violation ends the history."""
        assert self.violation is None, "a violated history is over"
        effects = apply(self.state, operation, answer)
        moment = Moment(operation, answer, self.state, effects, self.keys, seen, self._previous, memory)
        kind = type(operation)
        few = self._unchanged(operation, answer, seen, effects)
        if few is None and seen is not None:
            self._learn(moment, seen)
        fallen = []
        for clause in self._clauses[kind] if few is None else few:
            evidence = clause.check(moment)
            if evidence is not None:
                fallen.append((clause, evidence))
        if self.policy is not None and not fallen:
            expected = self.policy.follow(self.state, operation)
            shown = seen if few is None or self.policy.changed else None
            different = against_policy(self.policy, expected, answer, shown, self.keys.claim_of)
            fallen = [different] if different else []
            self.policy.changed = False
        if fallen:
            clause, evidence = fallen[0]
            also = tuple(dict.fromkeys(c.code for c, _ in fallen[1:]))
            self.violation = Violation(clause.code, clause.sentence, self.records, evidence, also)
        else:
            self.watch.see(moment, self.records)
        if kind in _GRANTS:
            self.mix.count(moment)
        self.records += 1
        self.operations[kind.__name__] += 1
        if seen is not None:
            self._previous = seen
        return self.violation

    def _unchanged(
        self, operation: op.Operation, answer: op.Answer, seen: op.Observation | None, effects: Effects
    ) -> tuple[Clause, ...] | None:
        """The clauses that can fall although what is seen is as before; none where that is not so.

        After a refusal or a question the state hasn't changed either, so that the clauses that speak
        of these two alone hold as they did there. After a step that lets nothing go holders, rows
        and counters are the same: what is left to ask is about content and what is in flight.
        """
        if seen is None or type(answer) is op.Crashed or not self._same(seen):
            return None
        kind = type(operation)
        if type(answer) is op.Refused or kind in op.QUESTIONS:
            return self._asked[kind]
        if kind in _STEPS and not (effects.released or effects.swapped):
            return self._moved[kind]
        return None

    def _same(self, seen: op.Observation) -> bool:
        """Whether what is seen has not changed since the record before."""
        before = self._previous
        return (
            before is not None
            and not seen.events
            and seen.blocks == before.blocks
            and seen.free == before.free
            and seen.index == before.index
            and seen.rows == before.rows
            and seen.metrics == before.metrics
            and seen.free_count == before.free_count
            and seen.usage == before.usage
        )

    def _learn(self, moment: Moment, seen: op.Observation) -> None:
        """Find the keys that are new, learn what they stand for, replay the events."""
        before = self._previous
        if before is None or seen.free is None or before.free is None or seen.index != before.index:
            self._read_index(moment, seen)
        for event in seen.events:
            self._replay(event)

    def _read_index(self, moment: Moment, seen: op.Observation) -> None:
        """Keep under which key a block is listed, to know the new ones next time, and what it must hold."""
        size, known, claim_of = self.state.config.block_size, self._indexed, self.keys.claim_of
        listed: dict[tuple[int, int], bytes] = {}
        wanted: list[tuple[op.IndexEntry, int, Runs]] = []
        for entry in seen.index:
            group, key = entry.group, entry.key
            for block in entry.blocks:
                if known.get((group, block)) != key:
                    moment.new_keys.append((entry, block))
                    self._stand(entry, block, size)
                listed[group, block] = key
            claim = claim_of.get((group, key))
            if claim is not None:
                content = self.state.claims.back(claim, size)
                wanted += [(entry, block, content) for block in entry.blocks]
        self.keys.listed = wanted
        self._remember(seen, listed)

    def _remember(self, seen: op.Observation, listed: dict[tuple[int, int], bytes]) -> None:
        if seen.free is not None:
            self._indexed = listed
            return
        for block in seen.blocks:
            for group in range(len(self.state.config.groups)):
                self._indexed.pop((group, block), None)
        self._indexed.update(listed)

    def listed(self, blocks: Iterable[int]) -> list[tuple[int, bytes]]:
        """The keys `(group, key)` under which the index was last seen to list these blocks."""
        groups = range(len(self.state.config.groups))
        pairs = [(group, block) for block in sorted(blocks) for group in groups]
        return [
            (group, self._indexed[group, block]) for group, block in pairs if (group, block) in self._indexed
        ]

    def _stand(self, entry: op.IndexEntry, block: int, size: int) -> None:
        place = self.state.places.get(block)
        if place is None:
            return
        life, group, index = place
        end = (index + 1) * size
        if group == entry.group and end <= life.known:
            claim = life.paths[group].at(end - 1)
            self.keys.claim_of.setdefault((group, entry.key), claim)
            self.keys.key_of.setdefault(claim, entry.key)

    def _replay(self, event: op.AnyEvent) -> None:
        match event:
            case op.Stored():
                self.keys.announced.update((event.group, key) for key in event.keys)
            case op.Removed():
                self.keys.announced.discard((event.group, event.key))
            case op.Cleared():
                self.keys.announced.clear()

    def verdict(self) -> Verdict:
        """The verdict so far. A history without a judged record is undecided."""
        result = "violated" if self.violation else "holds" if self.records else "undecided"
        exercised = {clause.code: self._exercised(clause) for clause in self._judged}
        unchecked = tuple(clause.code for clause in CLAUSES if clause not in self._judged)
        met = tuple(self.watch.met)
        return Verdict(result, self.records, self.violation, exercised, unchecked, met, self.mix)

    def _exercised(self, clause: Clause) -> int:
        """How often a clause was judged; not at all where it could not have fallen."""
        if not self.watch.reached(clause.code):
            return 0
        kinds = clause.on or op.OPERATIONS
        return sum(self.operations[kind.__name__] for kind in kinds)
