"""What device memory must hold at an operation, from the state before it and what was answered.

Words are looked at where they matter: what a step reads, when it is dispatched; what it wrote and
read, when it retires; a hit's blocks, when it is granted; a key's block, when the key appears; and
all that is keyed or held, when somebody observes. A write that is still to come makes no demand yet: it is
looked at when its step retires.

Rows come from the allocator and haven't been judged here, so a block that no device has is left out.
"""

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from kvproof.spec import operations as op
from kvproof.spec.clauses import Keys
from kvproof.spec.content import Path
from kvproof.spec.kinds import kind_of
from kvproof.spec.state import State, StepEntry


class Demand(NamedTuple):
    """The first `tokens` positions of a block hold the prefix that ends with `claim`."""

    block: int
    tokens: int
    claim: int


Named = tuple[tuple[int, int], bytes]
"""A group and a block, and the key that the block is listed under there."""


def of_step(state: State) -> list[Demand]:
    """What the oldest step in flight leaves in its rows: all that it read and wrote, its drafts as well."""
    found: list[Demand] = []
    size = state.config.block_size
    for entry in state.steps[0].entries if state.steps else ():
        drafted = entry.drafts and entry.stop <= entry.life.known
        # The block that the drafts begin in is demanded with them.
        stop = entry.stop // size * size if drafted else entry.stop
        for path, row in zip(entry.life.paths, entry.rows, strict=True):
            _prefix(found, state, path, row, 0, stop, executed=True)
            if drafted:
                _drafts(found, state, path, row, entry)
    return found


def of_reads(state: State, dispatch: op.Dispatch) -> list[Demand]:
    """What the rows of a step that is being dispatched must hold already, for it to be read."""
    found: list[Demand] = []
    for life in state.grants[: len(dispatch.entries)]:
        assert life.grant is not None, "only a granted life is dispatched"
        for group, (path, row) in enumerate(zip(life.paths, life.rows, strict=True)):
            first, stop = kind_of(state.config.groups[group]).reads(life.grant.start)
            _prefix(found, state, path, row, first, stop)
    return found


def of_hit(state: State, request: str, answer: op.Granted) -> list[Demand]:
    """What the blocks of a hit must hold already."""
    found: list[Demand] = []
    paths = state.requests[request].paths
    for group, (path, row) in enumerate(zip(paths, answer.rows, strict=False)):
        first, stop = kind_of(state.config.groups[group]).reads(answer.hit)
        _prefix(found, state, path, row, first, stop)
    return found


def of_lives(state: State) -> list[Demand]:
    """What all living rows must hold already."""
    found: list[Demand] = []
    for life in state.living():
        for path, row in zip(life.paths, life.rows, strict=True):
            _prefix(found, state, path, row, 0, life.processed)
    return found


def of_keys(state: State, keys: Keys, named: Iterable[Named], granted: Collection[int]) -> list[Demand]:
    """What blocks must hold already because of the keys that they are listed under.

    A key that is seen for the first time stands for the place that its block was handed out for. Blocks
    that are being `granted` are still to be written, and those that are new have no such place yet.
    """
    found: list[Demand] = []
    for (group, block), key in named:
        if block in state.writes or block in granted or not 1 <= block <= state.config.blocks:
            continue
        claim = keys.claim_of.get((group, key)) or _placed(state, group, block)
        if claim is not None:
            found.append(Demand(block, state.config.block_size, claim))
    return found


def _placed(state: State, group: int, block: int) -> int | None:
    """The claim of the place that a block was handed out for, where all its tokens are known."""
    life, of_group, index = state.places.get(block, (None, 0, 0))
    end = (index + 1) * state.config.block_size
    if life is None or of_group != group or end > life.known:
        return None
    return life.paths[group].at(end - 1)


def _prefix(
    found: list[Demand],
    state: State,
    path: Path,
    row: Sequence[int],
    first: int,
    stop: int,
    *,
    executed: bool = False,
) -> None:
    """Add what the blocks of positions `first … stop−1` must hold, each from its own first token on.

    No more than is known of the request, and, unless all its writes are `executed`, up to the first
    write that is still to come into a block.
    """
    size, blocks, writes = state.config.block_size, state.config.blocks, state.writes
    stop = min(stop, path.length)
    for index in range(first // size, min(-(-stop // size), len(row))):
        block, start = row[index], index * size
        tokens = min(stop - start, size)
        if not executed and block in writes:
            tokens = min(tokens, *[write.start % size for write in writes[block]])
        if tokens > 0 and 1 <= block <= blocks:
            found.append(Demand(block, tokens, path.at(start + tokens - 1)))


def _drafts(found: list[Demand], state: State, path: Path, row: Sequence[int], entry: StepEntry) -> None:
    """Add what a step leaves in the blocks from the one on that its drafts begin in."""
    size, claim = state.config.block_size, path.at(entry.stop - 1)
    end = entry.stop + len(entry.drafts)
    for position, token in enumerate(entry.drafts, entry.stop):
        claim = state.claims.after(claim, token)
        index, offset = divmod(position, size)
        whole = offset == size - 1 or position == end - 1
        if whole and index < len(row) and 1 <= row[index] <= state.config.blocks:
            found.append(Demand(row[index], offset + 1, claim))
