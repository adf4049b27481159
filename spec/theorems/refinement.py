"""Refinement: what an allocator was seen to do decomposes into transitions of the abstract machine.

The rules are those that `ownership.py` proves, run in plain Python. An operation that decomposes
keeps the invariant; one that doesn't is a finding, or a transition that the machine lacks.
"""

from collections.abc import Hashable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from typing import Any

from kvproof.spec.theorems.abstract import CONJUNCTS, SIGNATURES, Move, State
from kvproof.spec.theorems.logic import Plain, Relation, Thing
from kvproof.spec.theorems.rules import RULES

_RULES = {rule.name: rule for rule in RULES}
_NULL = 0


class NoDecomposition(Exception):
    """No sequence of transitions leads from one snapshot to the other; the message says why."""


@dataclass(frozen=True)
class Snapshot:
    """Ownership as it is seen between two operations.

    `holders` and `touched` may leave out blocks without holders and need not hold the null block.
    `ended` names holders whose life ended and that wait for a fence. `filled` are blocks whose
    content is written or promised; those that are keyed count as filled anyway.
    """

    holders: Mapping[int, frozenset[str]]
    free: frozenset[int]
    keyed: frozenset[int] = frozenset()
    touched: Mapping[int, frozenset[int]] = field(default_factory=dict)
    ended: frozenset[str] = frozenset()
    filled: frozenset[int] = frozenset()

    @classmethod
    def start(cls, blocks: int) -> "Snapshot":
        """A new pool of `blocks` usable blocks."""
        return cls({}, frozenset(range(1, blocks + 1)))

    def of(self, block: int) -> frozenset[str]:
        """The block's holders."""
        return self.holders.get(block, frozenset())

    @property
    def contents(self) -> frozenset[int]:
        """Blocks with content."""
        return self.filled | self.keyed

    @property
    def held(self) -> frozenset[int]:
        """Blocks with a holder."""
        return frozenset(block for block, names in self.holders.items() if names)


@dataclass(frozen=True)
class Transition:
    """One abstract transition on named things; what a rule doesn't need is left out."""

    rule: str
    holder: str = ""
    block: int = _NULL
    step: int = 0
    blocks: frozenset[int] = frozenset()

    def __str__(self) -> str:
        named = {
            "holder": self.holder,
            "block": self.block,
            "step": self.step,
            "touching": sorted(self.blocks),
        }
        return " ".join([self.rule, *(f"{word} {thing}" for word, thing in named.items() if thing)])


def _lookup(table: Mapping[tuple[Hashable, ...], Thing], default: Thing) -> Relation:
    return lambda *things: table.get(things, default)


class Abstract:
    """The abstract machine in plain Python, in the state that a snapshot shows."""

    def __init__(self, snapshot: Snapshot, *later: Snapshot) -> None:
        """`later` are snapshots whose blocks, holders and steps may come up too."""
        shown = (snapshot, *later)
        blocks = {_NULL}.union(*(one.free | one.contents | one.holders.keys() for one in shown))
        blocks = blocks.union(*(reads for one in shown for reads in one.touched.values()))
        holders = set[str]().union(*(names for one in shown for names in one.holders.values()))
        holders = holders.union(*(one.ended for one in shown))
        steps = sorted({step for one in shown for step in one.touched})
        self.universe: dict[str, tuple[Any, ...]] = {
            "block": tuple(sorted(blocks)),
            "holder": tuple(sorted(holders)),
            "step": tuple(steps),
            "number": tuple(range(1, len(holders) + 2)),
        }
        self.logic = Plain(self.universe)
        numbered = {b: dict(enumerate(sorted(snapshot.of(b)), 1)) for b in blocks}
        self.state = State(
            null=_NULL,
            holds=lambda h, b: h in snapshot.of(b),
            number=_lookup({(h, b): i for b, names in numbered.items() for i, h in names.items()}, 0),
            at=_lookup({(b, i): h for b, names in numbered.items() for i, h in names.items()}, ""),
            ref=lambda b: len(snapshot.of(b)),
            queued=lambda b: int(b in snapshot.free),
            keyed=lambda b: b in snapshot.keyed,
            filled=lambda b: b in snapshot.contents,
            touched=lambda s, b: b in snapshot.touched.get(s, frozenset()),
            flying=lambda s: s in snapshot.touched,
            ended=lambda h: h in snapshot.ended,
        )

    def apply(self, transition: Transition) -> None:
        """Make a transition, or raise `NoDecomposition` if its guard fails."""
        rule, reads = _RULES[transition.rule], transition.blocks
        move = Move(transition.holder, transition.block, transition.step, lambda block: block in reads)
        if not rule.guard(self.logic, self.state, move):
            raise NoDecomposition(f"'{transition}' isn't allowed there: {rule.effect.__doc__}")
        self._settle(rule.effect(self.logic, self.state, move))

    def broken(self) -> list[str]:
        """The sentences of the invariant that don't hold."""
        return [part.sentence for part in CONJUNCTS if not part.holds(self.logic, self.state)]

    def snapshot(self) -> Snapshot:
        """The state as it would be seen; ended holders that hold nothing are forgotten."""
        blocks, state = self.universe["block"], self.state
        holders = {b: frozenset(h for h in self.universe["holder"] if state.holds(h, b)) for b in blocks}
        touched = {s: frozenset(b for b in blocks if state.touched(s, b)) for s in self.universe["step"]}
        return Snapshot(
            holders={b: names for b, names in holders.items() if names},
            free=frozenset(b for b in blocks for _ in range(state.queued(b))),
            keyed=frozenset(filter(state.keyed, blocks)),
            touched={s: reads for s, reads in touched.items() if state.flying(s)},
            ended=frozenset(h for names in holders.values() for h in names if state.ended(h)),
            filled=frozenset(filter(state.filled, blocks)),
        )

    def _settle(self, state: State) -> None:
        """Write changed relations out as tables, so that they don't pile up."""
        settled = {}
        for name, (*sorts, _) in SIGNATURES.items():
            relation = getattr(state, name)
            if relation is not getattr(self.state, name):
                relation = _lookup({place: relation(*place) for place in self._places(sorts)}, None)
            settled[name] = relation
        self.state = State(_NULL, **settled)

    def _places(self, sorts: list[str]) -> Iterator[tuple[Hashable, ...]]:
        if len(sorts) == 1:
            return ((one,) for one in self.universe[sorts[0]])
        return ((one, two) for one in self.universe[sorts[0]] for two in self.universe[sorts[1]])


def decompose(before: Snapshot, after: Snapshot) -> list[Transition]:
    """Transitions that lead from one snapshot to the next, in the order of an allocator's work.

    Raises `NoDecomposition` with a sentence if a guard fails on the way or something else changed.
    """
    machine, made = Abstract(before, after), list[Transition]()
    for transition in _plan(before, after):
        machine.apply(transition)
        made.append(transition)
    _compare(machine.snapshot(), after)
    return made


def _plan(before: Snapshot, after: Snapshot) -> Iterator[Transition]:
    """The candidate: retire, end, withdraw, share hits, release, take, publish, dispatch."""
    blocks = sorted(before.held | after.held)
    lost = [(name, block) for block in blocks for name in sorted(before.of(block) - after.of(block))]
    won = [(name, block) for block in blocks for name in sorted(after.of(block) - before.of(block))]
    moved = {block for _, block in won if not before.of(block) & after.of(block)}
    hits = {block for _, block in won if block in before.keyed & after.keyed}
    taken = moved - hits
    for step in sorted(before.touched.keys() - after.touched.keys()):
        yield Transition("retire", step=step)
    for name in sorted(after.ended - before.ended):
        yield Transition("defer", holder=name)
    yield from _removals(before, after, taken & before.free)
    for name, block in won:
        if before.of(block) and block not in taken:
            yield Transition("share", name, block)
    left = {
        block: len(before.of(block) if block in taken else before.of(block) | after.of(block))
        for block in blocks
    }
    for name, block in lost:
        yield Transition("release_shared" if left[block] > 1 else "release_last", name, block)
        left[block] -= 1
    first: dict[int, str] = {}
    for name, block in won:
        if (block in taken or not before.of(block)) and first.setdefault(block, name) == name:
            yield Transition("revive" if block in hits else "take", name, block)
    yield from _additions(before, after, taken)
    for name, block in won:
        if block in first and first[block] != name:
            yield Transition("share", name, block)
    for step in sorted(after.touched.keys() - before.touched.keys()):
        yield Transition("dispatch", step=step, blocks=after.touched[step])


def _removals(before: Snapshot, after: Snapshot, evicted: Set[int]) -> Iterator[Transition]:
    """Keys and content that go by themselves; those of an evicted block go as it is taken."""
    if before.keyed and not before.held and not after.held and not after.keyed:
        yield Transition("reset")
    else:
        for block in sorted(before.keyed - after.keyed - evicted):
            yield Transition("withdraw", block=block)
    for block in sorted(before.contents - after.contents - evicted):
        yield Transition("void", block=block)


def _additions(before: Snapshot, after: Snapshot, taken: Set[int]) -> Iterator[Transition]:
    """Content and keys that are new; a block that was taken has none of before."""

    def owner(block: int) -> str:
        return min(after.of(block) - after.ended, default="nobody")

    for block in sorted(after.contents - (before.contents - taken)):
        yield Transition("fill", owner(block), block)
    for block in sorted(after.keyed - (before.keyed - taken)):
        yield Transition("publish", owner(block), block)


def _compare(reached: Snapshot, wanted: Snapshot) -> None:
    """Raise `NoDecomposition` with the first thing that the transitions leave unexplained."""
    for block in sorted(reached.held | wanted.held):
        if reached.of(block) != wanted.of(block):
            names = [sorted(one.of(block)) for one in (wanted, reached)]
            raise NoDecomposition(f"block {block} is held by {names[0]}; transitions leave it to {names[1]}.")
    for what in ("free", "keyed", "contents"):
        differ = getattr(reached, what) ^ getattr(wanted, what)
        if differ:
            seen = "is" if min(differ) in getattr(wanted, what) else "is not"
            raise NoDecomposition(f"block {min(differ)} {seen} {_WORDS[what]}, which no transition explains.")
    if dict(reached.touched) != dict(wanted.touched):
        raise NoDecomposition("a step in flight touches other blocks than when it was dispatched.")
    ended = {name for names in wanted.holders.values() for name in names} & wanted.ended
    if reached.ended != ended:
        raise NoDecomposition(f"{sorted(reached.ended ^ ended)} came back after the end of its life.")


_WORDS = {"free": "in the free queue", "keyed": "to be found", "contents": "filled"}
