"""What a history implies: requests, lives, holders, shadow memory, steps in flight.

Derived from the requests' own inputs and the allocator's answers only. The allocator's
hashes and counters are never trusted, merely compared.
"""

from dataclasses import dataclass, field

from kvproof.spec.content import DRAFT, POISON, Claims, Path, Runs, cut, overwrite, root_of
from kvproof.spec.operations import Entry, Submit
from kvproof.spec.vocabulary import CacheConfig, Capabilities


@dataclass(slots=True)
class Grant:
    """Positions `start … stop−1` that a life may compute, slots up to `slots`, and the promised writes."""

    start: int
    stop: int
    slots: int
    writes: "list[Write]"


@dataclass(slots=True, eq=False)
class Life:
    """One admission of a request.

    `scheduled` is granted progress, `processed` retired progress, `pending` the number of
    tokens that steps in flight will sample. `fence` is the last dispatched step with it.
    """

    number: int
    request: str
    paths: tuple[Path, ...]
    limit: int
    rows: list[list[int]]
    hit: int
    scheduled: int
    processed: int
    grant: Grant | None = None
    pending: int = 0
    fence: int = 0
    ended: bool = False

    @property
    def known(self) -> int:
        """Tokens known by now."""
        return self.paths[0].length

    @property
    def cap(self) -> int:
        """The boundary up to which tokens may be granted: known ones and those being sampled."""
        return min(self.known + self.pending, self.limit)


@dataclass(slots=True, eq=False)
class Request:
    """A request id in its current use. `life` is none while it waits; `gone` once its id is free."""

    inputs: Submit
    paths: tuple[Path, ...]
    limit: int
    life: Life | None = None
    gone: bool = False

    @property
    def waiting(self) -> bool:
        """Submitted or preempted, and not admitted."""
        return self.life is None and not self.gone


@dataclass(slots=True, eq=False)
class Write:
    """A write that is still to come into one block: positions `start … stop−1` of a life.

    `step` is none while it is only granted. `committed` is where its drafts begin.
    """

    life: Life
    group: int
    block: int
    start: int
    stop: int
    committed: int
    step: int | None = None

    def runs(self, block_size: int) -> tuple[int, Runs]:
        """The offset in the block and what will stand there, drafts as `DRAFT`."""
        start, stop, committed = self.start, self.stop, self.committed
        path = self.life.paths[self.group]
        if stop <= committed:
            return start % block_size, path.runs(start, stop)
        drafts = (DRAFT, stop - max(start, committed))
        return start % block_size, (*path.runs(start, committed), drafts)


@dataclass(slots=True, eq=False)
class StepEntry:
    """A life in a step: what it computes, its rows when the step was dispatched, and what it will write."""

    life: Life
    start: int
    stop: int
    drafts: tuple[int, ...]
    samples: bool
    rows: tuple[tuple[int, ...], ...]
    writes: list[Write]


@dataclass(slots=True, eq=False)
class Step:
    """A dispatched forward and the blocks that it may touch."""

    number: int
    entries: list[StepEntry]
    padding: int
    touched: frozenset[int]


@dataclass(slots=True)
class Counters:
    """What metrics must say."""

    requests: int = 0
    queries: int = 0
    hits: int = 0
    preemptions: int = 0


@dataclass
class State:
    """Everything that a history implies about one allocator."""

    config: CacheConfig
    capabilities: Capabilities
    claims: Claims = field(default_factory=Claims)
    requests: dict[str, Request] = field(default_factory=dict)
    grants: list[Life] = field(default_factory=list)
    """Lives with an undispatched grant, oldest first."""
    steps: list[Step] = field(default_factory=list)
    """Steps in flight, oldest first."""
    deferred: list[Life] = field(default_factory=list)
    """Ended lives whose blocks stay held until their fence, in order of ending."""
    kept: list[tuple[int, Life, int]] = field(default_factory=list)
    """`(fence, life, block)`: blocks that left a life's row and stay held until their fence."""
    holders: dict[int, set[int]] = field(default_factory=dict)
    """Block → numbers of the lives that hold it."""
    written: dict[int, Runs] = field(default_factory=dict)
    """Block → content that executed steps have written."""
    writes: dict[int, list[Write]] = field(default_factory=dict)
    """Block → writes still to come, in device order."""
    settled: dict[int, Runs] = field(default_factory=dict)
    """Block → content in device order, as far as it was asked for and depends on no token to come."""
    withdrawn: set[int] = field(default_factory=set)
    """Blocks whose promised write was discarded and that nobody was given since."""
    places: dict[int, tuple[Life, int, int]] = field(default_factory=dict)
    """Block → the life, group and logical index that it was last handed out for."""
    lives: dict[int, Life] = field(default_factory=dict)
    """Lives that hold blocks, by number."""
    last_batch: list[Life] = field(default_factory=list)
    """The lives of the newest dispatched step: the worker's batch."""
    counters: Counters = field(default_factory=Counters)
    next_life: int = 1
    next_step: int = 1

    # --- reading ------------------------------------------------------------------------

    def living(self) -> list[Life]:
        """The lives that have not ended, in order of admission."""
        return [life for life in self.lives.values() if not life.ended]

    def waiting(self) -> list[str]:
        """Ids of the requests that wait, in order of submission."""
        return [name for name, request in self.requests.items() if request.waiting]

    def content(self, block: int, but: Life | None = None) -> Runs:
        """What a block holds in device order: written, then every write that is still to come.

        `but` leaves out a life's granted writes, to see what it finds there itself.
        """
        if but is None and (known := self.settled.get(block)):
            return known
        size = self.config.block_size
        runs = self.written.get(block) or ((POISON, size),)
        writes = self.writes.get(block)
        if writes is None:
            return runs
        settled = but is None
        for write in writes:
            if write.life is but and write.step is None:
                continue
            settled = settled and write.stop <= write.life.known
            offset, new = write.runs(size)
            runs = overwrite(runs, offset, new, size)
        if settled:
            self.settled[block] = runs
        return runs

    def wanted(self, life: Life, group: int, index: int, tokens: int) -> Runs:
        """The claims of the first `tokens` positions of a life's logical block."""
        start = index * self.config.block_size
        return life.paths[group].runs(start, start + tokens)

    def found(self, block: int, tokens: int, but: Life | None = None) -> Runs:
        """The first `tokens` positions of a block's content."""
        runs = self.content(block, but)
        return runs if tokens == self.config.block_size else cut(runs, 0, tokens)

    def touching(self, block: int) -> list[Step]:
        """The steps in flight that may touch a block."""
        return [step for step in self.steps if block in step.touched]

    def dependents(self, life: Life) -> list[Life]:
        """Living lives that rest on writes which `life` was granted but which were not dispatched."""
        if life.grant is None:
            return []
        found: set[int] = set()
        for write in life.grant.writes:
            # Who is to write the block too rests on nobody.
            writers = {each.life.number for each in self.writes[write.block]}
            found |= self.holders.get(write.block, set()) - writers
        return [self.lives[n] for n in sorted(found, reverse=True) if not self.lives[n].ended]

    def batch(self) -> list[str]:
        """The living requests that have a row in the worker's batch."""
        return [life.request for life in self.last_batch if not life.ended]

    def idle(self) -> bool:
        """Nothing is held by anybody and no step is in flight: quiescence."""
        return not self.holders and not self.steps

    def paths_of(self, submit: Submit) -> tuple[Path, ...]:
        """The claims of a request's prompt, per group."""
        return tuple(
            Path(self.claims, root_of(submit.extras, group), submit.tokens, submit.extras)
            for group in range(len(self.config.groups))
        )

    def entry_of(self, life: Life, drafts: tuple[int, ...] = ()) -> Entry:
        """The dispatch entry that takes a life's whole grant."""
        assert life.grant is not None, "only a granted life is dispatched"
        return Entry(life.request, life.grant.stop - life.grant.start, drafts)
