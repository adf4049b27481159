"""The abstract machine of block ownership: its state and what always holds; `rules.py` moves it.

Written once in the notation of `logic.py`. `ownership.py` proves that every transition keeps
every conjunct, for any number of blocks, holders and steps; `refinement.py` runs the same
transitions in plain Python on what an allocator was seen to do.
"""

from collections.abc import Callable
from dataclasses import dataclass

from kvproof.spec.theorems.logic import Logic, Relation, Thing, Truth


@dataclass(frozen=True)
class State:
    """Relations over blocks, holders and steps.

    `number` and `at` are ghosts: the holders of a block are numbered 1 … `ref`, which says that
    `ref` counts them without counting. `queued` is how often a block is in the free queue.
    """

    null: Thing
    holds: Relation
    """(holder, block): the holder counts in the block's reference count."""
    number: Relation
    """(holder, block): a ghost, the holder's number."""
    at: Relation
    """(block, number): a ghost, the holder with that number."""
    ref: Relation
    queued: Relation
    keyed: Relation
    """(block): a look-up finds it."""
    filled: Relation
    """(block): its content is written, or promised by its owner."""
    touched: Relation
    """(step, block): the dispatched step reads or writes the block."""
    flying: Relation
    """(step): dispatched and not retired."""
    ended: Relation
    """(holder): its life ended; it holds its blocks until its fence."""


SIGNATURES = {
    "holds": ("holder", "block", "truth"),
    "number": ("holder", "block", "number"),
    "at": ("block", "number", "holder"),
    "ref": ("block", "number"),
    "queued": ("block", "number"),
    "keyed": ("block", "truth"),
    "filled": ("block", "truth"),
    "touched": ("step", "block", "truth"),
    "flying": ("step", "truth"),
    "ended": ("holder", "truth"),
}
"""The sorts of each relation, the result's last."""


@dataclass(frozen=True)
class Move:
    """What a transition is applied to. `reads` says which blocks a dispatched step touches."""

    holder: Thing = None
    block: Thing = None
    step: Thing = None
    reads: Relation = lambda block: False


@dataclass(frozen=True)
class Rule:
    """A transition: when it may happen, and what it changes."""

    name: str
    guard: Callable[[Logic, State, Move], Truth]
    effect: Callable[[Logic, State, Move], State]


@dataclass(frozen=True)
class Conjunct:
    """One part of the invariant."""

    sentence: str
    holds: Callable[[Logic, State], Truth]


def _numbered(logic: Logic, state: State) -> Truth:
    def right(holder: Thing, block: Thing) -> Truth:
        number = state.number(holder, block)
        counted = logic.both(number >= 1, number <= state.ref(block), state.at(block, number) == holder)
        return logic.implies(state.holds(holder, block), counted)

    return logic.every("holder", lambda holder: logic.every("block", lambda block: right(holder, block)))


def _counted(logic: Logic, state: State) -> Truth:
    def right(block: Thing, number: Thing) -> Truth:
        holder = state.at(block, number)
        held = logic.both(state.holds(holder, block), state.number(holder, block) == number)
        return logic.implies(logic.both(number >= 1, number <= state.ref(block)), held)

    return logic.every("block", lambda block: logic.every("number", lambda number: right(block, number)))


def _natural(logic: Logic, state: State) -> Truth:
    return logic.every("block", lambda block: state.ref(block) >= 0)


def _held_not_free(logic: Logic, state: State) -> Truth:
    return logic.every("block", lambda block: logic.implies(state.ref(block) >= 1, state.queued(block) == 0))


def _free_once(logic: Logic, state: State) -> Truth:
    def right(block: Thing) -> Truth:
        unheld = logic.both(logic.negate(block == state.null), state.ref(block) == 0)
        return logic.implies(unheld, state.queued(block) == 1)

    return logic.every("block", right)


def _null_out(logic: Logic, state: State) -> Truth:
    idle = logic.both(state.ref(state.null) == 0, state.queued(state.null) == 0)
    return logic.both(idle, logic.negate(state.keyed(state.null)))


def _key_filled(logic: Logic, state: State) -> Truth:
    return logic.every("block", lambda block: logic.implies(state.keyed(block), state.filled(block)))


def _touched_held(logic: Logic, state: State) -> Truth:
    def right(step: Thing, block: Thing) -> Truth:
        return logic.implies(state.touched(step, block), state.ref(block) >= 1)

    return logic.every("step", lambda step: logic.every("block", lambda block: right(step, block)))


def _touched_flying(logic: Logic, state: State) -> Truth:
    def right(step: Thing, block: Thing) -> Truth:
        return logic.implies(state.touched(step, block), state.flying(step))

    return logic.every("step", lambda step: logic.every("block", lambda block: right(step, block)))


CONJUNCTS: tuple[Conjunct, ...] = (
    Conjunct("every holder has a number up to the reference count, and no two the same", _numbered),
    Conjunct("every number up to the reference count is a holder's", _counted),
    Conjunct("a reference count is never negative", _natural),
    Conjunct("a held block is not in the free queue", _held_not_free),
    Conjunct("a usable block that nobody holds is in the free queue exactly once", _free_once),
    Conjunct("the null block is never held, free or found", _null_out),
    Conjunct("a block that can be found has content, written or promised", _key_filled),
    Conjunct("a block that a step in flight touches is held", _touched_held),
    Conjunct("a step that is not in flight touches nothing", _touched_flying),
)


def always(logic: Logic, state: State) -> Truth:
    """The invariant."""
    return logic.both(*(conjunct.holds(logic, state) for conjunct in CONJUNCTS))
