"""Ownership by induction: every transition keeps every conjunct, whatever the numbers of things."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import z3

from kvproof.spec.theorems.abstract import CONJUNCTS, SIGNATURES, Move, Rule, State, always
from kvproof.spec.theorems.logic import Plain, Relation, Thing
from kvproof.spec.theorems.quantified import Bounded, Quantified
from kvproof.spec.theorems.rules import RULES, WRONG
from kvproof.spec.theorems.symbolic import Term, solver
from kvproof.spec.theorems.verdict import Control, Goal, Theorem

Rules = tuple[Rule, ...]
LARGEST = 3
"""Universes of up to so many blocks, holders and steps are searched for counterexamples."""


def any_state(logic: Quantified | Bounded) -> tuple[State, Move]:
    """A state and a move of which nothing is known."""
    null = logic.elements("block")[0] if isinstance(logic, Bounded) else logic.constant("null", "block")
    relations = {name: logic.relation(name, *sorts) for name, sorts in SIGNATURES.items()}
    one, here, now = (logic.constant("the", sort) for sort in ("holder", "block", "step"))
    return State(null, **relations), Move(one, here, now, logic.relation("reads", "block", "truth"))


@cache
def _witness(rule: Rule) -> tuple[Term, ...]:
    """The invariant and the rule's guard over two of each sort: satisfiable, or the rule never fires."""
    logic = Bounded(2)
    state, move = any_state(logic)
    return (always(logic, state), rule.guard(logic, state, move))


def goals(rules: Rules) -> list[Goal]:
    """One goal for each transition and conjunct, the start, and what a hand-out must never meet."""
    logic = Quantified()
    state, move = any_state(logic)
    kept = tuple(conjunct.holds(logic, state) for conjunct in CONJUNCTS)
    made = list[Goal]()
    for rule in rules:
        given = (*kept, rule.guard(logic, state, move))
        after = rule.effect(logic, state, move)
        for conjunct in CONJUNCTS:
            claim = conjunct.holds(logic, after)
            made.append(Goal(f"{rule.name}: {conjunct.sentence}", given, claim, _witness(rule)))
        if rule.name == "take":
            quiet = logic.every("step", lambda step: logic.negate(state.touched(step, move.block)))
            made.append(Goal("take: no step in flight touches the block", given, quiet, _witness(rule)))
    return made


def start(logic: Quantified | Bounded, state: State) -> Term:
    """The state right after construction: every usable block is free, nothing else is the case."""

    def fresh(block: Thing) -> Term:
        once = logic.choose(block == state.null, 0, 1)
        empty = logic.both(logic.negate(state.keyed(block)), logic.negate(state.filled(block)))
        return logic.both(state.ref(block) == 0, state.queued(block) == once, empty)

    def idle(step: Thing) -> Term:
        untouched = logic.every("block", lambda block: logic.negate(state.touched(step, block)))
        return logic.both(logic.negate(state.flying(step)), untouched)

    def outside(holder: Thing) -> Term:
        return logic.every("block", lambda block: logic.negate(state.holds(holder, block)))

    return logic.both(logic.every("block", fresh), logic.every("step", idle), logic.every("holder", outside))


def start_goals() -> list[Goal]:
    """The invariant holds at the start."""
    logic, small = Quantified(), Bounded(2)
    state, _ = any_state(logic)
    given, witness = (start(logic, state),), (start(small, any_state(small)[0]),)
    return [Goal(f"start: {part.sentence}", given, part.holds(logic, state), witness) for part in CONJUNCTS]


@dataclass(frozen=True)
class Moment:
    """A counterexample in plain values: a universe, a state, and a move of one rule."""

    rule: str
    universe: dict[str, tuple[int, ...]]
    state: State
    move: Move

    def __repr__(self) -> str:
        facts = [f"{name}{place}" for name in ("holds", "keyed", "touched") for place in self._true(name)]
        return f"{self.rule} of block {self.move.block} by holder {self.move.holder} with {', '.join(facts)}"

    def _true(self, name: str) -> list[tuple[int, ...]]:
        first, second = (*SIGNATURES[name][:-1], None)[:2]
        ones = [(one,) for one in self.universe[str(first)]]
        places = [(*one, two) for one in ones for two in self.universe[second]] if second else ones
        return [place for place in places if getattr(self.state, name)(*place)]


def _plain(table: dict[tuple[int, ...], object]) -> Relation:
    return lambda *things: table.get(things)


def models(rules: Rules) -> Iterator[Moment]:
    """States in which a rule breaks the invariant, in universes of one, two and three of each."""
    for size in range(1, LARGEST + 1):
        logic = Bounded(size)
        state, move = any_state(logic)
        for rule in rules:
            broken = z3.Not(always(logic, rule.effect(logic, state, move)))
            asked = solver(always(logic, state), rule.guard(logic, state, move), broken)
            if asked.check() == z3.sat:
                yield _moment(rule, logic, asked.model(), state, move)


def _moment(rule: Rule, logic: Bounded, model: z3.ModelRef, state: State, move: Move) -> Moment:
    relations = {
        name: _plain(logic.table(model, getattr(state, name), *sorts[:-1]))
        for name, sorts in SIGNATURES.items()
    }
    holder, block, step = (logic.value(model, each) for each in (move.holder, move.block, move.step))
    reads = _plain(logic.table(model, move.reads, "block"))
    return Moment(rule.name, logic.universe(), State(0, **relations), Move(holder, block, step, reads))


def disagrees(rules: Rules, moment: Moment) -> bool:
    """Whether the rule, run in plain Python on a state where all holds, leads to one where it doesn't."""
    logic = Plain(moment.universe)
    rule = next(each for each in rules if each.name == moment.rule)
    if not always(logic, moment.state) or not rule.guard(logic, moment.state, moment.move):
        return False
    return not always(logic, rule.effect(logic, moment.state, moment.move))


def theorem() -> Theorem[Rules]:
    """The theorem about the rules of the abstract machine."""
    return Theorem(
        id="ownership",
        title=(
            "Every transition keeps the invariant: reference counts count the holders, unheld blocks are "
            "free exactly once, found blocks have content, touched blocks are held."
        ),
        bound="all sizes, by induction",
        subject=RULES,
        goals=lambda rules: [*start_goals(), *goals(rules)],
        models=models,
        disagrees=disagrees,
        controls=tuple(Control(title, rules) for title, rules in WRONG.items()),
    )
