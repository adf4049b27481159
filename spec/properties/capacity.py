"""Capacity soundness: an allocation that starts succeeds, and what fits is not refused for ever."""

from kvproof.spec import operations as op
from kvproof.spec.clauses import Evidence, Moment, clause


def _wanted(moment: Moment) -> tuple[int, int, str] | None:
    """`(blocks needed beside held hits, free blocks, request)` of an admit or extend, by definition."""
    operation, state = moment.operation, moment.state
    assert isinstance(operation, op.Admit | op.Extend)
    request = state.requests[operation.request]
    life, size = request.life, state.config.block_size
    known = request.paths[0].length + (life.pending if life else 0)
    hit = 0 if life else _hit(moment, operation.request)
    start = life.scheduled if life else hit * size
    slots = min(min(start + operation.n, known, request.limit) + operation.lookahead, request.limit)
    held = len(life.rows[0]) if life else _held(moment, operation.request, hit)
    free = state.config.blocks - len(state.holders)
    return max(0, -(-slots // size) - held), free, operation.request


def _sees(moment: Moment) -> bool:
    """Whether the whole index was seen before the operation."""
    return moment.previous is not None and moment.previous.free is not None


def _hit_blocks(moment: Moment, name: str, count: int) -> list[int]:
    """The oldest block of each of the first `count` keys of a request, before the operation."""
    index = {entry.key: entry.blocks for entry in moment.previous.index} if moment.previous else {}
    request, size = moment.state.requests[name], moment.state.config.block_size
    blocks: list[int] = []
    for i in range(count):
        key = moment.keys.key_of.get(request.paths[0].at((i + 1) * size - 1))
        found = index.get(key, ()) if key is not None else ()
        if not found:
            break
        blocks.append(found[0])
    return blocks


def _hit(moment: Moment, name: str) -> int:
    request = moment.state.requests[name]
    if not request.inputs.options.read_cache:
        return 0
    most = (request.paths[0].length - 1) // moment.state.config.block_size
    if not _sees(moment):
        # A hit that can't be foreseen may be the longest, and the grant ends as far behind it.
        return most
    return len(_hit_blocks(moment, name, most))


def _held(moment: Moment, name: str, hit: int) -> int:
    return sum(1 for block in _hit_blocks(moment, name, hit) if block in moment.state.holders)


@clause("KV-P-capacity", 2, op.Admit, op.Extend)
def covered(moment: Moment) -> Evidence | None:
    """The demand estimate covers what is taken: an allocation that starts does not run dry."""
    if not isinstance(moment.answer, op.Crashed) or (wanted := _wanted(moment)) is None:
        return None
    need, free, name = wanted
    if need <= free:
        return None
    return Evidence(
        f"a refusal: {need} blocks leave the queue, {free} are free",
        f"{moment.answer.error}: {moment.answer.message}",
        None,
        name,
    )


@clause("KV-P-crash", 0)
def crash(moment: Moment) -> Evidence | None:
    """A legal operation is answered, never by an error."""
    if not isinstance(moment.answer, op.Crashed):
        return None
    return Evidence(
        "an answer",
        f"{moment.answer.error}: {moment.answer.message}",
        None,
        getattr(moment.operation, "request", None),
    )


@clause("KV-P-refusal", 1, op.Admit, op.Extend)
def refusal(moment: Moment) -> Evidence | None:
    """What fits into an idle pool is not refused."""
    if not isinstance(moment.answer, op.Refused) or not moment.state.idle():
        return None
    if (wanted := _wanted(moment)) is None or wanted[0] > wanted[1]:
        return None
    return Evidence(f"{wanted[0]} blocks of an idle pool of {wanted[1]}", "a refusal", None, wanted[2])
