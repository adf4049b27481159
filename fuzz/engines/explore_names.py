"""Numbers for the blocks, requests, lives, steps and keys of a session, as its canonical form uses them."""

from collections.abc import Iterable

from kvproof.impl.manager import KVCacheManager
from kvproof.spec import operations as op
from kvproof.spec.state import Life, Request, State


class Numbers:
    """What all sessions of an exploration number alike, in the order in which it was met."""

    def __init__(self) -> None:
        self._keys: dict[bytes, int] = {}
        self._inputs: dict[tuple[op.Extras, op.Options], int] = {}

    def key(self, key: bytes) -> int:
        """The number of a key."""
        return self._keys.setdefault(key, len(self._keys))

    def inputs(self, submit: op.Submit) -> int:
        """The number of what a request brings beside its tokens."""
        return self._inputs.setdefault((submit.extras, submit.options), len(self._inputs))


class Names:
    """The numbers of one session. Lives are found by identity, requests by id.

    `usable` are the blocks of the pool in the order of their numbers.
    """

    __slots__ = ("_blocks", "_oldest", "_uses", "inputs", "key", "lives", "requests", "usable")

    def __init__(self, state: State, manager: KVCacheManager, numbers: Numbers) -> None:
        self.key, self.inputs = numbers.key, numbers.inputs
        self._oldest = state.steps[0].number if state.steps else state.next_step
        self._blocks: dict[int, int] = {}
        self.lives: dict[int, int] = {}
        self.requests: dict[str, int] = {}
        self._name_blocks(state, manager)
        for life in (*state.lives.values(), *[e.life for step in state.steps for e in step.entries]):
            self.lives.setdefault(id(life), len(self.lives))
            self.requests.setdefault(life.request, len(self.requests))
        self._name_waiting(state)
        self._uses = {
            id(state.requests[name].paths): number
            for name, number in self.requests.items()
            if not state.requests[name].gone
        }

    def _name_blocks(self, state: State, manager: KVCacheManager) -> None:
        blocks = self._blocks
        for life in state.lives.values():
            for row in life.rows:
                for block in row:
                    blocks.setdefault(block, len(blocks) + 1)
        for free in manager.block_pool.free_queue:
            blocks.setdefault(free.block_id, len(blocks) + 1)
        # Where a faulty allocator has lost blocks and nobody is shown it, they come last.
        for block in range(1, state.config.blocks + 1):
            blocks.setdefault(block, len(blocks) + 1)
        self.usable = list(blocks)
        # The null block and the ends of the queue stand nowhere.
        blocks[0] = blocks[-1] = 0

    def _name_waiting(self, state: State) -> None:
        """Waiting requests in the order of what they are, so that it does not matter who came first."""
        waiting = [name for name, request in state.requests.items() if request.waiting]
        if len(waiting) > 1:
            waiting.sort(key=lambda name: (*self._rank(state, state.requests[name]), name))
        for name in waiting:
            self.requests.setdefault(name, len(self.requests))

    def _rank(self, state: State, request: Request) -> tuple[tuple[int, ...], list[int]]:
        """Equal requests may still differ in the blocks that were last handed out for them."""
        places = ((block, state.places[block][0]) for block in self.usable if block in state.places)
        return self.request(request), [
            self._blocks[block] for block, life in places if life.paths is request.paths
        ]

    def run(self, blocks: Iterable[int]) -> tuple[int, ...]:
        """The numbers of some blocks."""
        return tuple(map(self._blocks.__getitem__, blocks))

    def fence(self, step: int) -> int:
        """The number of a step from the oldest in flight on; 0 for one that has retired."""
        return max(0, step - self._oldest + 1)

    def paths(self, life: Life) -> tuple[int | None, ...]:
        """A life's claims, and the request in use whose tokens they grow with: an ended life's, too,
        if its request goes on."""
        return (self._uses.get(id(life.paths)), *[path.at(path.length - 1) for path in life.paths])

    def request(self, request: Request) -> tuple[int, ...]:
        """What a request is: its inputs, its limit, and its claims, which stand for all its tokens."""
        lengths = [path.length for path in request.paths]
        claims = [path.at(path.length - 1) for path in request.paths]
        return (self.inputs(request.inputs), request.limit, *lengths, *claims)
