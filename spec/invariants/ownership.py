"""I1 Ownership: every block is held by whom its count says, or free exactly once."""

from kvproof.spec import operations as op
from kvproof.spec.clauses import Evidence, Moment, clause


@clause("KV-I1-null", 1, op.Admit, op.Extend)
def null(moment: Moment) -> Evidence | None:
    """A row names usable blocks only, never the null block or an id outside the pool."""
    life = moment.effects.life
    for block, group, index in (*moment.effects.hits, *moment.effects.handed):
        if not 1 <= block <= moment.state.config.blocks:
            return Evidence(
                f"a block between 1 and {moment.state.config.blocks}",
                f"block {block} at index {index} of group {group}",
                block,
                life.request if life else None,
            )
    return None


@clause("KV-I1-twice", 1, op.Admit, op.Extend)
def twice(moment: Moment) -> Evidence | None:
    """No block stands twice in the rows of one life."""
    life = moment.effects.life
    if life is None:
        return None
    blocks = [block for row in life.rows for block in row]
    if len(set(blocks)) == len(blocks):
        return None
    block = next(block for i, block in enumerate(blocks) if block in blocks[:i])
    return Evidence("each block once", f"rows {life.rows}", block, life.request)


@clause("KV-I1-exclusive", 1, op.Admit, op.Extend)
def exclusive(moment: Moment) -> Evidence | None:
    """A block that is handed out for new tokens is held by no other living life."""
    life, lives = moment.effects.life, moment.state.lives
    for block, _, _ in moment.effects.handed:
        others = [
            n for n in sorted(moment.state.holders[block]) if not lives[n].ended and lives[n] is not life
        ]
        if others:
            names = ", ".join(lives[number].request for number in others)
            return Evidence("a block without holders", f"block {block} is held by {names}", block, names)
    return None


@clause("KV-I1-queue", 2)
def queue(moment: Moment) -> Evidence | None:
    """A block with ref_cnt above zero is not in the free queue."""
    if moment.seen is None or moment.seen.free is None:
        return None
    for block in moment.seen.free:
        view = moment.seen.blocks.get(block)
        if view is not None and view.ref_cnt > 0:
            return Evidence(
                f"block {block}, ref_cnt {view.ref_cnt}, outside the free queue", "it is in the queue", block
            )
    return None


@clause("KV-I1-refcount", 2)
def refcount(moment: Moment) -> Evidence | None:
    """ref_cnt equals the number of counted holders."""
    if moment.seen is None:
        return None
    holders = moment.state.holders
    for block, view in moment.seen.blocks.items():
        count = len(holders.get(block, ()))
        if view.ref_cnt != count and block != 0:
            return Evidence(f"ref_cnt {count} of block {block}", f"ref_cnt {view.ref_cnt}", block)
    return None


@clause("KV-I1-lost", 2)
def lost(moment: Moment) -> Evidence | None:
    """A usable block with no holder is in the free queue exactly once, and nothing else is."""
    if moment.seen is None or moment.seen.free is None:
        return None
    free, holders = moment.seen.free, moment.state.holders
    blocks, distinct = moment.state.config.blocks, set(free)
    complete = len(distinct) == len(free) == blocks - len(holders) and distinct.isdisjoint(holders)
    if complete and (not free or (min(free) >= 1 and max(free) <= blocks)):
        return None
    expected = [block for block in range(1, blocks + 1) if block not in holders]
    counts = {block: free.count(block) for block in (*expected, *free)}
    wrong = next((block for block in counts if counts[block] != (1 if block in expected else 0)), None)
    if wrong is None:
        # The queue is right: what is held lies outside the pool.
        return None
    wanted = "once" if wrong in expected else "not"
    return Evidence(f"block {wrong} {wanted} in the free queue", f"{counts[wrong]} times in it", wrong)


@clause("KV-I1-table", 2)
def table(moment: Moment) -> Evidence | None:
    """The manager's rows are those that it answered, of living requests and no others."""
    if moment.seen is None or moment.seen.rows is None:
        return None
    expected = {
        life.request: tuple([tuple(row) for row in life.rows])
        for life in moment.state.lives.values()
        if not life.ended
    }
    if moment.seen.rows == expected:
        return None
    for name in sorted({*expected, *moment.seen.rows}):
        if expected.get(name) != moment.seen.rows.get(name):
            return Evidence(
                f"rows {expected.get(name, 'absent')} of {name}",
                f"rows {moment.seen.rows.get(name, 'absent')}",
                None,
                name,
            )
    return None
