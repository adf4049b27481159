"""The rule table: what an engine around an allocator does, in a hurry and near the edges.

Both fuzz engines are derived from it. A rule looks at the state that the history implies
and yields operations; it sees the state after each of them. Rules are macros (submit, then
admit; decode a few rounds; drain) because single operations seldom meet the situations
that matter, and their weights are how often they are listed.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from msgspec.structs import replace

from kvproof.fuzz.choices import Choices
from kvproof.fuzz.spelling import PLAIN, Spelling
from kvproof.spec import operations as op
from kvproof.spec.state import Life, State
from kvproof.spec.vocabulary import CacheConfig, Capabilities

NAMES: Final = tuple("abcdefghijkl")
"""Few ids, so that they are reused, also while a step of their old life is in flight."""

_AS_ALWAYS: Final = op.Options()
_SAME: Final = "x"
"""One string for every key field: only the field may tell two prefixes apart."""


@dataclass
class World:
    """What rules know: the state, and the latest prompts, to be shared by later ones."""

    config: CacheConfig
    state: State
    spelling: Spelling = PLAIN
    recent: list[tuple[tuple[int, ...], op.Extras]] = field(default_factory=list)
    told: dict[str, op.Extras] = field(default_factory=dict)
    """Request → its extras before they were spelled."""
    fresh: int = 1000

    def can(self, name: str) -> bool:
        """Whether the allocator has an optional operation or feature."""
        return self.state.capabilities.has(name)


Rule = Callable[[World, Choices], Iterator[op.AnyOperation]]


# --- configurations and prompts -----------------------------------------------------------


def draw_config(c: Choices, capabilities: Capabilities) -> CacheConfig:
    """A small pool: mostly 3 to 12 blocks, so that everything that can collide does."""
    rare = c.aside()
    blocks = c.between(3, 12)
    size = c.pick(capabilities.block_sizes or (1, 2, 2, 3, 4, 4, 4))
    config = CacheConfig(
        blocks=blocks,
        block_size=size,
        prefix_caching=c.chance(90),
        depth=min(c.pick((1, 2, 2, 3)), capabilities.depth),
        max_requests=c.between(2, 5),
        max_len=size * c.between(3, blocks + 2) + c.below(size),
        hash=c.pick(("sha256", "sha256", "blake2b")),
    )
    return _seldom(rare, config, capabilities)


def _seldom(c: Choices, config: CacheConfig, capabilities: Capabilities) -> CacheConfig:
    """At times a configuration that few tests have.

    Without events; of a block or two; of larger blocks; of more blocks and requests. Nothing
    declares the smallest pool of an allocator, so one so small is for those who claim the policy: they
    claim it for every size.
    """
    if c.chance(4) and capabilities.has("events"):
        config = replace(config, events=False)
    if c.chance(3) and capabilities.policy:
        config = replace(config, blocks=c.between(1, 2))
    if c.chance(4) and not capabilities.block_sizes:
        size = c.pick((8, 16))
        config = replace(config, block_size=size, max_len=size * c.between(2, 5) + c.below(size))
    if c.chance(4):
        blocks = c.between(13, 32)
        longest = config.block_size * c.between(3, blocks + 2)
        config = replace(config, blocks=blocks, max_requests=c.between(6, 9), max_len=longest)
    return config


def _base(family: int, length: int, size: int) -> list[int]:
    """A token sequence per family; all families begin alike."""
    return [5 * i % 7 + (10 * family if i >= 2 * size else 0) for i in range(length)]


def _length(world: World, c: Choices) -> int:
    """`k·B−1`, `k·B` or `k·B+1` tokens."""
    size = world.config.block_size
    most = max(1, world.config.max_len // size)
    length = size * c.between(1, min(most, 4 if c.chance(75) else most)) + c.between(-1, 1)
    return max(1, min(length, world.config.max_len))


_IDS: Final = tuple("xyzabcdefghijp@")

_NEEDS: Final = {0: "adapters", 1: "salts", 2: "items", 3: "items", 4: "embeddings"}


def _extras(world: World, c: Choices, length: int) -> op.Extras:
    kind = c.below(12)
    if not world.can(_NEEDS.get(kind, "")):
        return op.Extras()
    match kind:
        case 0:
            return op.Extras(adapter=op.Adapter(c.pick((_SAME, _SAME, "y")), c.below(2), c.pick(("", _SAME))))
        case 1:
            return op.Extras(salt=c.pick((_SAME, _SAME * 2, _SAME.upper())))
        case 2 | 3:
            return op.Extras(items=_items(world, c, length))
        case 4:
            items = _items(world, c, length) if c.chance(40) and world.can("items") else ()
            taken = {place for item in items for place in range(item.offset, item.offset + item.length)}
            places = sorted({c.below(length) for _ in range(c.between(1, 3))} - taken)
            return op.Extras(
                items=items, embeddings=tuple(op.Embedding(place, c.below(2)) for place in places)
            )
        case _:
            return op.Extras()


def _items(world: World, c: Choices, length: int) -> tuple[op.Item, ...]:
    """One item across a block's edge, or two close to each other, often in the last block."""
    size = world.config.block_size
    edge = length // size * size if c.chance(30) else size * c.below(3)
    offset = max(0, min(edge + c.between(-1, 1), length - 1))
    items: list[op.Item] = []
    short = [name for name in _IDS if _span(name, size) == 1]
    if short and length % size > 1 and c.chance(50):
        # Two items of one token each, in a block that the prompt leaves open.
        start = length // size * size
        return op.Item(c.pick(short), start, 1), op.Item(c.pick(short), start + 1, 1)
    first = c.pick((_SAME, "y", 2 * _SAME))
    for name in (first, *((c.pick(("z", first)),) if c.chance(50) else ())):
        span = c.between(1, size + 1) if world.can("spans") else _span(name, size)
        if offset + span <= length:
            items.append(op.Item(name, offset, span))
            offset += span + c.below(2)
    return tuple(items)


def _span(name: str, size: int) -> int:
    """The length of an item, where its id decides it."""
    return 1 + sum(map(ord, name)) % size


def _prompt(world: World, c: Choices) -> tuple[tuple[int, ...], op.Extras]:
    """Most prompts share a prefix with an earlier one."""
    if c.chance(12) and (grown := _grown(world, c)):
        return grown
    length = _length(world, c)
    if world.recent and c.chance(55):
        tokens, extras = c.pick(world.recent)
        if len(extras.items) > 1 and not world.can("spans") and c.chance(50):
            return tokens, _twisted(world, c, extras, len(tokens))
        length = max(length, _last_special(extras))
        rest = _base(c.below(3), length, world.config.block_size)
        tokens = (*tokens[:length], *rest[len(tokens) : length])
        if c.chance(20):
            extras = _extras(world, c, len(tokens))
        elif c.chance(60 if extras != op.Extras() else 35):
            if extras == op.Extras():
                tokens = _retold(world, c, tokens)
            extras = _twisted(world, c, extras, len(tokens))
    else:
        tokens = tuple(_base(c.below(3), length, world.config.block_size))
        extras = _extras(world, c, length)
    return tokens, extras


def _grown(world: World, c: Choices) -> tuple[tuple[int, ...], op.Extras] | None:
    """A former request's prompt with the tokens sampled for it: those blocks filled one token at a time."""
    names = list(world.state.requests)
    if not names:
        return None
    # Requests with items count thrice: how their blocks were filled may show in the keys.
    names += 2 * [name for name in names if world.state.requests[name].inputs.extras.items]
    name = c.pick(names)
    request = world.state.requests[name]
    path = request.paths[0]
    tokens = world.state.claims.tokens_back(path.at(path.length - 1), path.length)
    extras = world.told.get(name, request.inputs.extras)
    return tuple(tokens), _twisted(world, c, extras, len(tokens)) if c.chance(40) else extras


def _retold(world: World, c: Choices, tokens: tuple[int, ...]) -> tuple[int, ...]:
    """The same tokens but for one in the first two blocks: what is behind is equal, its prefix is not."""
    told, place = [*tokens], c.below(min(len(tokens), 2 * world.config.block_size))
    # Other by a little, by what a narrower integer would lose, or by two edits that a linear hash cancels.
    change = c.pick((7, 7, 1 << 8, 1 << 16, 31))
    told[place] += change
    if change == 31 and place + 1 < len(told) and told[place + 1] > 0:
        told[place + 1] -= 1
    return tuple(told)


def _twisted(world: World, c: Choices, extras: op.Extras, length: int) -> op.Extras:
    """The same extras but for one detail: a length, an offset, an identity, a content."""
    if extras.embeddings:
        first, *rest = extras.embeddings
        return replace(extras, embeddings=(replace(first, content=1 - first.content), *rest))
    if extras.items:
        first_item, *others = extras.items
        if first_item.length > 1 and world.can("spans") and c.chance(25):
            return replace(extras, items=(*_split(c, first_item), *others))
        changed = _twisted_item(world, c, first_item, length if not others else others[0].offset)
        return replace(extras, items=(*((changed,) if changed.length else ()), *others))
    if extras.adapter is not None:
        return replace(extras, adapter=_twisted_adapter(c, extras.adapter))
    return replace(extras, salt=extras.salt.swapcase())


def _twisted_adapter(c: Choices, adapter: op.Adapter) -> op.Adapter:
    match c.below(3):
        case 0:
            return replace(adapter, id=1 - adapter.id)
        case 1:
            return replace(adapter, name="y" if adapter.name == _SAME else _SAME)
        case _:
            return replace(adapter, path="" if adapter.path else _SAME)


def _split(c: Choices, item: op.Item) -> tuple[op.Item, op.Item]:
    """Two items with one id where there was one."""
    first = c.between(1, item.length - 1)
    return replace(item, length=first), op.Item(item.id, item.offset + first, item.length - first)


def _twisted_item(world: World, c: Choices, item: op.Item, end: int) -> op.Item:
    """Another id, another place, or another length where an id may have several."""
    match c.below(3):
        case 0 if world.can("spans"):
            return replace(item, length=item.length + (1 if item.offset + item.length < end else -1))
        case 1:
            return replace(item, offset=max(0, item.offset - 1))
        case _ if world.can("spans"):
            return replace(item, id=item.id + _SAME)
        case _:
            size = world.config.block_size
            same = [name for name in _IDS if name != item.id and _span(name, size) == item.length]
            return replace(item, id=same[0]) if same else item


def _last_special(extras: op.Extras) -> int:
    ends = [item.offset + item.length for item in extras.items]
    return max([0, *ends, *(e.position + 1 for e in extras.embeddings)])


def _free_names(world: World) -> list[str]:
    requests, count = world.state.requests, max(6, world.config.max_requests + 3)
    return [name for name in NAMES[:count] if name not in requests or requests[name].gone]


def _submit(world: World, c: Choices) -> op.Submit | None:
    names = _free_names(world)
    if not names:
        return None
    tokens, extras = _prompt(world, c)
    world.recent = [*world.recent[-5:], (tokens, extras)]
    limit = None if c.chance(80) else min(world.config.max_len, len(tokens) + c.below(4))
    options = op.Options(read_cache=c.chance(93) or not world.can("opt_out"), max_len=limit)
    return _spelled(world, c.pick(names), tokens, extras, options)


def _spelled(
    world: World, name: str, tokens: op.Tokens, extras: op.Extras, options: op.Options = _AS_ALWAYS
) -> op.Submit:
    """A request with its extras as this history spells them."""
    world.told[name] = extras
    return op.Submit(name, tokens, world.spelling.of(extras), options)


# --- rules --------------------------------------------------------------------------------


def arrive(world: World, c: Choices) -> Iterator[op.AnyOperation]:
    """A request arrives and is admitted at once, right after its look-up."""
    submit = _submit(world, c)
    if submit is None:
        return
    yield submit
    if c.chance(20) and world.can("lookup"):
        yield op.Lookup(submit.request)
    if len(world.state.living()) < world.config.max_requests:
        yield _admit(world, c, submit.request)


def submit(world: World, c: Choices) -> Iterator[op.AnyOperation]:
    """A request arrives and waits."""
    operation = _submit(world, c)
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
            token = _base(c.below(3), entry.life.known + 1, world.config.block_size)[-1]
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
    tokens, extras = _prompt(world, c)
    yield _spelled(world, name, tokens, extras)
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
    names = _free_names(world)
    if names and length >= 1:
        world.fresh += length + 1
        yield _spelled(world, names[0], ((world.fresh, length),), op.Extras())
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
