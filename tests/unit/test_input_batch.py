"""Messages, the worker's batch and the reference worker: rows, reuse of ids, late execution, contents."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kvproof.fuzz.adapters.reference_worker import UNKNOWN_TOKEN, ReferenceWorker
from kvproof.fuzz.device import Device, Digests
from kvproof.impl.worker.block_table import BlockTable
from kvproof.impl.worker.input_batch import BatchError, InputBatch
from kvproof.impl.worker.protocol import CachedRequest, DiffBuilder, NewRequest, Running, Scheduled, StepDiff
from kvproof.impl.worker.slot_mapping import PositionError
from kvproof.spec import operations as op
from kvproof.spec.content import Root
from kvproof.spec.vocabulary import CacheConfig

ROWS, WIDTH = 4, 3
CONFIG = CacheConfig(blocks=9, block_size=4, depth=2, max_requests=ROWS, max_len=12)


def running(name, row, start=0, n=1, tokens=(), drafts=(), payload=None):
    return Running(name, tokens, payload or op.Extras(), (tuple(row),), start, n, drafts)


def rows_of(batch):
    return batch.tables[0].host.tolist()


@pytest.fixture
def builder():
    return DiffBuilder()


@pytest.fixture
def batch():
    return InputBatch([BlockTable(ROWS, WIDTH)])


# --- the message --------------------------------------------------------------------------


def test_a_request_is_sent_whole_once_and_then_by_appended_ids(builder):
    first = builder.build(1, [running("a", [1, 2], 0, 3, [7, 8, 9])], padding=1)
    assert first == StepDiff(
        1,
        (Scheduled("a", 0, 3),),
        new=(NewRequest("a", (7, 8, 9), op.Extras(), ((1, 2),), 0),),
        padding=1,
    )
    second = builder.build(2, [running("a", [1, 2, 5], 3, 1, [7, 8, 9, 4], (6,))])
    assert second == StepDiff(2, (Scheduled("a", 3, 1, (6,)),), cached=(CachedRequest("a", ((5,),)),))
    third = builder.build(3, [running("a", [1, 2, 5, 7, 8], 4, 9)])
    assert third.cached == (CachedRequest("a", ((7, 8),)),)


def test_a_resumed_request_is_sent_anew_with_all_tokens_but_without_its_payload(builder):
    builder.build(1, [running("a", [1])])
    builder.preempt("a")
    builder.build(2, [running("b", [2])])
    again = builder.build(3, [running("a", [3, 4], 0, 5, [1, 2, 3, 4, 5])])
    assert again.new == () and again.preempted == ()
    assert again.cached == (CachedRequest("a", ((3, 4),), True, (1, 2, 3, 4, 5)),)


def test_a_row_that_did_more_than_grow_is_sent_whole_while_the_request_goes_on(builder, batch):
    batch.apply(builder.build(1, [running("a", [1, 2], tokens=[5, 6])]))
    state = batch.states["a"]
    diff = builder.build(2, [running("a", [1, 4, 3])])
    assert diff.cached == (CachedRequest("a", ((1, 4, 3),), replaced=True),)
    assert (diff.new, diff.preempted) == ((), ())
    batch.apply(diff)
    assert rows_of(batch)[0] == [1, 4, 3]
    assert batch.states["a"] is state and state.tokens == [5, 6]
    shorter = builder.build(3, [running("a", [7])])
    batch.apply(shorter)
    assert rows_of(batch)[0] == [7, 0, 0]
    batch.apply(builder.build(4, [running("a", [7, 2])]))
    assert rows_of(batch)[0] == [7, 2, 0]


def test_a_reused_id_is_a_new_request(builder):
    builder.build(1, [running("a", [1])])
    builder.finish("a")
    diff = builder.build(2, [running("a", [2], tokens=[5])])
    assert diff.finished == ("a",)
    assert [new.tokens for new in diff.new] == [(5,)]


def test_each_end_is_told_once(builder):
    builder.build(1, [running("a", [1]), running("b", [2])])
    builder.preempt("a")
    builder.finish("a")
    builder.preempt("b")
    diff = builder.build(2, [running("c", [3])])
    assert (diff.finished, diff.preempted) == (("a",), ("b",))
    diff = builder.build(3, [running("c", [3])])
    assert (diff.finished, diff.preempted) == ((), ())
    builder.finish("b")
    assert builder.build(4, [running("c", [3])]).finished == ("b",)


def test_the_end_of_what_was_never_sent_is_not_told(builder):
    builder.preempt("a")
    builder.finish("a")
    diff = builder.build(1, [running("a", [1])])
    assert (diff.finished, diff.preempted, len(diff.new)) == ((), (), 1)


# --- the batch ----------------------------------------------------------------------------


def test_requests_that_are_not_in_a_step_leave_the_batch_and_come_back_whole(builder, batch):
    batch.apply(builder.build(1, [running("a", [1, 2]), running("b", [3])]))
    batch.apply(builder.build(2, [running("b", [3])]))
    assert rows_of(batch)[:2] == [[3, 0, 0], [0, 0, 0]]
    batch.apply(builder.build(3, [running("b", [3]), running("a", [1, 2, 4])]))
    assert rows_of(batch)[:2] == [[3, 0, 0], [1, 2, 4]]


def test_the_last_row_fills_a_hole_and_the_row_that_it_leaves_is_null(builder, batch):
    batch.apply(builder.build(1, [running(name, [i, i]) for i, name in enumerate("abc", 1)]))
    builder.finish("a")
    batch.apply(builder.build(2, [running("b", [2, 2]), running("c", [3, 3])]))
    assert rows_of(batch) == [[3, 3, 0], [2, 2, 0], [0, 0, 0], [0, 0, 0]]


def test_a_preempted_and_resumed_request_takes_its_new_row(builder, batch):
    batch.apply(builder.build(1, [running("a", [1, 2, 3])]))
    old = batch.states["a"]
    builder.preempt("a")
    batch.apply(builder.build(2, [running("a", [7], tokens=[1, 2])]))
    assert rows_of(batch)[0] == [7, 0, 0]
    assert batch.states["a"] is not old and batch.states["a"].payload == old.payload


def test_a_move_leaves_a_null_hole_until_the_next_step(builder, batch):
    batch.apply(builder.build(1, [running("a", [1]), running("b", [2])]))
    batch.move("a")
    assert rows_of(batch)[:3] == [[0, 0, 0], [2, 0, 0], [1, 0, 0]]
    with pytest.raises(BatchError, match="hole"):
        batch.stage()
    batch.move("b")
    assert rows_of(batch)[:3] == [[2, 0, 0], [0, 0, 0], [1, 0, 0]]
    batch.apply(builder.build(2, [running("a", [1]), running("b", [2])]))
    assert rows_of(batch)[:3] == [[2, 0, 0], [1, 0, 0], [0, 0, 0]]


def test_a_swap_exchanges_rows(builder, batch):
    batch.apply(builder.build(1, [running("a", [1, 5]), running("b", [2])]))
    batch.swap("a", "b")
    assert (batch.row_of("a"), batch.row_of("b")) == (1, 0)
    assert rows_of(batch)[:2] == [[2, 0, 0], [1, 5, 0]]
    batch.swap("a", "a")
    batch.apply(builder.build(2, [running("a", [1, 5, 6]), running("b", [2])]))
    assert rows_of(batch)[:2] == [[2, 0, 0], [1, 5, 6]]


new = NewRequest("a", (1,), None, ((1,),), 0)


@pytest.mark.parametrize(
    ("diff", "message"),
    [
        (StepDiff(2, (), finished=("z",)), "never sent"),
        (StepDiff(2, (), preempted=("z",)), "never sent"),
        (StepDiff(2, (Scheduled("a", 0, 1),), new=(new,)), "knows them"),
        (StepDiff(2, (Scheduled("z", 0, 1),), cached=(CachedRequest("z", ((),)),)), "doesn't know"),
        (
            StepDiff(2, (Scheduled("a", 0, 1),), cached=(CachedRequest("a", ((),)),), finished=("a",)),
            "doesn't know",
        ),
        (StepDiff(2, (Scheduled("a", 0, 1),)), "not those"),
        (StepDiff(2, (), cached=(CachedRequest("a", ((),)),)), "not those"),
        (StepDiff(2, (), padding=ROWS + 1), "padding rows"),
        (StepDiff(2, (Scheduled("a", 0, 1),), cached=(CachedRequest("a", ((1, 2, 3),)),)), "columns"),
    ],
)
def test_a_message_that_does_not_fit_is_refused_and_changes_nothing(builder, batch, diff, message):
    batch.apply(builder.build(1, [running("a", [1])]))
    before = rows_of(batch)
    with pytest.raises(ValueError, match=message):
        batch.apply(diff)
    assert rows_of(batch) == before and batch.row_of("a") == 0
    assert batch.states["a"].rows == [[1]]


def test_rearranging_what_has_no_row_or_no_room_is_refused(builder, batch):
    batch.apply(builder.build(1, [running(name, [1]) for name in "abcd"]))
    with pytest.raises(BatchError, match="nowhere"):
        batch.move("a")
    with pytest.raises(BatchError, match="no row"):
        batch.swap("a", "z")
    with pytest.raises(BatchError, match="padding"):
        batch.stage(1)


# --- the worker ---------------------------------------------------------------------------


class Rig:
    """A worker, its device and the engine's side of the messages."""

    def __init__(self):
        self.device = Device(CONFIG)
        self.worker = ReferenceWorker(CONFIG, self.device)
        self.builder = DiffBuilder()
        self.step = 0

    def dispatch(self, *requests, padding=0):
        self.step += 1
        return self.worker.dispatch(self.builder.build(self.step, requests, padding)).host

    def retire(self, step=None, **sampled):
        outputs = {name: (token,) for name, token in sampled.items()}
        return self.worker.retire(step or self.step, outputs).device

    def wrong(self, block, tokens, extras=None, first=0):
        """The offsets of a block that do not hold `tokens` from position `first` on."""
        digests = Digests()
        found = [digests.root(Root(0, 0, None, ""))]
        for position, token in enumerate(tokens):
            found.append(digests.extend(found[-1], token, (extras or {}).get(position)))
        places = [(block, i, digest) for i, digest in enumerate(found[first + 1 :])]
        return {mismatch.offset for mismatch in self.device.verify(places)}


@pytest.fixture
def rig():
    return Rig()


def test_a_step_answers_its_rows_then_the_slots_that_it_wrote(rig):
    host = rig.dispatch(running("a", [3, 5], 0, 6, range(6)), running("b", [2], 0, 1, [9]), padding=1)
    assert host == (
        op.WorkerRow("a", ((3, 5, 0),)),
        op.WorkerRow("b", ((2, 0, 0),)),
        op.WorkerRow("", ((0, 0, 0),)),
    )
    assert rig.worker.rows(1) == host
    assert rig.retire() == (
        op.WorkerRow("a", ((3, 5, 0),), ((12, 13, 14, 15, 20, 21),)),
        op.WorkerRow("b", ((2, 0, 0),), ((8,),)),
        op.WorkerRow("", ((0, 0, 0),), ((-1,),)),
    )


def test_contents_are_those_of_the_tokens_that_were_received(rig):
    rig.dispatch(running("a", [3, 5], 0, 6, range(6)))
    rig.retire(a=6)
    assert rig.wrong(3, range(4)) == set()
    assert rig.wrong(5, range(6), first=4) == set()
    assert rig.wrong(3, [0, 1, 7, 3]) == {2, 3}
    rig.dispatch(running("a", [3, 5], 6, 1))
    rig.retire(a=7)
    assert rig.wrong(5, range(7), first=4) == set()


def test_contents_depend_on_extras(rig):
    extras = op.Extras(items=(op.Item("i", 1, 2),), embeddings=(op.Embedding(3, 5),))
    rig.dispatch(running("a", [3], 0, 4, range(4), payload=extras))
    rig.retire()
    special = {1: ("item", "i", 0), 2: ("item", "i", 1), 3: ("embedding", 5, 0)}
    assert rig.wrong(3, range(4), special) == set()
    assert rig.wrong(3, range(4)) == {1, 2, 3}


def test_a_hit_is_not_written_again(rig):
    rig.dispatch(running("a", [3, 5], 4, 2, range(6)))
    assert rig.retire()[0].slots == ((20, 21),)
    assert rig.wrong(5, range(6), first=4) == set()
    assert rig.wrong(3, range(4)) == {0, 1, 2, 3}


def test_drafts_are_written_behind_the_grant_and_later_overwritten(rig):
    rig.dispatch(running("a", [3], 0, 2, [0, 1], drafts=(8, 9)))
    assert rig.retire(a=2)[0].slots == ((12, 13, 14, 15),)
    assert rig.wrong(3, [0, 1, 8, 9]) == set()
    rig.dispatch(running("a", [3], 2, 1))
    rig.retire(a=5)
    assert rig.wrong(3, [0, 1, 2]) == set()
    assert rig.wrong(3, [0, 1, 2, 9]) == {3}


def test_a_step_uses_the_output_of_the_step_before_it_even_if_sent_earlier(rig):
    rig.dispatch(running("a", [3], 0, 2, [0, 1]))
    rig.dispatch(running("a", [3], 2, 1))
    rig.retire(1, a=2)
    rig.retire(2, a=3)
    assert rig.wrong(3, [0, 1, 2]) == set()


def test_a_row_is_replaced_while_a_token_is_sampled_and_the_token_is_not_lost(rig):
    rig.dispatch(running("a", [3, 5], 0, 4, [0, 1, 2, 3]))
    rig.dispatch(running("a", [3, 6], 4, 1))
    rig.retire(1, a=4)
    rig.retire(2, a=5)
    assert rig.wrong(3, range(4)) == set()
    assert rig.wrong(6, range(5), first=4) == set()
    assert rig.worker.batch.states["a"].tokens == [0, 1, 2, 3, 4, 5]


def test_a_step_executes_when_it_retires_on_the_rows_of_its_dispatch(rig):
    rig.dispatch(running("a", [3], 0, 1, [0]), running("b", [4], 0, 1, [1]))
    rig.worker.table(op.Table("swap", "a", "b"))
    rig.dispatch(running("a", [3, 6], 1, 4))
    assert rig.wrong(3, [0]) == {0}
    first = rig.retire(1)
    assert [(row.request, row.rows) for row in first] == [("a", ((3, 0, 0),)), ("b", ((4, 0, 0),))]
    assert rig.wrong(3, [0]) == set() and rig.wrong(4, [1]) == set()
    assert rig.retire(2)[0].slots == ((13, 14, 15, 24),)


def test_a_reused_id_does_not_disturb_the_step_in_flight_of_the_old_life(rig):
    rig.dispatch(running("a", [3], 0, 2, [0, 1]))
    rig.builder.finish("a")
    rig.dispatch(running("a", [4], 0, 2, [5, 6]))
    rig.retire(1)
    rig.retire(2, a=7)
    assert rig.wrong(3, [0, 1]) == set()
    assert rig.wrong(4, [5, 6]) == set()
    assert rig.worker.batch.states["a"].tokens == [5, 6, 7]


def test_a_token_that_the_worker_never_learned_is_written_as_unknown(rig):
    rig.dispatch(running("a", [3], 0, 2, [0, 1]))
    rig.dispatch(running("a", [3], 2, 1))
    rig.builder.preempt("a")
    rig.retire(1)
    rig.retire(2)
    assert rig.wrong(3, [0, 1, UNKNOWN_TOKEN]) == set()
    assert rig.wrong(3, [0, 1, 2]) == {2}


def test_steps_retire_in_order_and_outputs_belong_to_them(rig):
    rig.dispatch(running("a", [3], 0, 1, [0]))
    rig.dispatch(running("a", [3], 1, 1))
    with pytest.raises(ValueError, match="not the next"):
        rig.retire(2)
    with pytest.raises(BatchError, match="step 1 has no"):
        rig.retire(1, b=1)
    rig.retire(1, a=1)
    rig.retire(2)
    with pytest.raises(BatchError, match="not in flight"):
        rig.retire(2)


def test_a_position_without_a_block_is_an_error(rig):
    rig.dispatch(running("a", [3], 0, 5, range(5)))
    with pytest.raises(PositionError):
        rig.retire()


# --- at random, against a model that knows only rows and tokens ---------------------------


class WorkerMachine(RuleBasedStateMachine):
    """Requests come, run, stop and come back; every answered row and written block is compared.

    Each life has one block of its own, and its request at most four tokens.
    """

    def __init__(self):
        super().__init__()
        self.rig = Rig()
        self.tokens: dict[str, list[int]] = {}
        self.block: dict[str, int] = {}
        self.done: dict[str, int] = {}
        self.waiting: set[str] = set()
        self.flight: list[tuple[int, dict[str, range]]] = []
        self.requests = 0

    def begin_life(self, name):
        self.block[name] = next(b for b in range(1, 9) if b not in self.block.values())
        self.done[name] = 0

    def idle(self):
        """The requests that no step in flight contains."""
        return sorted(self.tokens.keys() - {name for _, parts in self.flight for name in parts})

    @precondition(lambda self: len(self.tokens) < ROWS)
    @rule(name=st.sampled_from("abcdef"), count=st.integers(1, 3))
    def submit(self, name, count):
        if name not in self.tokens:
            self.requests += 1
            self.tokens[name] = [self.requests * 10 + i for i in range(count)]
            self.begin_life(name)

    @precondition(lambda self: len(self.flight) < 2)
    @rule(data=st.data(), padding=st.integers(0, 1))
    def dispatch(self, data, padding):
        ready = [
            name
            for name in self.idle()
            if name not in self.waiting and self.done[name] < len(self.tokens[name])
        ]
        if not ready:
            return
        names = data.draw(st.permutations(ready))[: data.draw(st.integers(1, len(ready)))]
        padding = min(padding, ROWS - len(names))
        parts = {name: range(self.done[name], len(self.tokens[name])) for name in names}
        host = self.rig.dispatch(
            *(
                running(name, [self.block[name]], part.start, len(part), self.tokens[name])
                for name, part in parts.items()
            ),
            padding=padding,
        )
        assert sorted(row.request for row in host) == sorted([*names, *[""] * padding])
        for row in host:
            assert row.rows == ((self.block.get(row.request, 0), 0, 0),)
        self.flight.append((self.rig.step, parts))

    @precondition(lambda self: self.flight)
    @rule()
    def retire(self):
        step, parts = self.flight.pop(0)
        sampled = {name: 90 + step % 7 for name in parts if len(self.tokens[name]) < 4}
        for row in self.rig.retire(step, **sampled):
            if row.request:
                first = self.block[row.request] * 4
                assert row.slots == (tuple(first + p for p in parts[row.request]),)
            else:
                assert row.slots == ((-1,),)
        for name, part in parts.items():
            self.done[name] = part.stop
            assert self.rig.wrong(self.block[name], self.tokens[name]) == set()
            self.tokens[name] += [sampled[name]] if name in sampled else []

    @precondition(lambda self: self.idle())
    @rule(data=st.data())
    def finish(self, data):
        name = data.draw(st.sampled_from(self.idle()))
        self.rig.builder.finish(name)
        del self.tokens[name], self.block[name], self.done[name]
        self.waiting.discard(name)

    @precondition(lambda self: set(self.idle()) - self.waiting)
    @rule(data=st.data())
    def preempt(self, data):
        name = data.draw(st.sampled_from(sorted(set(self.idle()) - self.waiting)))
        self.rig.builder.preempt(name)
        self.waiting.add(name)

    @precondition(lambda self: self.waiting)
    @rule()
    def resume(self):
        name = min(self.waiting)
        self.waiting.remove(name)
        self.begin_life(name)

    @rule(data=st.data())
    def rearrange(self, data):
        batch = self.rig.worker.batch
        names = sorted(name for name in batch.states if batch.row_of(name) is not None)
        if not names:
            return
        one, other = (data.draw(st.sampled_from(names)) for _ in range(2))
        if data.draw(st.booleans()):
            self.rig.worker.table(op.Table("swap", one, other))
        elif len(batch) < ROWS:
            self.rig.worker.table(op.Table("move", one))

    @invariant()
    def rows_of_nobody_are_null(self):
        batch = self.rig.worker.batch
        taken = {batch.row_of(name) for name in batch.states}
        for row, ids in enumerate(rows_of(batch)):
            assert row in taken or not any(ids)


TestWorker = WorkerMachine.TestCase
