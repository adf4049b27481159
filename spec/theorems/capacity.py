"""Capacity: the predicted demand is what two-phase execution takes, and no grant runs dry.

The execution is definitional. First the evictable hits leave the free queue; then blocks are
popped one at a time while the row has no slot for some position that needs one. The loop is
unbounded: its body is `pop`, its condition `short`, and it is cut by the invariant in `goals`.
"""

from collections.abc import Mapping
from typing import NamedTuple

from kvproof.spec.theorems.functions import Functions, Taken
from kvproof.spec.theorems.lemmas import lemma_goals, monotone_product
from kvproof.spec.theorems.symbolic import Number, Scope, SymBool, all_of, integers
from kvproof.spec.theorems.verdict import Control, Goal, Theorem, boxed_models, raises_nothing


class Walk(NamedTuple):
    """Where execution stands: blocks in the row, blocks left in the queue, blocks popped."""

    row: Number
    left: Number
    popped: Number


def touch(owned: Number, hits: Number, evictable: Number, free: Number) -> Walk:
    """Phase one: hits join the row, and those that lay in the free queue leave it."""
    return Walk(owned + hits, free - evictable, 0)


def short(walk: Walk, slots: Number, block_size: Number) -> bool:
    """Whether the row lacks a slot for some position below `slots`."""
    return bool(walk.row * block_size < slots)


def pop(walk: Walk) -> Walk:
    """Phase two, once: the queue's head joins the row."""
    return Walk(walk.row + 1, walk.left - 1, walk.popped + 1)


class Execution(NamedTuple):
    """What came of an execution: whether it completed, and what it took from the queue."""

    complete: bool
    taken: int


def execute(numbers: Mapping[str, int]) -> Execution:
    """Plain Python, counting one token and one block at a time; no formula."""
    scheduled = numbers["computed"]
    while scheduled < numbers["known"] and scheduled < numbers["computed"] + numbers["num_new"]:
        scheduled += 1
    slots = scheduled
    while slots < numbers["max_len"] and slots < scheduled + numbers["lookahead"]:
        slots += 1
    walk = touch(numbers["owned"], numbers["hits"], numbers["evictable"], numbers["free"])
    while short(walk, slots, numbers["block_size"]):
        if walk.left == 0:
            return Execution(False, numbers["evictable"] + walk.popped)
        walk = pop(walk)
    return Execution(True, numbers["evictable"] + walk.popped)


def disagrees(functions: Functions, numbers: Mapping[str, int]) -> bool:
    """Whether prediction and execution differ on these numbers."""
    scheduled = functions.scheduled_tokens(numbers["computed"], numbers["num_new"], numbers["known"])
    slots = functions.slots_end(scheduled, numbers["lookahead"], numbers["max_len"])
    sizes = (numbers["block_size"], numbers["owned"], numbers["hits"], numbers["evictable"])
    want = functions.demand(slots, *sizes)
    run = execute(numbers)
    granted = bool(functions.fits(want, numbers["free"]))
    return granted != run.complete or (run.complete and want.fresh + want.evictable != run.taken)


def goals(functions: Functions) -> list[Goal]:
    """Boundaries, then the loop: invariant initially, kept, and what it says at both exits."""
    sizes = block_size, owned, hits, evictable, free = integers("block_size owned hits evictable free")
    limits = computed, num_new, known = integers("computed num_new known")
    ends = lookahead, max_len = integers("lookahead max_len")
    position, popped = integers("position popped")
    inputs = [*sizes, *limits, *ends, position, popped]
    scope = Scope.assuming(
        all_of(block_size >= 1, owned >= 0, evictable >= 0, evictable <= hits, evictable <= free),
        all_of(computed >= 0, computed <= known, known <= max_len, num_new >= 0, lookahead >= 0),
    )
    scheduled = scope.call(functions.scheduled_tokens, computed, num_new, known)
    slots = scope.call(functions.slots_end, scheduled, lookahead, max_len)
    want = scope.call(functions.demand, slots, block_size, owned, hits, evictable)
    granted = scope.call(functions.fits, want, free)
    start = touch(owned, hits, evictable, free)
    walk = Walk(owned + hits + popped, free - evictable - popped, popped)
    lacks = scope.call(short, walk, slots, block_size)
    after = pop(walk)

    def invariant(at: Walk) -> SymBool:
        """The row grew by what was popped, the queue shrank by it, and it is within the prediction."""
        return all_of(
            at.row == owned + hits + at.popped,
            at.left == free - evictable - at.popped,
            all_of(at.left >= 0, at.popped >= 0, at.popped <= want.fresh),
        )

    last = owned + hits + want.fresh
    enough = last * block_size >= slots
    spare = (want.fresh == 0) | ((last - 1) * block_size < slots)
    inside = all_of(invariant(walk), lacks)
    done = all_of(invariant(walk), ~lacks)
    not_over = monotone_product(last, walk.row, block_size)
    not_under = monotone_product(walk.row, last - 1, block_size)

    def goal(name: str, claim: SymBool, *uses: SymBool) -> Goal:
        return Goal.of(name, scope, inputs, claim, *uses)

    within_grant = (position < known) & (position < computed + num_new)
    within_slots = (position < max_len) & (position < scheduled + lookahead)
    loop = (enough, spare, not_over, not_under)
    return [
        *lemma_goals(),
        raises_nothing(scope, inputs),
        goal(
            "tokens: the known ones within the grant",
            (position < scheduled) == within_grant,
            position >= computed,
        ),
        goal("slots: for those and the drafts", (position < slots) == within_slots, position >= scheduled),
        goal("demand: enough", enough),
        goal("demand: none to spare", spare),
        goal("invariant: after the touch", invariant(start), *loop),
        goal("invariant: kept by a pop", invariant(after), inside, walk.left > 0, *loop),
        goal("progress: a pop is a predicted one", after.popped <= want.fresh, inside, *loop),
        goal(
            "complete: took what was predicted",
            popped + evictable == want.fresh + want.evictable,
            done,
            *loop,
        ),
        goal("complete: was granted", granted, done, *loop),
        goal("dry: was refused", ~granted, inside, walk.left == 0, *loop),
    ]


# --- wrong variants -----------------------------------------------------------------------


def _rows(slots: Number, block_size: Number, owned: Number) -> Number:
    """The right number of new blocks, for variants that are wrong elsewhere."""
    need = -(-slots // block_size) - owned
    return need if need > 0 else 0


def hits_omitted(slots: Number, block_size: Number, owned: Number, hits: Number, evictable: Number) -> Taken:
    """Evictable hits are thought to cost nothing."""
    return Taken(_rows(slots, block_size, owned + hits), 0)


def slack_forgotten(
    slots: Number, block_size: Number, owned: Number, hits: Number, evictable: Number
) -> Taken:
    """A block more than the full ones, also where the last block is exactly full."""
    need = slots // block_size + 1 - owned - hits
    return Taken(need if need > 0 else 0, evictable)


def one_block_free(
    slots: Number, block_size: Number, owned: Number, hits: Number, evictable: Number
) -> Taken:
    """Exactly one block of tokens is thought to need none: an `==` branch must be seen."""
    if slots == block_size:
        return Taken(0, evictable)
    return Taken(_rows(slots, block_size, owned + hits), evictable)


def full_refused(wanted: Taken, free: Number) -> Number:
    """The last block is never given."""
    return wanted.fresh + wanted.evictable < free


def limit_ignored(scheduled: Number, lookahead: Number, max_len: Number) -> Number:
    """Drafts get slots beyond the longest request."""
    return scheduled + lookahead


def theorem(functions: Functions) -> Theorem[Functions]:
    """The theorem about these functions."""
    return Theorem(
        id="capacity",
        title=(
            "The predicted demand, with evictable hits, lookahead and tail slack, is what two-phase "
            "execution takes, and allocation is refused exactly when execution would run dry."
        ),
        bound="all sizes",
        subject=functions,
        goals=goals,
        models=lambda subject: boxed_models(goals(subject)),
        disagrees=disagrees,
        controls=(
            Control("evictable hits omitted", functions._replace(demand=hits_omitted)),
            Control("tail slack forgotten", functions._replace(demand=slack_forgotten)),
            Control("== branch for one block", functions._replace(demand=one_block_free)),
            Control("last block refused", functions._replace(fits=full_refused)),
            Control("limit ignored", functions._replace(slots_end=limit_ignored)),
        ),
    )
