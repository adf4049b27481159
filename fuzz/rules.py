"""The rule table: what an engine around an allocator does, in a hurry and near the edges.

Both fuzz engines are derived from it. A rule looks at the state that the history implies
and yields operations; it sees the state after each of them. Rules are macros (submit, then
admit; decode a few rounds; drain) because single operations seldom meet the situations
that matter, and their weights are how often they are listed.
"""

from collections.abc import Callable, Iterator
from typing import Final

from kvproof.fuzz.choices import Choices
from kvproof.fuzz.prompts import World, base, draw_prompt, draw_submit, free_names, spelled
from kvproof.spec import operations as op
from kvproof.spec.state import Life
from kvproof.spec.vocabulary import Capabilities

Rule = Callable[[World, Choices], Iterator[op.AnyOperation]]


def arrive(world: World, c: Choices) -> Iterator[op.AnyOperation]:
    """A request arrives and is admitted at once, right after its look-up."""
    submit = draw_submit(world, c)
    if submit is None:
        return
    yield submit
    if c.chance(20) and world.can("lookup"):
        yield op.Lookup(submit.request)
    if len(world.state.living()) < world.config.max_requests:
        yield _admit(world, c, submit.request)


def submit(world: World, c: Choices) -> Iterator[op.AnyOperation]:
    """A request arrives and waits."""
    operation = draw_submit(world, c)
    if operation is not None:
        yield operation


def _admit(world: World, c: Choices, name: str) -> op.Admit:
    size = world.config.block_size
    known = world.state.requests[name].paths[0].length
    n = known if c.chance(65) or not world.can("chunks") else c.between(1, known)
    return op.Admit(name, n, _lookahead(world, c, size))


def _lookahead(world: World, c: Choices, size: int) -> int:
    return c.pick((0, 0, 0, 1, size, size + 1)) if world.can("lookahead") else 0


def admit(world: World, c: Choices) -> Iterator[op.AnyOperation]:
    """A waiting request, new or preempted, is admitted."""
    waiting = world.state.waiting()
    if waiting and len(world.state.living()) < world.config.max_requests:
        yield _admit(world, c, c.pick(waiting))


def lookup(world: World, c: Choices) -> Iterator[op.AnyOperation]:
    """A waiting request is looked up, and looked up again."""
    waiting = world.state.waiting()
    if waiting:
        name = c.pick(waiting)
        yield op.Lookup(name)
        yield op.Lookup(name)


def _extendable(world: World) -> list[Life]:
    lives = [life for life in world.state.living() if life.grant is None and life.cap > life.scheduled]
    return lives if world.can("ahead") else [life for life in lives if not life.pending]


def extend(world: World, c: Choices) -> Iterator[op.AnyOperation]:
    """One life goes on: a token, or a chunk of its prompt."""
    lives = _extendable(world)
    if lives:
        yield _extend(world, c, c.pick(lives))


def _extend(world: World, c: Choices, life: Life) -> op.Extend:
    size = world.config.block_size
    whole = c.aside().chance(10) or not world.can("chunks")
    n = life.cap - life.scheduled if whole else c.between(1, size + 1)
    return op.Extend(life.request, n, _lookahead(world, c, size))


def decode(world: World, c: Choices) -> Iterator[op.AnyOperation]:
    """A few rounds in which every life goes on."""
    for _ in range(c.between(1, 4)):
        for life in _extendable(world):
            yield _extend(world, c, life)
        yield from dispatch(world, c)
        if c.chance(70):
            yield from retire(world, c)


def dispatch(world: World, c: Choices) -> Iterator[op.AnyOperation]:
    """The oldest grants go to the device, mostly all of them."""
    state = world.state
    if not state.grants or len(state.steps) >= world.config.depth:
        return
    count = len(state.grants) if c.chance(80) else c.between(1, len(state.grants))
    entries = []
    for life in state.grants[:count]:
        assert life.grant is not None
        ends = life.grant.stop == life.known + life.pending
        room = life.grant.slots - life.grant.stop if ends else 0
        drafts = tuple(c.below(3) for _ in range(c.below(room + 1))) if room else ()
        entries.append(state.entry_of(life, drafts))
    padding = c.below(world.config.max_requests - count + 1) if c.chance(40) else 0
    yield op.Dispatch(state.next_step, tuple(entries), padding)


def retire(world: World, c: Choices) -> Iterator[op.AnyOperation]:
    """The oldest step in flight is done; its tokens often follow a well-trodden path."""
    if not world.state.steps:
        return
    step = world.state.steps[0]
    outputs = []
    for entry in step.entries:
        if not entry.life.ended:
            token = base(c.below(3), entry.life.known + 1, world.config.block_size)[-1]
            sampled = (token if c.chance(75) else c.below(3),) if entry.samples else ()
            outputs.append(op.Output(entry.life.request, sampled))
    yield op.Retire(step.number, tuple(outputs))


def step(world: World, c: Choices) -> Iterator[op.AnyOperation]:
    """Everything granted runs to its end."""
    yield from dispatch(world, c)
    while world.state.steps:
        yield from retire(world, c)


def _endable(world: World) -> list[Life]:
    """Living lives that may end now: not every allocator takes back a grant."""
    living = world.state.living()
    return living if world.can("discards") else [life for life in living if life.grant is None]


def finish(world: World, c: Choices) -> Iterator[op.AnyOperation]:
    """A request is complete."""
    living = _endable(world)
    if living:
        yield op.Finish(c.pick(living).request)


def abort(world: World, c: Choices) -> Iterator[op.AnyOperation]:
    """A client is gone, whatever its request was doing."""
    names = [*world.state.waiting(), *(life.request for life in _endable(world))]
    if names:
        yield op.Abort(c.pick(names))


def preempt(world: World, c: Choices) -> Iterator[op.AnyOperation]:
    """A life gives way; often it comes back at once."""
    living = _endable(world)
    if not living:
        return
    name = c.pick(living).request
    yield op.Preempt(name)
    if c.chance(50) and len(world.state.living()) < world.config.max_requests:
        yield _admit(world, c, name)


def reuse(world: World, c: Choices) -> Iterator[op.AnyOperation]:
    """An id is used again while a step of its old life may be in flight."""
    living = _endable(world)
    if not living:
        return
    name = c.pick(living).request
    yield op.Finish(name) if c.chance(50) or not world.can("abort") else op.Abort(name)
    tokens, extras = draw_prompt(world, c)
    yield spelled(world, name, tokens, extras)
    if len(world.state.living()) < world.config.max_requests:
        yield _admit(world, c, name)


def evict(world: World, c: Choices) -> Iterator[op.AnyOperation]:
    """A living request's block loses its key."""
    lives = [life for life in world.state.living() if life.rows[0]]
    if lives:
        life = c.pick(lives)
        yield op.Evict(life.request, c.between(1, len(life.rows[0])) * world.config.block_size)


def reset(world: World, c: Choices) -> Iterator[op.AnyOperation]:
    """The cache is dropped, or not while it is in use."""
    yield op.Reset()


def drain(world: World, c: Choices) -> Iterator[op.AnyOperation]:
    """Everything ends: steps retire, lives finish, nothing may be left."""
    while world.state.steps or world.state.grants:
        yield from retire(world, c) if world.state.steps else dispatch(world, c)
    for life in world.state.living():
        yield op.Finish(life.request)


def fill(world: World, c: Choices) -> Iterator[op.AnyOperation]:
    """After a drain, one fresh request must be able to take the whole pool."""
    yield from drain(world, c)
    size = world.config.block_size
    length = min(world.config.max_len, world.config.blocks * size)
    names = free_names(world)
    if names and length >= 1:
        world.fresh += length + 1
        yield spelled(world, names[0], ((world.fresh, length),), op.Extras())
        yield op.Admit(names[0], length)
        if c.chance(50) or not world.can("discards"):
            yield from step(world, c)
        yield op.Finish(names[0])


def table(world: World, c: Choices) -> Iterator[op.AnyOperation]:
    """The worker rearranges its batch between two steps."""
    batch = world.state.batch()
    if not batch:
        return
    if len(batch) > 1 and c.chance(50):
        first = c.pick(batch)
        yield op.Table("swap", first, c.pick([name for name in batch if name != first]))
    elif len(world.state.last_batch) < world.config.max_requests:
        yield op.Table("move", c.pick(batch))


def look(world: World, c: Choices) -> Iterator[op.AnyOperation]:
    """A row is read, everything is swept."""
    living = world.state.living()
    if living:
        yield op.Row(c.pick(living).request)
    yield op.Observe()


RULES: Final[tuple[tuple[Rule, int, str], ...]] = (
    (arrive, 8, ""),
    (submit, 1, ""),
    (admit, 5, ""),
    (lookup, 1, "lookup"),
    (extend, 3, ""),
    (decode, 5, ""),
    (dispatch, 4, ""),
    (retire, 4, ""),
    (step, 4, ""),
    (finish, 3, ""),
    (abort, 1, "abort"),
    (preempt, 3, "preempt"),
    (reuse, 2, ""),
    (evict, 1, "evict"),
    (reset, 1, "reset"),
    (drain, 1, ""),
    (fill, 1, ""),
    (table, 2, "table"),
    (look, 1, ""),
)
"""Each rule with its weight and the optional operation that it needs."""


def weighted(capabilities: Capabilities) -> tuple[Rule, ...]:
    """The rules for an allocator, each as often as it weighs."""
    return tuple(
        rule for rule, weight, need in RULES for _ in range(weight) if not need or capabilities.has(need)
    )
