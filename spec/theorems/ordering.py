"""Ordering: touching all hits before allocating never evicts a hit, whatever the free queue.

A plan is the order of its phases. The queue is a set of blocks with distinct places; popping the
head again and again removes those below some place, which `goals` proves by induction.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import z3

from kvproof.spec.theorems.logic import Logic, Relation, Thing, Truth
from kvproof.spec.theorems.quantified import Bounded, Quantified
from kvproof.spec.theorems.symbolic import Term, solver
from kvproof.spec.theorems.verdict import Control, Goal, Theorem

Plan = tuple[str, ...]
"""Phases in order: "touch" all hits, "touch_first" of them, or "pop" a number of blocks."""

TWO_PHASE: Plan = ("touch", "pop")
LARGEST = 3


@dataclass(frozen=True)
class Pool:
    """A free queue as places, and the hits of the request that is admitted."""

    queued: Relation
    place: Relation
    hit: Relation
    first: Thing


def touched(logic: Logic, pool: Pool, queued: Relation, first_only: bool) -> Relation:
    """The queue after a touch: without the hits, or without the first of them."""

    def still(block: Thing) -> Truth:
        leaves = block == pool.first if first_only else pool.hit(block)
        return logic.both(queued(block), logic.negate(leaves))

    return still


def popped(logic: Logic, pool: Pool, queued: Relation, below: Thing) -> Relation:
    """The queue after pops: without the blocks whose place is below this one."""
    return lambda block: logic.both(queued(block), pool.place(block) >= below)


def is_head(logic: Logic, pool: Pool, queued: Relation, block: Thing) -> Truth:
    """Whether the block is the queue's first."""

    def behind(other: Thing) -> Truth:
        return logic.implies(queued(other), pool.place(other) >= pool.place(block))

    return logic.both(queued(block), logic.every("block", behind))


def distinct(logic: Logic, pool: Pool) -> Truth:
    """No two blocks of the queue have one place, and the first hit is a hit."""

    def apart(one: Thing, two: Thing) -> Truth:
        same = logic.both(pool.queued(one), pool.queued(two), pool.place(one) == pool.place(two))
        return logic.implies(same, one == two)

    places = logic.every("block", lambda one: logic.every("block", lambda two: apart(one, two)))
    return logic.both(places, pool.hit(pool.first))


Claim = tuple[str, list[Truth], Truth]


def claims(logic: Logic, plan: Plan, pool: Pool, below: Thing, head: Thing) -> list[Claim]:
    """What each pop of the plan must keep to: (name, assumptions, claim)."""
    queued, found = pool.queued, list[Claim]()
    for phase in plan:
        if phase != "pop":
            queued = touched(logic, pool, queued, phase == "touch_first")
            continue
        rest = popped(logic, pool, queued, below)
        given = [distinct(logic, pool), is_head(logic, pool, rest, head)]
        after = popped(logic, pool, queued, pool.place(head) + 1)

        def agrees(block: Thing, rest: Relation = rest, after: Relation = after) -> Truth:
            return after(block) == logic.both(rest(block), logic.negate(block == head))

        found.append(("a pop removes the head and leaves the rest", given, logic.every("block", agrees)))
        found.append(("the head is no hit", given, logic.negate(pool.hit(head))))
        queued = rest
    return found


def any_pool(logic: Quantified | Bounded) -> tuple[Pool, Thing, Thing]:
    """A pool, a place and a block of which nothing is known."""
    queued, hit = (logic.relation(name, "block", "truth") for name in ("queued", "hit"))
    pool = Pool(queued, logic.relation("place", "block", "number"), hit, logic.constant("first", "block"))
    return pool, logic.constant("below", "number"), logic.constant("head", "block")


def goals(plan: Plan) -> list[Goal]:
    """For any queue, any hits, after any number of pops."""
    logic, small = Quantified(), Bounded(2)
    stated = claims(logic, plan, *any_pool(logic))
    witnesses = [given for _, given, _ in claims(small, plan, *any_pool(small))]
    pairs = zip(stated, witnesses, strict=True)
    return [Goal(name, tuple(given), claim, tuple(witness)) for (name, given, claim), witness in pairs]


@dataclass(frozen=True)
class Queue:
    """A counterexample in plain values: the queue from its head, the hits, how many are popped."""

    queue: tuple[int, ...]
    hits: tuple[int, ...]
    pops: int


def models(plan: Plan) -> Iterator[Queue]:
    """Queues of up to four blocks whose hits are popped, the smallest first."""
    for size in range(1, LARGEST + 1):
        logic = Bounded(size)
        pool, below, head = any_pool(logic)
        for _, given, claim in claims(logic, plan, pool, below, head):
            asked = solver(*given, z3.Not(claim))
            if asked.check() == z3.sat:
                yield _queue(logic, asked.model(), pool, head)


def _queue(logic: Bounded, model: Term, pool: Pool, head: Thing) -> Queue:
    queued, place, hit = (
        logic.table(model, relation, "block") for relation in (pool.queued, pool.place, pool.hit)
    )
    order = sorted((block for (block,) in queued if queued[block,]), key=lambda block: int(place[block,]))
    first = logic.value(model, pool.first)
    hits = sorted((block for (block,) in hit if hit[block,]), key=lambda block: (block != first, block))
    # Popping everything reaches the head that the model names.
    return Queue(tuple(order), tuple(hits), len(order))


def evicted(plan: Plan, start: Queue) -> list[int]:
    """Plain Python: the hits that the plan hands out as new blocks."""
    queue, taken = list(start.queue), list[int]()
    run: dict[str, Callable[[], None]] = {
        "touch": lambda: _remove(queue, start.hits),
        "touch_first": lambda: _remove(queue, start.hits[:1]),
        "pop": lambda: taken.extend(queue.pop(0) for _ in range(min(start.pops, len(queue)))),
    }
    for phase in plan:
        run[phase]()
    return [block for block in taken if block in start.hits]


def _remove(queue: list[int], blocks: tuple[int, ...]) -> None:
    queue[:] = [block for block in queue if block not in blocks]


def theorem() -> Theorem[Plan]:
    """The theorem about the two-phase order."""
    return Theorem(
        id="ordering",
        title="Touching all hits before allocating never evicts a hit, whatever the free queue.",
        bound="any queue",
        subject=TWO_PHASE,
        goals=goals,
        models=models,
        disagrees=lambda plan, queue: bool(evicted(plan, queue)),
        controls=(
            Control("allocate before touch", ("pop", "touch")),
            Control("touch the first hit only", ("touch_first", "pop")),
        ),
    )
