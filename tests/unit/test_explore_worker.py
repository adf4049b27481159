"""Exploration with a worker: what presets offer, that a form has all it holds, that copies go on alike."""

from array import array
from collections import deque
from collections.abc import Iterator
from functools import partial
from itertools import count
from weakref import WeakKeyDictionary

import numpy as np
import pytest
from msgspec.structs import replace

from kvproof.fuzz.choices import Choices
from kvproof.fuzz.engines import explore_form
from kvproof.fuzz.engines.explore import Explorer
from kvproof.fuzz.engines.explore_faults import attempt, caught
from kvproof.fuzz.engines.explore_form import Forms
from kvproof.fuzz.engines.explore_moves import Preset, operations, preset
from kvproof.fuzz.engines.explore_raw import raw
from kvproof.fuzz.engines.explore_snapshot import Freezer
from kvproof.fuzz.engines.explore_worker import Explored, adapter_of
from kvproof.fuzz.faults import by_id
from kvproof.fuzz.session import Session
from kvproof.spec import operations as op
from kvproof.spec.oracle import CLAUSES

ROWS, BATCH = preset("rows"), preset("batch")
RICH = replace(BATCH, lookahead=(0, 2), padding=(0, 1), sampled=(0, 1))


def begin(scope: Preset, watch: list[op.Record] | None = None) -> Session:
    return Session(adapter_of(scope), scope.config, watch=watch.append if watch is not None else None)


def walk(scope: Preset, session: Session, seed: int, length: int) -> Iterator[op.AnyOperation]:
    choices = Choices(seed)
    for _ in range(length):
        yield choices.pick(list(operations(scope, session.state)))


def walked(scope: Preset, seed: int, length: int) -> Session:
    session = begin(scope)
    for operation in walk(scope, session, seed, length):
        session.apply(operation)
    assert not session.over
    return session


# --- what may be done -------------------------------------------------------------------


def after(scope: Preset, *history: op.AnyOperation) -> list[op.AnyOperation]:
    session = begin(scope)
    session.run(history)
    assert not session.over
    return list(operations(scope, session.state))


A, B = op.Submit("a", (0,)), op.Submit("b", (0, 0, 0))
BOTH = (A, B, op.Admit("a", 1), op.Admit("b", 3))
STEP = op.Dispatch(1, (op.Entry("a", 1), op.Entry("b", 3)))


def test_steps_come_with_every_padding_that_there_is_room_for():
    steps = [each.padding for each in after(ROWS, A, op.Admit("a", 1)) if isinstance(each, op.Dispatch)]
    assert steps == [0, 1]
    full = [each.padding for each in after(RICH, *BOTH) if isinstance(each, op.Dispatch)]
    assert full == [0], "two rows are taken, and there are two"


def test_rows_of_the_newest_batch_are_moved_and_swapped():
    assert not [each for each in after(RICH, *BOTH) if isinstance(each, op.Table)]
    found = [each for each in after(RICH, *BOTH, STEP) if isinstance(each, op.Table)]
    assert found == [op.Table("swap", "a", "b")], "there is no free row to move to"
    alone = (A, op.Admit("a", 1), op.Dispatch(1, (op.Entry("a", 1),)))
    assert [each for each in after(RICH, *alone) if isinstance(each, op.Table)] == [op.Table("move", "a")]


def test_a_worker_may_remember_any_id_so_that_every_free_one_is_offered():
    names = {each.request for each in after(RICH) if isinstance(each, op.Submit)}
    assert names == {"a", "b"}
    assert {each.request for each in after(replace(RICH, level=2)) if isinstance(each, op.Submit)} == {"a"}


def test_without_a_worker_rows_are_left_alone():
    found = after(replace(RICH, level=2), *BOTH, STEP)
    assert found and not [each for each in found if isinstance(each, op.Table)]


# --- explorations -----------------------------------------------------------------------


def test_with_a_worker_every_clause_is_judged():
    found = Explorer(replace(BATCH, length=5, reaches=())).run()
    assert found.case is None and found.unchecked == ()
    assert {clause.code for clause in CLAUSES} == set(found.exercised)
    assert found.exercised["KV-I5-row"] > 0 and found.exercised["KV-I2-bytes"] > 0


@pytest.mark.parametrize(("scope", "length"), [(ROWS, 6), (BATCH, 5)])
def test_all_that_is_merged_has_the_same_successors(scope, length):
    found = Explorer(replace(scope, length=length, reaches=()), audit=1).run()
    assert found.case is None and found.audited > 10


def test_a_form_without_the_worker_hides_a_fault_of_it(monkeypatch):
    fault, scope = by_id("vacated-row-kept"), replace(ROWS, length=6)
    assert caught("rows", attempt(fault, scope)) is not None
    monkeypatch.setattr(explore_form, "worker_part", lambda names, session: ())
    assert caught("rows", attempt(fault, scope)) is None


# --- forms and copies -------------------------------------------------------------------


def test_a_walk_by_copies_is_the_walk():
    for seed in range(3):
        plain: list[op.Record] = []
        copied: list[op.Record] = []
        raw_session, copy = begin(RICH, plain), begin(RICH, copied)
        freezer, forms = Freezer(copy), Forms(copy)
        for operation in walk(RICH, raw_session, seed, 25):
            raw_session.apply(operation)
            copy = freezer.thaw(freezer.freeze(copy))
            copy.apply(operation)
            assert copy.violation is None and raw_session.violation is None
            assert forms.of(copy) == forms.of(raw_session)
        assert [replace(each, index=0) for each in plain] == [replace(each, index=0) for each in copied]


def spoilings(adapter: Explored) -> dict[str, object]:
    """Something of each part of a worker that is not as it was."""
    worker, device = adapter.worker, adapter.device
    assert worker is not None and device is not None
    (table,), batch = worker.batch.tables, worker.batch
    state = next(iter(batch.states.values()))
    return {
        "host": lambda: table.host.__setitem__((0, 0), 7),
        "device": lambda: table.device.__setitem__((1, 0), 7),
        "staging": lambda: table._staging[0].__setitem__((0, 0), 7),
        "lengths": lambda: table.num_blocks_per_row.__setitem__(1, 3),
        "free buffers": lambda: table._free_buffers.reverse(),
        "memory": lambda: device.cache.__setitem__((0, 1, 0, 0, 0, 0), 7),
        "tokens": lambda: state.tokens.append(9),
        "rows": lambda: state.rows[0].append(2),
        "flight": lambda: worker._flight.clear(),
        "sent": lambda: adapter._diffs._sent.clear(),
        "finished": lambda: adapter._diffs._finished.append("a"),
        "granted": lambda: adapter._granted.update(a=3),
    }


PARTS = ("host", "device", "staging", "lengths", "free buffers", "memory", "tokens", "rows", "flight")


@pytest.mark.parametrize("part", [*PARTS, "sent", "finished", "granted"])
def test_a_form_depends_on_every_part_of_the_worker(part):
    session = begin(RICH)
    freezer, forms = Freezer(session), Forms(session)
    session.run([A, op.Admit("a", 1), op.Dispatch(1, (op.Entry("a", 1),))])
    form, copy = forms.of(session), freezer.thaw(freezer.freeze(session))
    assert forms.of(copy) == form
    assert isinstance(copy.adapter, Explored)
    spoil = spoilings(copy.adapter)[part]
    assert callable(spoil)
    spoil()
    assert forms.of(copy) != form and forms.of(session) == form, "a copy is one of its own"


# --- any object as parts ----------------------------------------------------------------


class Slotted:
    __slots__ = ("__weakref__", "one")

    def __init__(self, one: object) -> None:
        self.one = one

    def add(self) -> None:
        """A method, bound to its object."""


class Growing(list[int]):
    """A list with attributes beside."""


def test_what_differs_in_any_part_has_other_parts():
    grown = Growing([1])
    grown.beside = 2  # type: ignore[attr-defined]
    things = [
        1, 1.5, "1", b"1", None, True, (1,), [1], deque([1]), {1}, frozenset({1}), {1: 2}, {1: 3}, {2: 2},
        {1: 2, 3: 4}, {3: 4, 1: 2}, array("q", [1]), array("q", [2]), array("i", [1]), np.array([1]),
        np.array([[1]]), np.array([1], np.int32), np.array([2]), Slotted(1), Slotted(2), Growing([1]), grown,
        op.Reset(), op.Lookup("a"), op.Lookup("b"), partial(int, "1"), partial(int, "2"), Slotted(1).add,
        Slotted(2).add,
    ]  # fmt: skip
    parts = [repr(raw(each)) for each in things]
    assert len(set(parts)) == len(parts)


def test_equal_things_have_equal_parts_and_what_is_shared_counts():
    one: list[int] = []
    assert raw([one, one]) != raw([[], []]) == raw([[], []])
    assert raw({"a": Slotted((1, [2]))}) == raw({"a": Slotted((1, [2]))})
    ring: list[object] = []
    ring.append(ring)
    assert raw(ring) == ("list", ("→", 0))
    kept, key = WeakKeyDictionary[Slotted, int](), Slotted(1)
    kept[key] = 5
    assert raw(kept) != raw(WeakKeyDictionary())
    assert raw([Slotted(1), 2], (Slotted,)) == raw([Slotted(3), 2], (Slotted,))


def test_what_nobody_can_look_into_is_refused():
    for thing in (object(), count()):
        with pytest.raises(TypeError, match="nobody can look into"):
            raw([thing])
