"""Which requests arrive: prompts that share prefixes, and extras that differ in one detail."""

from dataclasses import dataclass, field
from typing import Final

from msgspec.structs import replace

from kvproof.fuzz.choices import Choices
from kvproof.fuzz.spelling import PLAIN, Spelling
from kvproof.spec import operations as op
from kvproof.spec.state import State
from kvproof.spec.vocabulary import CacheConfig

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


def base(family: int, length: int, size: int) -> list[int]:
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


def draw_prompt(world: World, c: Choices) -> tuple[tuple[int, ...], op.Extras]:
    """Most prompts share a prefix with an earlier one."""
    if c.chance(12) and (grown := _grown(world, c)):
        return grown
    length = _length(world, c)
    if world.recent and c.chance(55):
        tokens, extras = c.pick(world.recent)
        if len(extras.items) > 1 and not world.can("spans") and c.chance(50):
            return tokens, _twisted(world, c, extras, len(tokens))
        length = max(length, _last_special(extras))
        rest = base(c.below(3), length, world.config.block_size)
        tokens = (*tokens[:length], *rest[len(tokens) : length])
        if c.chance(20):
            extras = _extras(world, c, len(tokens))
        elif c.chance(60 if extras != op.Extras() else 35):
            if extras == op.Extras():
                tokens = _retold(world, c, tokens)
            extras = _twisted(world, c, extras, len(tokens))
    else:
        tokens = tuple(base(c.below(3), length, world.config.block_size))
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


def free_names(world: World) -> list[str]:
    requests, count = world.state.requests, max(6, world.config.max_requests + 3)
    return [name for name in NAMES[:count] if name not in requests or requests[name].gone]


def draw_submit(world: World, c: Choices) -> op.Submit | None:
    names = free_names(world)
    if not names:
        return None
    tokens, extras = draw_prompt(world, c)
    world.recent = [*world.recent[-5:], (tokens, extras)]
    limit = None if c.chance(80) else min(world.config.max_len, len(tokens) + c.below(4))
    options = op.Options(read_cache=c.chance(93) or not world.can("opt_out"), max_len=limit)
    return spelled(world, c.pick(names), tokens, extras, options)


def spelled(
    world: World, name: str, tokens: op.Tokens, extras: op.Extras, options: op.Options = _AS_ALWAYS
) -> op.Submit:
    """A request with its extras as this history spells them."""
    world.told[name] = extras
    return op.Submit(name, tokens, world.spelling.of(extras), options)
