"""The harness's own worker: it executes the rows of an allocator that shows no memory of its own.

The engine's messages are built from what the harness itself knows: the tokens that it
submitted and sampled, and the rows that the allocator answered. They go through the
reference worker's tables and slots to a device of the harness, so that bytes are compared
with claims from level 1 on.
"""

from kvproof.fuzz.adapters.reference_worker import ReferenceWorker
from kvproof.fuzz.device import Device
from kvproof.impl import arithmetic
from kvproof.impl.worker.protocol import DiffBuilder, Running
from kvproof.spec import operations as op
from kvproof.spec.state import Life, State
from kvproof.spec.vocabulary import CacheConfig

_GONE = (op.Finish, op.Abort)


class HarnessWorker:
    """Follows a history, operation by operation, each before the state takes it in.

    Rows that no worker could execute (too short, or naming no block) are the oracle's to
    judge; from there on `lost` says that memory means nothing any more.
    """

    def __init__(self, config: CacheConfig, state: State) -> None:
        """Raises `ConfigError` where the device would be too large."""
        self.device = Device(config)
        self.lost = False
        self._state = state
        self._width = arithmetic.row_width(config.max_len, config.block_size)
        self._worker = ReferenceWorker(config, self.device, backend="numpy")
        self._diffs = DiffBuilder()
        self._tokens: dict[str, list[int]] = {}
        self._extras: dict[str, op.Extras] = {}

    def follow(self, operation: op.AnyOperation) -> None:
        """Do what the engine and its worker do at this operation, once the allocator has answered it."""
        match operation:
            case op.Submit():
                self._tokens[operation.request] = op.flatten(operation.tokens)
                self._extras[operation.request] = operation.extras
            case op.Dispatch() if not self.lost:
                self._dispatch(operation)
            case op.Retire() if not self.lost:
                sampled = {output.request: output.sampled for output in operation.outputs}
                self._worker.retire(operation.step, sampled)
        if isinstance(operation, op.Retire):
            for output in operation.outputs:
                self._tokens[output.request].extend(output.sampled)
        elif isinstance(operation, _GONE):
            self._diffs.finish(operation.request)
        elif isinstance(operation, op.Preempt):
            self._diffs.preempt(operation.request)

    def _dispatch(self, operation: op.Dispatch) -> None:
        lives = self._state.grants[: len(operation.entries)]
        if not all(self._executable(life) for life in lives):
            self.lost = True
            return
        running = [self._running(life, entry) for life, entry in zip(lives, operation.entries, strict=True)]
        self._worker.dispatch(self._diffs.build(operation.step, running, operation.padding))

    def _executable(self, life: Life) -> bool:
        assert life.grant is not None, "only a granted life is dispatched"
        config, needed = self._state.config, -(-life.grant.slots // self._state.config.block_size)
        return all(
            len(row) >= needed and all(1 <= block <= config.blocks for block in row) for row in life.rows
        )

    def _running(self, life: Life, entry: op.Entry) -> Running:
        assert life.grant is not None
        name, rows = life.request, tuple(tuple(row[: self._width]) for row in life.rows)
        return Running(
            name, self._tokens[name], self._extras[name], rows, life.grant.start, entry.n, entry.drafts
        )
