"""I3 Progress: a life is never said to have computed more than what can be restored."""

from kvproof.spec import operations as op
from kvproof.spec.clauses import Evidence, Moment, clause
from kvproof.spec.kinds import kind_of


@clause("KV-I3-bound", 0, op.Admit, op.Lookup)
def bound(moment: Moment) -> Evidence | None:
    """A hit leaves at least the last token to compute."""
    hit = getattr(moment.answer, "hit", None)
    if hit is None:
        return None
    assert isinstance(moment.operation, op.Admit | op.Lookup)
    name = moment.operation.request
    known = moment.state.requests[name].paths[0].length
    most = known if moment.state.capabilities.max_hit == "len" else known - 1
    if 0 <= hit <= most:
        return None
    return Evidence(f"a hit of 0…{most} of {known} tokens", f"a hit of {hit}", None, name)


@clause("KV-I3-optout", 0, op.Admit, op.Lookup)
def opt_out(moment: Moment) -> Evidence | None:
    """A request that does not read the cache gets no hit."""
    hit = getattr(moment.answer, "hit", 0)
    assert isinstance(moment.operation, op.Admit | op.Lookup)
    name = moment.operation.request
    if not hit or moment.state.requests[name].inputs.options.read_cache:
        return None
    return Evidence("a hit of 0, since it wants every position computed", f"a hit of {hit}", None, name)


@clause("KV-I3-boundary", 0, op.Admit, op.Lookup)
def boundary(moment: Moment) -> Evidence | None:
    """A hit ends where every group can go on."""
    hit = getattr(moment.answer, "hit", 0)
    size = moment.state.config.block_size
    for number, group in enumerate(moment.state.config.groups):
        if not kind_of(group).boundary_is_possible(hit, size):
            name = getattr(moment.operation, "request", None)
            return Evidence(f"a hit that group {number} can restore", f"a hit of {hit}", None, name)
    return None


@clause("KV-I3-cover", 1, op.Admit, op.Extend)
def cover(moment: Moment) -> Evidence | None:
    """Every group's row covers the hit, the granted tokens and the lookahead."""
    life = moment.effects.life
    if life is None or life.grant is None:
        return None
    size, groups = moment.state.config.block_size, len(moment.state.config.groups)
    rows = getattr(moment.answer, "rows", ())
    if len(rows) != groups:
        return Evidence(f"a row for each of {groups} groups", f"{len(rows)} rows", None, life.request)
    for group, row in enumerate(life.rows):
        if len(row) * size < life.grant.slots:
            return Evidence(
                f"at least {-(-life.grant.slots // size)} blocks for {life.grant.slots} tokens",
                f"{len(row)} blocks in group {group}",
                None,
                life.request,
            )
    return None


@clause("KV-I3-stable", 1, op.Extend, op.Row, op.Retire)
def stable(moment: Moment) -> Evidence | None:
    """The rows of a life only grow; a declared swap replaces a block by one of equal content."""
    if isinstance(moment.operation, op.Row):
        return _row(moment, moment.operation)
    if evidence := _swapped(moment):
        return evidence
    life, before = moment.effects.life, moment.effects.before
    if life is None or before is None:
        return None
    # A declared swap has been made in the rows before, too.
    for group, row in enumerate(before):
        if life.rows[group][: len(row)] != row:
            return Evidence(f"a row that begins {row}", f"row {life.rows[group]}", None, life.request)
    return None


def _swapped(moment: Moment) -> Evidence | None:
    """Evidence that a block was replaced where none may be. Its content is judged when it is read."""
    for life, group, index, before in moment.effects.swapped:
        block = life.rows[group][index]
        if not moment.state.capabilities.swap or not 1 <= block <= moment.state.config.blocks:
            return Evidence(
                f"block {before} at index {index}, as before", f"block {block}", block, life.request
            )
    return None


def _row(moment: Moment, operation: op.Row) -> Evidence | None:
    life = moment.state.requests[operation.request].life
    if not isinstance(moment.answer, op.Read) or life is None:
        return None
    row = tuple(life.rows[operation.group])
    if moment.answer.row == row:
        return None
    return Evidence(f"row {row}", f"row {moment.answer.row}", None, operation.request)
