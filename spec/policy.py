"""What the reference policy answers: the naive, definitional model (REQ marks [P]).

An allocator may claim the policy with other choices (`PolicyChoices`); whether ended lives stay
held until their fence follows from `stream_ordered`.

It keeps an ordered free list and an index from claims to blocks, and tries an allocation
step by step on them before anything is changed; no formula predicts it. It shares nothing
with the manager that is compared with it but the vocabulary.
"""

from collections import OrderedDict
from dataclasses import dataclass, field

from kvproof.spec import operations as op
from kvproof.spec.content import Path
from kvproof.spec.state import State
from kvproof.spec.vocabulary import PolicyChoices


@dataclass(slots=True, eq=False)
class PolicyLife:
    """A life as the policy sees it. `published` counts row entries that had their turn to be keyed."""

    request: str
    rows: list[list[int]]
    paths: tuple[Path, ...]
    scheduled: int
    dispatched: int
    published: list[int]
    fence: int = 0


@dataclass
class Policy:
    """The reference policy: free order, index, counts and rows."""

    choices: PolicyChoices
    deferring: bool
    block_size: int
    caching: bool
    max_len: int
    free: OrderedDict[int, None]
    index: dict[tuple[int, int], OrderedDict[int, None]] = field(default_factory=dict)
    keyed: dict[int, tuple[int, int]] = field(default_factory=dict)
    refs: dict[int, int] = field(default_factory=dict)
    lives: dict[str, PolicyLife] = field(default_factory=dict)
    deferred: list[PolicyLife] = field(default_factory=list)
    changed: bool = False
    """Whether what an observation shows has changed since somebody last set this to false."""

    @classmethod
    def of(cls, state: State) -> "Policy":
        """The policy for an empty state."""
        config, able = state.config, state.capabilities
        free = OrderedDict((block, None) for block in range(1, config.blocks + 1))
        deferring = not able.stream_ordered
        return cls(able.choices, deferring, config.block_size, config.prefix_caching, config.max_len, free)

    def follow(self, state: State, operation: op.Operation) -> op.Answer | None:
        """Answer an operation and take its effect; `state` already has the operation applied.

        None where the policy has nothing to say.
        """
        match operation:
            case op.Lookup():
                hit, rows = self._hit(state, operation.request)
                return op.Found(hit, tuple(tuple(row) for row in rows))
            case op.Admit():
                return self._admit(state, operation)
            case op.Extend():
                life = self.lives[operation.request]
                return self._allocate(state, life, operation.n, operation.lookahead, 0)
            case op.Dispatch():
                self._dispatch(operation)
            case op.Retire():
                self._retire(state, operation)
            case op.Finish() | op.Abort() | op.Preempt():
                self._end(state, operation.request)
            case op.Evict():
                return self._evict(operation)
            case op.Reset():
                return self._reset()
            case _:
                pass
        return None

    # --- hits and allocation --------------------------------------------------------------

    def _hit(self, state: State, name: str) -> tuple[int, list[list[int]]]:
        """The longest prefix of full blocks that every group has, leaving one token to compute."""
        request = state.requests[name]
        nothing: list[list[int]] = [[] for _ in request.paths]
        if not self.caching or not request.inputs.options.read_cache:
            return 0, nothing
        size, rows = self.block_size, nothing
        end = size - 1
        while end + 1 < request.paths[0].length:
            entries = [self.index.get((group, path.at(end))) for group, path in enumerate(request.paths)]
            if not all(entries):
                break
            for row, entry in zip(rows, entries, strict=True):
                row.append(next(iter(entry or ())))
            end += size
        return end + 1 - size, rows

    def _admit(self, state: State, operation: op.Admit) -> op.Answer:
        request = state.requests[operation.request]
        hit, rows = self._hit(state, operation.request)
        life = PolicyLife(operation.request, rows, request.paths, hit, hit, [len(row) for row in rows])
        answer = self._allocate(state, life, operation.n, operation.lookahead, hit)
        if isinstance(answer, op.Granted):
            self.lives[operation.request] = life
        return answer

    def _allocate(self, state: State, life: PolicyLife, n: int, lookahead: int, hit: int) -> op.Answer:
        """Touch every hit, then pop block by block until the slots are there; run dry: refuse."""
        request = state.requests[life.request]
        pending = request.life.pending if request.life is not None else 0
        scheduled = min(life.scheduled + n, life.paths[0].length + pending, request.limit)
        slots = min(scheduled + lookahead, request.limit)
        touched = {block for row in life.rows for block in row} if life.request not in self.lives else set()
        queue = (block for block in self.free if block not in touched)
        taken: list[list[int]] = [[] for _ in life.rows]
        for row, new in zip(life.rows, taken, strict=True):
            while (len(row) + len(new)) * self.block_size < slots:
                block = next(queue, None)
                if block is None:
                    return op.Refused()
                new.append(block)
        self._take(life, touched, taken)
        life.scheduled = scheduled
        self._publish(life, life.paths[0].length)
        return op.Granted(tuple(tuple(row) for row in life.rows), hit)

    def _take(self, life: PolicyLife, touched: set[int], taken: list[list[int]]) -> None:
        self.changed = True
        for block in touched:
            self.free.pop(block, None)
            self.refs[block] = self.refs.get(block, 0) + 1
        for row, new in zip(life.rows, taken, strict=True):
            for block in new:
                del self.free[block]
                self._unkey(block)
                self.refs[block] = 1
                row.append(block)

    # --- keys -----------------------------------------------------------------------------

    def _publish(self, life: PolicyLife, known: int) -> None:
        """Key the row's full blocks of scheduled and known tokens, each when its turn comes."""
        most = min(life.scheduled, known)
        for group, row in enumerate(life.rows):
            while (life.published[group] + 1) * self.block_size <= most:
                i = life.published[group]
                life.published[group] += 1
                if self.caching:
                    self.changed = True
                    claim = (group, life.paths[group].at((i + 1) * self.block_size - 1))
                    self.index.setdefault(claim, OrderedDict())[row[i]] = None
                    self.keyed[row[i]] = claim

    def _unkey(self, block: int) -> bool:
        claim = self.keyed.pop(block, None)
        if claim is None:
            return False
        self.changed = True
        del self.index[claim][block]
        if not self.index[claim]:
            del self.index[claim]
        return True

    # --- steps and ends -------------------------------------------------------------------

    def _dispatch(self, operation: op.Dispatch) -> None:
        for entry in operation.entries:
            life = self.lives[entry.request]
            life.fence, life.dispatched = operation.step, life.scheduled

    def _retire(self, state: State, operation: op.Retire) -> None:
        for output in operation.outputs:
            life = self.lives[output.request]
            self._publish(life, self._retired(state, life))
        for life in [life for life in self.deferred if life.fence <= operation.step]:
            self.deferred.remove(life)
            self._release(life)

    def _retired(self, state: State, life: PolicyLife) -> int:
        """Up to where a life's tokens may be keyed when a step with it retires."""
        if self.choices.retired == "known":
            return life.paths[0].length
        now = state.requests[life.request].life
        assert now is not None, "outputs name living lives"
        last = now.known + now.pending
        samples = now.grant is not None and now.grant.stop == last and last < now.limit
        return life.scheduled - now.pending - int(samples)

    def _end(self, state: State, name: str) -> None:
        life = self.lives.pop(name, None)
        if life is None:
            return
        for row in life.rows:
            for i, block in enumerate(row):
                if (i + 1) * self.block_size > life.dispatched:
                    self._unkey(block)
        if self.deferring and any(step.number == life.fence for step in state.steps):
            self.deferred.append(life)
        else:
            self._release(life)

    def _release(self, life: PolicyLife) -> None:
        """Group by group from the deepest block: keyed blocks to the back, others where the choices say."""
        self.changed = True
        for row in life.rows:
            front: list[int] = []
            for block in self._in_turn(row):
                self.refs[block] -= 1
                if self.refs[block]:
                    continue
                self.free[block] = None
                if self._place(block) == "front":
                    front.append(block)
            for block in reversed(front):
                self.free.move_to_end(block, last=False)

    def _in_turn(self, row: list[int]) -> list[int]:
        return row if not self.caching and self.choices.uncached == "back-in-order" else row[::-1]

    def _place(self, block: int) -> str:
        """Which end of the free queue a released block goes to."""
        if not self.caching:
            return self.choices.uncached
        return "back" if block in self.keyed else self.choices.unkeyed

    def _evict(self, operation: op.Evict) -> op.Answer:
        life = self.lives[operation.request]
        index = operation.boundary // self.block_size - 1
        gone = [self._unkey(row[index]) for row in life.rows]
        return op.Done() if any(gone) else op.Refused()

    def _reset(self) -> op.Answer:
        if any(self.refs.values()):
            return op.Refused()
        for block in list(self.keyed):
            self._unkey(block)
        return op.Done()
