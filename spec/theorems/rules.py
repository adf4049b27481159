"""The transitions of the abstract machine: what an allocator may do to the ownership of blocks.

Each is a guard, when it may happen, and an effect, whose docstring is its sentence.
"""

from dataclasses import replace

from kvproof.spec.theorems.abstract import Move, Rule, State
from kvproof.spec.theorems.logic import Logic, Relation, Thing, Truth, update


def _untouched(logic: Logic, state: State, block: Thing) -> Truth:
    return logic.every("step", lambda step: logic.negate(state.touched(step, block)))


def _set(logic: Logic, relation: Relation, value: Thing, *place: Thing) -> Relation:
    return update(logic, relation, place, value)


def _first_holder(logic: Logic, state: State, move: Move) -> State:
    """The block leaves the queue with one holder."""
    holder, block = move.holder, move.block
    return replace(
        state,
        holds=_set(logic, state.holds, True, holder, block),
        number=_set(logic, state.number, 1, holder, block),
        at=_set(logic, state.at, holder, block, 1),
        ref=_set(logic, state.ref, 1, block),
        queued=_set(logic, state.queued, state.queued(block) - 1, block),
    )


def take_guard(logic: Logic, state: State, move: Move) -> Truth:
    return logic.both(state.queued(move.block) >= 1, logic.negate(state.ended(move.holder)))


def take(logic: Logic, state: State, move: Move) -> State:
    """A free block is handed out: its key goes first, its content is void."""
    state = _first_holder(logic, state, move)
    keyed, filled = (_set(logic, old, False, move.block) for old in (state.keyed, state.filled))
    return replace(state, keyed=keyed, filled=filled)


def revive_guard(logic: Logic, state: State, move: Move) -> Truth:
    return logic.both(take_guard(logic, state, move), state.keyed(move.block))


def revive(logic: Logic, state: State, move: Move) -> State:
    """A hit that lies in the free queue is touched: key and content stay."""
    return _first_holder(logic, state, move)


def share_guard(logic: Logic, state: State, move: Move) -> Truth:
    fresh = logic.negate(state.holds(move.holder, move.block))
    alive = logic.negate(state.ended(move.holder))
    return logic.both(state.ref(move.block) >= 1, state.keyed(move.block), fresh, alive)


def share(logic: Logic, state: State, move: Move) -> State:
    """A hit that others hold is touched."""
    holder, block, count = move.holder, move.block, state.ref(move.block) + 1
    return replace(
        state,
        holds=_set(logic, state.holds, True, holder, block),
        number=_set(logic, state.number, count, holder, block),
        at=_set(logic, state.at, holder, block, count),
        ref=_set(logic, state.ref, count, block),
    )


def fill_guard(logic: Logic, state: State, move: Move) -> Truth:
    alone = logic.both(state.holds(move.holder, move.block), state.ref(move.block) == 1)
    return logic.both(alone, logic.negate(state.ended(move.holder)), logic.negate(state.keyed(move.block)))


def fill(logic: Logic, state: State, move: Move) -> State:
    """The only holder promises or writes the block's content."""
    return replace(state, filled=_set(logic, state.filled, True, move.block))


def void_guard(logic: Logic, state: State, move: Move) -> Truth:
    return logic.negate(state.keyed(move.block))


def void(logic: Logic, state: State, move: Move) -> State:
    """A promise comes to nothing; the key went before."""
    return replace(state, filled=_set(logic, state.filled, False, move.block))


def publish_guard(logic: Logic, state: State, move: Move) -> Truth:
    owner = logic.both(state.holds(move.holder, move.block), logic.negate(state.ended(move.holder)))
    return logic.both(owner, state.filled(move.block))


def publish(logic: Logic, state: State, move: Move) -> State:
    """A living holder lets the block be found."""
    return replace(state, keyed=_set(logic, state.keyed, True, move.block))


def withdraw_guard(logic: Logic, state: State, move: Move) -> Truth:
    return state.keyed(move.block)


def withdraw(logic: Logic, state: State, move: Move) -> State:
    """The block is found no more."""
    return replace(state, keyed=_set(logic, state.keyed, False, move.block))


def release_shared_guard(logic: Logic, state: State, move: Move) -> Truth:
    return logic.both(state.holds(move.holder, move.block), state.ref(move.block) >= 2)


def release_shared(logic: Logic, state: State, move: Move) -> State:
    """One of several holders lets go; in the ghost numbering the last one moves into the gap."""
    holder, block = move.holder, move.block
    gap, last = state.number(holder, block), state.at(block, state.ref(block))
    return replace(
        state,
        holds=_set(logic, state.holds, False, holder, block),
        number=_set(logic, state.number, gap, last, block),
        at=_set(logic, state.at, last, block, gap),
        ref=_set(logic, state.ref, state.ref(block) - 1, block),
    )


def release_last_guard(logic: Logic, state: State, move: Move) -> Truth:
    alone = logic.both(state.holds(move.holder, move.block), state.ref(move.block) == 1)
    return logic.both(alone, _untouched(logic, state, move.block))


def release_last(logic: Logic, state: State, move: Move) -> State:
    """The only holder lets go and nothing in flight touches the block: it is free, key and content stay."""
    return replace(
        state,
        holds=_set(logic, state.holds, False, move.holder, move.block),
        ref=_set(logic, state.ref, 0, move.block),
        queued=_set(logic, state.queued, state.queued(move.block) + 1, move.block),
    )


def dispatch_guard(logic: Logic, state: State, move: Move) -> Truth:
    def held(block: Thing) -> Truth:
        def lives(holder: Thing) -> Truth:
            return logic.both(state.holds(holder, block), logic.negate(state.ended(holder)))

        return logic.implies(move.reads(block), logic.some("holder", lives))

    return logic.both(logic.negate(state.flying(move.step)), logic.every("block", held))


def dispatch(logic: Logic, state: State, move: Move) -> State:
    """A step leaves for the device; it touches blocks of living holders only."""

    def touched(step: Thing, block: Thing) -> Truth:
        return logic.choose(step == move.step, move.reads(block), state.touched(step, block))

    return replace(state, touched=touched, flying=_set(logic, state.flying, True, move.step))


def retire_guard(logic: Logic, state: State, move: Move) -> Truth:
    return state.flying(move.step)


def retire(logic: Logic, state: State, move: Move) -> State:
    """A step has executed and touches nothing any more."""

    def touched(step: Thing, block: Thing) -> Truth:
        return logic.both(logic.negate(step == move.step), state.touched(step, block))

    return replace(state, touched=touched, flying=_set(logic, state.flying, False, move.step))


def defer_guard(logic: Logic, state: State, move: Move) -> Truth:
    return logic.negate(state.ended(move.holder))


def defer(logic: Logic, state: State, move: Move) -> State:
    """A life ends; until its fence it holds what it held, and does nothing else."""
    return replace(state, ended=_set(logic, state.ended, True, move.holder))


def reset_guard(logic: Logic, state: State, move: Move) -> Truth:
    return logic.every("block", lambda block: state.ref(block) == 0)


def reset(logic: Logic, state: State, move: Move) -> State:
    """Nothing is held, and no block is found any more."""
    return replace(state, keyed=lambda block: logic.either())


RULES: tuple[Rule, ...] = (
    Rule("take", take_guard, take),
    Rule("revive", revive_guard, revive),
    Rule("share", share_guard, share),
    Rule("fill", fill_guard, fill),
    Rule("void", void_guard, void),
    Rule("publish", publish_guard, publish),
    Rule("withdraw", withdraw_guard, withdraw),
    Rule("release_shared", release_shared_guard, release_shared),
    Rule("release_last", release_last_guard, release_last),
    Rule("dispatch", dispatch_guard, dispatch),
    Rule("retire", retire_guard, retire),
    Rule("defer", defer_guard, defer),
    Rule("reset", reset_guard, reset),
)


# --- wrong variants -----------------------------------------------------------------------


def unshared_guard(logic: Logic, state: State, move: Move) -> Truth:
    return logic.both(state.holds(move.holder, move.block), _untouched(logic, state, move.block))


def hasty_guard(logic: Logic, state: State, move: Move) -> Truth:
    return logic.both(state.holds(move.holder, move.block), state.ref(move.block) == 1)


def stale_take(logic: Logic, state: State, move: Move) -> State:
    """The block is handed out with its content void and its key still in the index."""
    return replace(take(logic, state, move), keyed=state.keyed)


def freeing_share(logic: Logic, state: State, move: Move) -> State:
    """One of several holders lets go, and the block enters the free queue all the same."""
    freed = _set(logic, state.queued, state.queued(move.block) + 1, move.block)
    return replace(release_shared(logic, state, move), queued=freed)


def _with(rule: Rule) -> tuple[Rule, ...]:
    """The rules with one replaced by this one of the same name."""
    return tuple(rule if each.name == rule.name else each for each in RULES)


WRONG: dict[str, tuple[Rule, ...]] = {
    "a shared block is freed by its first holder": _with(Rule("release_last", unshared_guard, release_last)),
    "a block is freed while a step in flight touches it": _with(
        Rule("release_last", hasty_guard, release_last)
    ),
    "a block is handed out with its old key": _with(Rule("take", take_guard, stale_take)),
    "a shared block is queued by each release": _with(
        Rule("release_shared", release_shared_guard, freeing_share)
    ),
}
"""Rules that must not keep the invariant, by what is wrong with them."""
