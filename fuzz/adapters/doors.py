"""The reference asked through every door: what two entries say of the same thing must agree.

No operation needs these entries of the manager, the pool and the worker, so an adapter that only
answers operations leaves them unasked. Here each is asked beside the one that is used; where
they differ the operation ends with an `AssertionError`, and so as a crash.
"""

from kvproof.fuzz.adapters.reference import ReferenceAdapter
from kvproof.fuzz.adapters.reference_worker import ReferenceWorker
from kvproof.impl import arithmetic
from kvproof.impl.block import KVCacheBlock
from kvproof.impl.coordinator import KVCacheCoordinator
from kvproof.impl.free_queue import FreeBlockQueue
from kvproof.impl.request import Request
from kvproof.impl.worker.block_table import BlockTable
from kvproof.impl.worker.protocol import StepDiff
from kvproof.impl.worker.slot_mapping import slot_of
from kvproof.spec import operations as op
from kvproof.spec.vocabulary import CacheConfig, GroupRows


class Doors(ReferenceAdapter):
    """The reference at level 3."""

    name = "doors"

    def configure(self, config: CacheConfig, seed: int) -> None:
        super().configure(config, seed)
        self._worker = self._doors = DoorsWorker(config, self._worker.device)
        self._counted = [0, 0, 0, 0]

    def submit(self, operation: op.Submit) -> None:
        super().submit(operation)
        queue_moves_single_blocks(self._config.blocks)
        table_commits_at_once(self._config.max_requests)
        assert self._config.events or self.manager.event_queue is None, "events that are off are not kept"
        assert self._requests[operation.request].priority == operation.options.priority

    def lookup(self, request: str) -> op.Found:
        found = super().lookup(request)
        pool = self.manager.block_pool
        shown = [(entry.key, entry.group, [*entry.blocks]) for entry in self._index()]
        assert [*pool.index_entries()] == shown, "the index is what its entries are"
        for group, row in enumerate(found.rows):
            assert row == self._first_under(request, group), "a hit is what is under the keys"
        return found

    def _first_under(self, name: str, group: int) -> tuple[int, ...]:
        """The oldest block under each of a request's keys, up to one that has none, or one met before."""
        request, row = self._requests[name], list[int]()
        if request.read_cache:
            for key in request.block_hashes[: (request.num_tokens - 1) // self._config.block_size]:
                oldest = self.manager.block_pool.get_cached_block(key, group)
                if oldest is None or oldest.block_id in row:
                    break
                row.append(oldest.block_id)
        return tuple(row)

    def admit(self, request: str, n: int, lookahead: int) -> op.Granted | op.Refused:
        demands_add_up(self.manager.coordinator, request, n)
        return super().admit(request, n, lookahead)

    def dispatch(self, operation: op.Dispatch) -> op.Dispatched:
        answer = super().dispatch(operation)
        tables = self._worker.batch.tables
        for number, row in enumerate(answer.host or ()):
            for table, ids in zip(tables, row.rows, strict=True):
                assert table.ids(number) == tuple(block for block in ids if block), "ids end with the row"
        return answer

    def retire(self, operation: op.Retire) -> op.Retired:
        for output in operation.outputs:
            self._requests[output.request].append_tokens(output.sampled)
            self._keyed_and_kept(self._requests[output.request])
        self.manager.retire_step(operation.step)
        flight = self._doors.parts(operation.step)
        sampled = {output.request: output.sampled for output in operation.outputs}
        answer = self._doors.retire(operation.step, sampled)
        for row in answer.device or ():
            if row.request:
                slots_have_a_plain_form(row, flight[row.request], self._config.block_size)
        self._counted = [*map(sum, zip(self._counted, self.manager.make_prefix_cache_stats(), strict=True))]
        metrics = self.manager.metrics
        counters = metrics.requests, metrics.queries, metrics.hits, metrics.preemptions
        assert (*self._counted,) == metrics.total == counters, "what was added adds up to the total"
        return answer

    def _keyed_and_kept(self, request: Request) -> None:
        """What a step has computed and what it sampled are keyed by now, and full attention skips nothing."""
        before = self._rows(request.request_id)
        for boundary in (0, request.num_computed_tokens):
            self.manager.cache_blocks(request, boundary)
            self.manager.remove_skipped_blocks(request, boundary)
        assert self._rows(request.request_id) == before, "full attention skips nothing"
        known = min(request.num_computed_tokens, request.num_tokens)
        for manager in self.manager.coordinator.managers if self._config.prefix_caching else ():
            keyed = manager.num_cached_block[request.request_id]
            assert keyed == known // self._config.block_size, "what is computed and known is keyed"

    def table(self, operation: op.Table) -> None:
        batch = self._worker.batch
        free = next((row for row in range(batch.max_rows) if row not in rows_of(self._worker)), None)
        super().table(operation)
        if operation.action == "move":
            assert batch.row_of(operation.request) == free, "the row moves to the first that is free"


class DoorsWorker(ReferenceWorker):
    """A worker that reads the whole message."""

    def dispatch(self, diff: StepDiff) -> op.Dispatched:
        starts = {part.request_id: part.start for part in diff.scheduled}
        for new in diff.new:
            assert new.num_computed == starts[new.request_id], "a new request begins where it is scheduled"
        return super().dispatch(diff)

    def parts(self, step: int) -> dict[str, range]:
        """The positions that a step in flight writes, by request."""
        parts = self._flight[step].parts
        return {part.request_id: range(part.start, part.start + part.n + len(part.drafts)) for part in parts}


def rows_of(worker: ReferenceWorker) -> set[int | None]:
    """The batch rows that are taken."""
    return {worker.batch.row_of(name) for name in worker.batch.states}


def slots_have_a_plain_form(row: op.WorkerRow, positions: range, block_size: int) -> None:
    """The slots of a row are those of its ids, one by one."""
    for ids, slots in zip(row.rows, row.slots, strict=True):
        blocks = [block for block in ids if block]
        plain = tuple(slot_of(blocks, position, block_size) for position in positions)
        assert plain == slots, "slots by the array are slots one by one"


def demands_add_up(coordinator: KVCacheCoordinator, request: str, slots: int) -> None:
    """A group taken twice demands twice as much; a group alone what the coordinator says of it."""
    each = coordinator.get_num_blocks_to_allocate(request, slots, coordinator.no_blocks)
    managers = coordinator.managers
    coordinator.managers = managers * 2
    try:
        both = KVCacheCoordinator.get_num_blocks_to_allocate(
            coordinator, request, slots, coordinator.no_blocks
        )
    finally:
        coordinator.managers = managers
    assert both == arithmetic.Demand(2 * each.fresh, 2 * each.evictable), "demands add up"


def queue_moves_single_blocks(count: int) -> None:
    """A queue gives a block out from wherever it stands, and takes it back at its end."""
    blocks = [KVCacheBlock(block_id) for block_id in range(1, count + 1)]
    queue = FreeBlockQueue(blocks)
    middle = blocks[count // 2]
    queue.remove(middle)
    rest = [block.block_id for block in blocks if block is not middle]
    assert queue.to_list() == rest and len(queue) == count - 1
    queue.append(middle)
    assert queue.to_list() == [*rest, middle.block_id] and len(queue) == count


def table_commits_at_once(rows: int) -> None:
    """A commit of so many rows shows them on the device, and no others."""
    table = BlockTable(rows + 1, 1)
    whole: GroupRows = tuple((row + 1,) for row in range(rows + 1))
    for row, ids in enumerate(whole):
        table.add_row(row, ids)
    table.commit(rows)
    assert table.device_rows(rows + 1).tolist() == [*map(list, whole[:-1]), [0]]
