"""I2 Content: whatever is keyed, hit or read holds what its claim demands."""

from kvproof.spec import operations as op
from kvproof.spec.clauses import UNCOMMITTED, Evidence, Moment, cause, clause, describe
from kvproof.spec.content import Runs, first_difference
from kvproof.spec.kinds import kind_of
from kvproof.spec.state import Life


def _wrong(moment: Moment, block: int, found: Runs, wanted: Runs, request: str | None) -> Evidence:
    difference = first_difference(found, wanted)
    assert difference is not None
    offset, got, want = difference
    return Evidence(
        f"block {block} offset {offset} holds {describe(moment.state, want)}",
        f"it holds {describe(moment.state, got)}",
        block,
        request,
    )


def against_keys(moment: Moment, causes: tuple[str, ...], *, new: bool = False) -> Evidence | None:
    """Evidence that a key's block does not hold what the key stands for, for one of `causes`.

    `new` looks only at keys that appeared with this record on a block that a step in flight touches.
    """
    for wrong in moment.wrong_keys():
        if wrong.reason not in causes:
            continue
        fresh = (wrong.entry, wrong.block) in moment.new_keys and moment.state.touching(wrong.block)
        if fresh or not new:
            return _wrong(moment, wrong.block, wrong.found, wrong.wanted, None)
    return None


def against_hits(moment: Moment, causes: tuple[str, ...]) -> Evidence | None:
    """Evidence that a hit block is not valid for the life that hit it, for one of `causes`."""
    life = moment.effects.life
    if life is None or not moment.effects.hits:
        return None
    size = moment.state.config.block_size
    for block, group, index in moment.effects.hits:
        start, stop = kind_of(moment.state.config.groups[group]).reads(life.hit)
        tokens = min(stop - index * size, size)
        if (index + 1) * size <= start or tokens <= 0:
            continue
        wanted = moment.state.wanted(life, group, index, tokens)
        found = moment.state.found(block, tokens, but=life)
        if found != wanted and cause(moment.state, block, found, wanted) in causes:
            return _wrong(moment, block, found, wanted, life.request)
    return None


@clause("KV-I2-standing", 2)
def standing(moment: Moment) -> Evidence | None:
    """A key stands for one claim: whoever is keyed by it, or hits through it, has that claim."""
    if not moment.new_keys and not moment.effects.hits:
        return None
    for group, key, block, place in (*_new_uses(moment), *_hit_uses(moment)):
        claim = moment.keys.claim_of.get((group, key))
        life, in_group, index = place
        end = (index + 1) * moment.state.config.block_size - 1
        if claim is None or end >= life.known:
            continue
        own = life.paths[in_group].at(end)
        if own != claim:
            return Evidence(
                f"the key of {describe(moment.state, own)} differs from that of another prefix",
                f"block {block} has the key of {describe(moment.state, claim)}",
                block,
                life.request,
            )
    return None


_Use = tuple[int, bytes, int, tuple[Life, int, int]]
"""A group, a key in it, a block under the key, and the place in a row that the key is used for."""


def _new_uses(moment: Moment) -> list[_Use]:
    """Keys that appeared on a block, for the row position that the block was handed out for."""
    return [
        (entry.group, entry.key, block, moment.state.places[block])
        for entry, block in moment.new_keys
        if block in moment.state.places
    ]


def _hit_uses(moment: Moment) -> list[_Use]:
    """Keys through which blocks were hit."""
    life = moment.effects.life
    if moment.previous is None or life is None:
        return []
    views = moment.previous.blocks
    return [
        (group, key, block, (life, group, index))
        for block, group, index in moment.effects.hits
        if block in views and (key := views[block].key) is not None
    ]


@clause("KV-I2-key", 2)
def key(moment: Moment) -> Evidence | None:
    """Every key in the index agrees with its block's valid content; a block handed out has lost its keys."""
    if moment.seen is None:
        return None
    if evidence := against_keys(moment, ("stale", "lost")):
        return evidence
    handed = {block for block, _, _ in moment.effects.handed}
    for entry in moment.seen.index if handed else ():
        for block in entry.blocks:
            if block in handed and not _keyed_anew(moment, entry, block):
                name = moment.state.places[block][0].request
                return Evidence(
                    f"no key of before on block {block}, which was handed out for {name}",
                    f"key {entry.key.hex()[:8]} still lists it",
                    block,
                    name,
                )
    return None


def _keyed_anew(moment: Moment, entry: op.IndexEntry, block: int) -> bool:
    """Whether a block that was just handed out may have this key: its new life published it."""
    life, group, index = moment.state.places[block]
    end = (index + 1) * moment.state.config.block_size
    if end > min(life.scheduled, life.known):
        return False
    return life.paths[group].at(end - 1) == moment.keys.claim_of.get((entry.group, entry.key))


@clause("KV-I2-boundary", 2)
def boundary(moment: Moment) -> Evidence | None:
    """A block's own key, group and token count are those under which the index lists it."""
    if moment.seen is None:
        return None
    blocks, size = moment.seen.blocks, moment.state.config.block_size
    if _agree(moment.seen, size):
        return None
    listed = {block: entry for entry in moment.seen.index for block in entry.blocks}
    for block, view in blocks.items():
        entry = listed.get(block)
        if entry is None and view.key is None:
            continue
        if entry is None or view.key != entry.key or view.group != entry.group or view.tokens != size:
            index = "no key" if entry is None else f"key {entry.key.hex()[:8]} of group {entry.group}"
            own = "no key" if view.key is None else f"key {view.key.hex()[:8]}, {view.tokens} tokens"
            return Evidence(f"block {block} as in the index: {index}, {size} tokens", own, block)
    return None


def _agree(seen: op.Observation, size: int) -> bool:
    """Whether each block has the key that it is listed under, and no other block has a key."""
    keyed = sum([view.key is not None for view in seen.blocks.values()])
    for entry in seen.index:
        for block in entry.blocks:
            view = seen.blocks.get(block)
            if view is None:
                continue
            keyed -= 1
            if view.key != entry.key or view.group != entry.group or view.tokens != size:
                return False
    return keyed == 0


@clause("KV-I2-hit", 1, op.Admit)
def hit(moment: Moment) -> Evidence | None:
    """Every position of a hit holds the content of the request's own prefix."""
    return against_hits(moment, ("stale", "lost"))


@clause("KV-I2-read", 1, op.Dispatch)
def read(moment: Moment) -> Evidence | None:
    """Every position that a step reads is valid for the life that reads it, in device order."""
    step = moment.effects.dispatched
    for entry in step.entries if step else ():
        if evidence := _read(moment, entry.life, entry.start):
            return evidence
    return None


def _read(moment: Moment, life: Life, start: int) -> Evidence | None:
    size = moment.state.config.block_size
    for group, row in enumerate(life.rows):
        first, stop = kind_of(moment.state.config.groups[group]).reads(start)
        for index in range(first // size, min(-(-stop // size), len(row))):
            tokens = min(stop - index * size, size)
            wanted = moment.state.wanted(life, group, index, tokens)
            found = moment.state.found(row[index], tokens)
            if found != wanted:
                return _wrong(moment, row[index], found, wanted, life.request)
    return None


@clause("KV-I2-write", 1, op.Dispatch)
def write(moment: Moment) -> Evidence | None:
    """A step writes only its own blocks, and what others hit in them is what it writes."""
    step = moment.effects.dispatched
    size = moment.state.config.block_size
    for entry in step.entries if step else ():
        last = -(-(entry.stop + len(entry.drafts)) // size)
        for group, row in enumerate(entry.rows):
            for block in row[entry.start // size : last]:
                for number in sorted(moment.state.holders.get(block, set()) - {entry.life.number}):
                    if evidence := _shared_write(
                        moment, entry.life, group, block, moment.state.lives[number]
                    ):
                        return evidence
    return None


def _shared_write(moment: Moment, writer: Life, group: int, block: int, other: Life) -> Evidence | None:
    """Evidence that a write harms another holder of the block: a hit may rest on a promise (REQ-2.10)."""
    size, state = moment.state.config.block_size, moment.state
    owner = state.places[block][0]
    if owner is not writer and not state.capabilities.idempotent:
        return Evidence(
            f"{writer.request} writes its own blocks",
            f"block {block} was handed out for {owner.request} and is held by {other.request}",
            block,
            other.request,
        )
    if block not in other.rows[group]:
        # Its row has another one by now; what it still reads was judged when that was dispatched.
        return None
    index = other.rows[group].index(block)
    tokens = max(0, min(other.scheduled - index * size, size))
    wanted, found = state.wanted(other, group, index, tokens), state.found(block, tokens)
    return None if found == wanted else _wrong(moment, block, found, wanted, other.request)


@clause("KV-I2-bytes", 1, op.Admit, op.Extend, op.Dispatch, op.Retire, *op.ENDS, op.Observe)
def bytes_(moment: Moment) -> Evidence | None:
    """The words in device memory are those that the claims demand.

    Judged where there is memory: the allocator's own, or the harness's, which executes its rows.
    """
    for wrong in moment.memory:
        found = f"claim digest {wrong.found:016x}" if wrong.found is not None else "no single writer's words"
        place = f"block {wrong.block} offset {wrong.offset} layer {wrong.layer}"
        return Evidence(
            f"{place}: claim digest {wrong.expected:016x}",
            f"{wrong.words} wrong words, {found}",
            wrong.block,
        )
    return None


assert "stale" not in UNCOMMITTED
