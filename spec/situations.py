"""Situations that a run should have met before its silence means anything.

A clause that holds in a history without steps in flight says nothing about steps in flight.
Each situation is one named function, whose docstring says what happened; it is asked after
every record of its kinds until it has happened once in a history. `WHERE` says in which
situation a clause can fall at all.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from kvproof.spec import operations as op
from kvproof.spec.clauses import Moment
from kvproof.spec.vocabulary import Capabilities


@dataclass(frozen=True, slots=True)
class Situation:
    """A named situation, the operations after which it can be met, and what an allocator needs for it.

    `depth` is in steps in flight; `promised` says that keys must appear before their content.
    """

    name: str
    sentence: str
    met: Callable[[Moment, set[int]], bool]
    on: tuple[type[op.Operation], ...]
    level: int = 1
    needs: tuple[str, ...] = ()
    depth: int = 1
    promised: bool = False

    def possible(self, capabilities: Capabilities) -> bool:
        """Whether an allocator can get there."""
        if capabilities.level < self.level or capabilities.depth < self.depth:
            return False
        if self.promised and capabilities.publish != "grant":
            return False
        return all(map(capabilities.has, self.needs))


_FOUND: Final[list[Situation]] = []


def situation(
    name: str,
    *on: type[op.Operation],
    level: int = 1,
    needs: tuple[str, ...] = (),
    depth: int = 1,
    promised: bool = False,
) -> Callable[[Callable[[Moment, set[int]], bool]], Situation]:
    """Make a situation of a function of the moment and the blocks that were ever shared."""

    def make(met: Callable[[Moment, set[int]], bool]) -> Situation:
        assert met.__doc__, f"{name} has no sentence"
        made = Situation(name, met.__doc__.strip().splitlines()[0], met, on, level, needs, depth, promised)
        _FOUND.append(made)
        return made

    return make


# --- hits -------------------------------------------------------------------------------


@situation("hit", op.Admit)
def _hit(moment: Moment, shared: set[int]) -> bool:
    """A request is served from the prefix cache."""
    return bool(moment.effects.hits)


@situation("hit-on-held-block", op.Admit)
def _held(moment: Moment, shared: set[int]) -> bool:
    """A block that is hit has another holder already."""
    return any(len(moment.state.holders[block]) > 1 for block, _, _ in moment.effects.hits)


@situation("hit-on-free-block", op.Admit)
def _revived(moment: Moment, shared: set[int]) -> bool:
    """A block that is hit had no holder, and comes out of the free queue."""
    return any(len(moment.state.holders[block]) == 1 for block, _, _ in moment.effects.hits)


@situation("same-step-hit", op.Admit, promised=True)
def _same_step(moment: Moment, shared: set[int]) -> bool:
    """A block that is hit will be written by a grant that is not dispatched yet."""
    return _hit_on(moment, dispatched=False)


@situation("hit-on-step-in-flight", op.Admit, promised=True)
def _in_flight(moment: Moment, shared: set[int]) -> bool:
    """A block that is hit will be written by a step in flight."""
    return _hit_on(moment, dispatched=True)


def _hit_on(moment: Moment, *, dispatched: bool) -> bool:
    life, writes = moment.effects.life, moment.state.writes
    return any(
        write.life is not life and (write.step is not None) == dispatched
        for block, _, _ in moment.effects.hits
        for write in writes.get(block, ())
    )


@situation("full-hit-cut-back", op.Admit)
def _cut_back(moment: Moment, shared: set[int]) -> bool:
    """A prompt is cached to its last block, which ends with it and is computed all the same."""
    life, size = moment.effects.life, moment.state.config.block_size
    return life is not None and 0 < life.hit == life.known - size


@situation("opt-out-of-a-hit", op.Admit, level=2, needs=("opt_out",))
def _opted_out(moment: Moment, shared: set[int]) -> bool:
    """A request that does not read the cache is admitted although its first block is cached."""
    life = moment.effects.life
    if life is None or moment.previous is None or life.known <= moment.state.config.block_size:
        return False
    if moment.state.requests[life.request].inputs.options.read_cache:
        return False
    key = moment.keys.key_of.get(life.paths[0].at(moment.state.config.block_size - 1))
    return any(entry.key == key for entry in moment.previous.index)


@situation("resumed-with-a-hit", op.Admit, needs=("preempt",))
def _resumed(moment: Moment, shared: set[int]) -> bool:
    """A preempted request is admitted again and hits what it left behind."""
    life = moment.effects.life
    if life is None or not life.hit:
        return False
    return life.known > op.count_of(moment.state.requests[life.request].inputs.tokens)


# --- eviction and capacity --------------------------------------------------------------


@situation("eviction", op.Admit, op.Extend, level=2)
def _eviction(moment: Moment, shared: set[int]) -> bool:
    """A block that is handed out had a key until then."""
    return any(view is not None and view.key is not None for view in _views(moment))


def _views(moment: Moment) -> Iterable[op.BlockView | None]:
    before = moment.previous.blocks if moment.previous else {}
    return (before.get(block) for block, _, _ in moment.effects.handed)


@situation("eviction-of-shared-block", op.Admit, op.Extend)
def _shared(moment: Moment, shared: set[int]) -> bool:
    """A block that several lives have shared is handed out anew."""
    handed = [block for block, _, _ in moment.effects.handed]
    reached = not shared.isdisjoint(handed)
    shared.difference_update(handed)
    shared.update([block for block, _, _ in moment.effects.hits if len(moment.state.holders[block]) > 1])
    return reached


@situation("eviction-of-one-duplicate", op.Admit, op.Extend, level=2)
def _duplicate(moment: Moment, shared: set[int]) -> bool:
    """Of two blocks with one key one is handed out, and the key stays."""
    if moment.previous is None or not moment.effects.handed:
        return False
    handed = {block for block, _, _ in moment.effects.handed}
    return any(
        len(entry.blocks) > 1 and not handed.isdisjoint(entry.blocks) and not handed.issuperset(entry.blocks)
        for entry in moment.previous.index
    )


@situation("full-pool", op.Admit, op.Extend)
def _full(moment: Moment, shared: set[int]) -> bool:
    """Every block is held."""
    return len(moment.state.holders) == moment.state.config.blocks


@situation("refusal", op.Admit, op.Extend)
def _refusal(moment: Moment, shared: set[int]) -> bool:
    """An allocation is refused."""
    return isinstance(moment.answer, op.Refused)


@situation("refusal-with-evictable-hits", op.Admit, level=2)
def _evictable(moment: Moment, shared: set[int]) -> bool:
    """A refused request has hits that lie in the free queue: they count as demand."""
    if not isinstance(moment.answer, op.Refused) or moment.previous is None:
        return False
    assert isinstance(moment.operation, op.Admit)
    request, size = moment.state.requests[moment.operation.request], moment.state.config.block_size
    path = request.paths[0]
    if not request.inputs.options.read_cache or path.length <= size:
        return False
    key = moment.keys.key_of.get(path.at(size - 1))
    return any(
        entry.key == key and entry.blocks[0] not in moment.state.holders for entry in moment.previous.index
    )


@situation("refusal-to-go-on", op.Extend)
def _stuck(moment: Moment, shared: set[int]) -> bool:
    """A living request gets no block to go on with."""
    return isinstance(moment.answer, op.Refused)


# --- steps in flight --------------------------------------------------------------------


@situation("two-steps-in-flight", op.Dispatch, depth=2)
def _two(moment: Moment, shared: set[int]) -> bool:
    """A step is dispatched while another one is in flight."""
    return len(moment.state.steps) > 1


@situation("allocation-in-flight", op.Admit, op.Extend)
def _allocation(moment: Moment, shared: set[int]) -> bool:
    """A block is handed out while a step is in flight."""
    return bool(moment.effects.handed and moment.state.steps)


@situation("end-in-flight", *op.ENDS)
def _ended(moment: Moment, shared: set[int]) -> bool:
    """A life ends while a step in flight contains it."""
    life = moment.effects.life
    return life is not None and any(step.number == life.fence for step in moment.state.steps)


@situation("id-reused-in-flight", op.Submit)
def _reused(moment: Moment, shared: set[int]) -> bool:
    """An id comes back as another request while a step of its old life is in flight."""
    assert isinstance(moment.operation, op.Submit)
    name = moment.operation.request
    return any(entry.life.request == name for step in moment.state.steps for entry in step.entries)


@situation("promise-withdrawn", *op.ENDS, needs=("discards",))
def _withdrawn(moment: Moment, shared: set[int]) -> bool:
    """A life ends before its grant is dispatched, so what it promised is never written."""
    return bool(moment.state.withdrawn)


@situation("drafts-in-flight", op.Dispatch, needs=("lookahead",))
def _drafts(moment: Moment, shared: set[int]) -> bool:
    """A step writes draft tokens behind the committed ones."""
    assert isinstance(moment.operation, op.Dispatch)
    return any(entry.drafts for entry in moment.operation.entries)


@situation("padding", op.Dispatch)
def _padding(moment: Moment, shared: set[int]) -> bool:
    """A step has padding rows."""
    assert isinstance(moment.operation, op.Dispatch)
    return moment.operation.padding > 0


@situation("block-filled-by-sampling", op.Retire)
def _filled(moment: Moment, shared: set[int]) -> bool:
    """A sampled token completes a block."""
    assert isinstance(moment.operation, op.Retire)
    size, requests = moment.state.config.block_size, moment.state.requests
    return any(
        output.sampled and requests[output.request].paths[0].length % size == 0
        for output in moment.operation.outputs
    )


# --- keys, tenants, the rest ------------------------------------------------------------


@situation("duplicate-keys", op.Admit, op.Extend, op.Retire, level=2)
def _copies(moment: Moment, shared: set[int]) -> bool:
    """Two blocks have the same key."""
    return moment.seen is not None and any(len(entry.blocks) > 1 for entry in moment.seen.index)


@situation("two-tenants", op.Admit, needs=("salts",))
def _tenants(moment: Moment, shared: set[int]) -> bool:
    """Two living requests with equal first tokens have different cache salts."""
    life, requests = moment.effects.life, moment.state.requests
    if life is None:
        return False
    own = requests[life.request].inputs
    others = [requests[other.request].inputs for other in moment.state.living() if other is not life]
    return any(each.extras.salt != own.extras.salt and _first(each) == _first(own) for each in others)


def _first(submit: op.Submit) -> int:
    return next(start for start, _ in op.runs_of(submit.tokens))


@situation("reset-with-keys", op.Reset, level=2, needs=("reset",))
def _reset(moment: Moment, shared: set[int]) -> bool:
    """A reset succeeds and drops at least one key."""
    return isinstance(moment.answer, op.Done) and bool(moment.previous and moment.previous.index)


@situation("reset-refused", op.Reset, needs=("reset",))
def _kept(moment: Moment, shared: set[int]) -> bool:
    """A reset comes while blocks are held."""
    return isinstance(moment.answer, op.Refused)


@situation("evicted-by-name", op.Evict, needs=("evict",))
def _evicted(moment: Moment, shared: set[int]) -> bool:
    """A held block loses its key."""
    return isinstance(moment.answer, op.Done)


@situation("rows-rearranged", op.Table, needs=("table",))
def _rearranged(moment: Moment, shared: set[int]) -> bool:
    """The worker moves or swaps rows of its batch."""
    return True


@situation("drained", *op.ENDS, op.Retire)
def _drained(moment: Moment, shared: set[int]) -> bool:
    """The last holder lets go and nothing is in flight."""
    return moment.state.idle() and bool(moment.effects.released)


SITUATIONS: Final = tuple(_FOUND)
"""Every situation, in reading order."""

WHERE: Final = {
    "KV-I3-boundary": "hit",
    "KV-I3-bound": "full-hit-cut-back",
    "KV-I3-optout": "opt-out-of-a-hit",
    "KV-I2-hit": "hit",
    "KV-I2-read": "hit",
    "KV-I2-write": "hit-on-held-block",
    "KV-I2-key": "eviction",
    "KV-I2-standing": "hit",
    "KV-I1-exclusive": "hit-on-held-block",
    "KV-I4-handout": "allocation-in-flight",
    "KV-I4-release": "end-in-flight",
    "KV-I4-key": "allocation-in-flight",
    "KV-I5-stale": "padding",
    "KV-I6-draft": "block-filled-by-sampling",
    "KV-I6-hit": "same-step-hit",
    "KV-I6-withdraw": "promise-withdrawn",
    "KV-P-atomic": "refusal",
    "KV-P-canonical": "duplicate-keys",
    "KV-P-capacity": "refusal",
    "KV-P-refusal": "refusal",
    "KV-P-isolation": "two-tenants",
    "KV-P-leak": "drained",
    "KV-P-reset": "reset-with-keys",
}
"""Clause → the situation without which it has nothing to say; other clauses always have."""


_ByKind = dict[type[op.Operation], tuple[Situation, ...]]


@lru_cache(64)
def _possible(capabilities: Capabilities) -> tuple[frozenset[str], _ByKind]:
    """The situations that an allocator can be in, by name and by kind of operation."""
    found = [each for each in SITUATIONS if each.possible(capabilities)]
    by_kind = {kind: tuple(each for each in found if kind in each.on) for kind in op.OPERATIONS}
    return frozenset(each.name for each in found), by_kind


class Watch:
    """Which situations one history has met."""

    def __init__(self, capabilities: Capabilities) -> None:
        self.met: dict[str, int] = {}
        """Situation → the record at which it was first met."""
        self._shared: set[int] = set()
        self._possible, by_kind = _possible(capabilities)
        self._open = dict(by_kind)

    def see(self, moment: Moment, record: int) -> None:
        """Note what a record brought."""
        kind = type(moment.operation)
        open_ = self._open[kind]
        if not open_:
            return
        met = [each for each in open_ if each.met(moment, self._shared)]
        for each in met:
            self.met.setdefault(each.name, record)
        if met:
            self._open[kind] = tuple(each for each in open_ if each not in met)

    def reached(self, code: str) -> bool:
        """Whether a clause could have fallen: its situation was met, or none is known for this allocator."""
        name = WHERE.get(code)
        return name is None or name in self.met or name not in self._possible
