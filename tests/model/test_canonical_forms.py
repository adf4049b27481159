"""Canonical forms and copies of sessions: what is merged is the same, and a copy is the original."""

import dataclasses
from array import array
from collections import deque
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from kvproof.fuzz.adapters.reference import ReferenceAdapter
from kvproof.fuzz.choices import Choices
from kvproof.fuzz.engines import explore_form, explore_moves, explore_names
from kvproof.fuzz.engines.explore import Explorer, UnsoundMerge
from kvproof.fuzz.engines.explore_form import LEFT_OUT, Forms
from kvproof.fuzz.engines.explore_moves import NAMES, Preset, operations, preset
from kvproof.fuzz.engines.explore_snapshot import Freezer
from kvproof.fuzz.session import Session
from kvproof.spec import operations as op
from kvproof.spec.state import State

OURS = ("kvproof.impl", "kvproof.spec")
RICH = replace(preset("small"), requests=3, config=replace(preset("small").config, blocks=4, max_requests=3))
"""As wide as it gets: three requests, chunks, drafts, two steps in flight."""


def begin(scope: Preset) -> Session:
    return Session(ReferenceAdapter(2), scope.config, execute=False)


def walk(scope: Preset, session: Session, seed: int, length: int) -> Iterator[op.AnyOperation]:
    """Operations of a scope, drawn one by one from what the session's state allows."""
    choices = Choices(seed)
    for _ in range(length):
        yield choices.pick(list(operations(scope, session.state)))


def walked(scope: Preset, seed: int, length: int) -> Session:
    session = begin(scope)
    for operation in walk(scope, session, seed, length):
        session.apply(operation)
    assert not session.over
    return session


# --- copies -----------------------------------------------------------------------------


def same(one: Any, other: Any, pairs: dict[int, int]) -> bool:
    """Whether two graphs of objects are equal, the ways in which they share objects included."""
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, int | float | str | bytes):
        return bool(one == other)
    if id(one) in pairs:
        return pairs[id(one)] == id(other)
    pairs[id(one)] = id(other)
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key], pairs) for key in one)
    if isinstance(one, list | tuple | deque):
        return len(one) == len(other) and all(same(a, b, pairs) for a, b in zip(one, other, strict=True))
    slots = [name for kind in type(one).__mro__ for name in getattr(kind, "__slots__", ())]
    if hasattr(one, "__dict__") or slots:
        names = [*slots, *getattr(one, "__dict__", {})]
        return all(same(getattr(one, name), getattr(other, name), pairs) for name in names)
    return bool(one == other)


@pytest.mark.parametrize("seed", range(6))
def test_a_copy_is_equal_to_its_original_part_by_part(seed):
    session = walked(RICH, seed, 12)
    freezer = Freezer(session)
    copy = freezer.thaw(freezer.freeze(session))
    assert copy.operations == []
    copy.operations = session.operations
    assert copy.adapter is not session.adapter and copy.state is not session.state
    assert same(session, copy, {})


def test_a_difference_between_copies_would_be_seen():
    session = begin(RICH)
    session.run([submit("a", 0, 0, 0), op.Admit("a", 3)])
    freezer = Freezer(session)
    for spoil in (
        lambda copy: copy.state.holders.clear(),
        lambda copy: setattr(copy.adapter.manager.block_pool.blocks[2], "ref_cnt", 7),
        lambda copy: copy.oracle.policy.free.clear(),
        lambda copy: copy.state.lives.update({1: dataclasses.replace(copy.state.lives[1])}),
    ):
        copy = freezer.thaw(freezer.freeze(session))
        copy.operations = session.operations
        spoil(copy)
        assert not same(session, copy, {})


def test_a_walk_by_copies_is_the_walk():
    """What is thawed before every operation answers, shows and judges as what was never frozen."""
    for seed in range(4):
        plain: list[op.Record] = []
        copied: list[op.Record] = []
        config = RICH.config
        raw = Session(ReferenceAdapter(2), config, execute=False, watch=plain.append)
        copy = Session(ReferenceAdapter(2), config, execute=False, watch=copied.append)
        freezer, forms = Freezer(copy), Forms(copy)
        for operation in walk(RICH, raw, seed, 25):
            raw.apply(operation)
            copy = freezer.thaw(freezer.freeze(copy))
            copy.apply(operation)
            assert copy.violation is None and raw.violation is None
            # Each interns claims of its own, in the same order.
            assert forms.of(copy) == forms.of(raw)
        assert [replace(each, index=0) for each in plain] == [replace(each, index=0) for each in copied]


# --- forms ------------------------------------------------------------------------------


ROOT = begin(RICH)
FREEZER = Freezer(ROOT)
EMPTY = FREEZER.freeze(ROOT)
FORMS = Forms(ROOT)


def do(*history: op.AnyOperation) -> bytes:
    """The form after some operations, all from one root, since claims must be of one interner."""
    session = FREEZER.thaw(EMPTY)
    session.run(history)
    assert not session.over
    return FORMS.of(session)


def submit(name: str, *tokens: int) -> op.Submit:
    return op.Submit(name, tokens)


def test_ids_order_of_arrival_and_numbers_of_steps_and_lives_don_t_matter():
    a, b = submit("a", 0, 0, 0), submit("b", 0, 0, 1, 1, 0)
    assert do(a, b) == do(b, a) == do(submit("c", 0, 0, 0), submit("a", 0, 0, 1, 1, 0))
    once: list[op.AnyOperation] = [
        op.Admit("a", 3),
        op.Dispatch(1, (op.Entry("a", 3),)),
        op.Preempt("a"),
        op.Retire(1),
    ]
    again: list[op.AnyOperation] = [
        op.Admit("a", 3),
        op.Dispatch(2, (op.Entry("a", 1),)),
        op.Preempt("a"),
        op.Retire(2),
    ]
    third: list[op.AnyOperation] = [
        op.Admit("a", 3),
        op.Dispatch(3, (op.Entry("a", 1),)),
        op.Preempt("a"),
        op.Retire(3),
    ]
    assert do(a, *once) != do(a)
    assert do(a, *once, *again) == do(a, *once, *again, *third)


def test_what_a_later_answer_or_verdict_depends_on_does_matter():
    a, b = submit("a", 0, 0, 0), submit("b", 0, 0, 1, 1, 0)
    admitted = (a, op.Admit("a", 3))
    forms = {
        do(a),
        do(b),
        do(*admitted),
        do(a, op.Admit("a", 2)),
        do(a, op.Admit("a", 3, 2)),
        do(*admitted, op.Evict("a", 2)),
        do(*admitted, op.Preempt("a")),
        do(*admitted, op.Finish("a")),
        do(*admitted, b),
        do(*admitted, b, op.Admit("b", 1)),
        do(*admitted, op.Dispatch(1, (op.Entry("a", 3),))),
        do(*admitted, op.Dispatch(1, (op.Entry("a", 3),)), op.Finish("a")),
    }
    assert len(forms) == 12


def test_what_a_faulty_manager_keeps_beside_counts_too():
    session = FREEZER.thaw(EMPTY)
    form = FORMS.of(session)
    session.adapter.manager.remembered = {"a": [1]}  # type: ignore[attr-defined]
    first = FORMS.of(session)
    session.adapter.manager.remembered["a"].append(2)  # type: ignore[attr-defined]
    assert len({form, first, FORMS.of(session)}) == 3


@pytest.mark.parametrize(("place", "end"), [("free", "prev_free"), ("held", "next_free")])
def test_links_beside_the_order_of_the_queue_count_too(place, end):
    """A faulty queue links one way only, or leaves a block that it gave away linked: the order from the head
    on, which the names of blocks say, is the same, and what is taken out next is not."""
    session = FREEZER.thaw(EMPTY)
    session.run([submit("a", 0, 0, 0), op.Admit("a", 1)])
    form = FORMS.of(session)
    pool = session.adapter.manager.block_pool  # type: ignore[attr-defined]
    order = [block.block_id for block in pool.free_queue]
    held = next(block for block in pool.blocks[1:] if block.ref_cnt)
    first, _, third = pool.free_queue
    setattr(third if place == "free" else held, end, first)
    assert [block.block_id for block in pool.free_queue] == order
    assert FORMS.of(session) != form


def fields_of(thing: object) -> list[str]:
    slots = [name for kind in type(thing).__mro__ for name in getattr(kind, "__slots__", ())]
    return [*slots, *getattr(thing, "__dict__", {})]


def reached(thing: Any, found: dict[int, Any]) -> None:
    """All objects of ours that a thing leads to."""
    if id(thing) in found:
        return
    if isinstance(thing, dict):
        for each in thing.values():
            reached(each, found)
    elif isinstance(thing, list | tuple | deque):
        for each in thing:
            reached(each, found)
    elif not isinstance(thing, msgspec.Struct) and type(thing).__module__.startswith(
        ("kvproof.impl", "kvproof.spec")
    ):
        found[id(thing)] = thing
        for name in fields_of(thing):
            reached(getattr(thing, name), found)


def spoiled(value: Any) -> list[Any]:
    """Other values of the same kind."""
    match value:
        case bool():
            return [not value]
        case int():
            return [value + 1]
        case str():
            return ["nobody"]
        case bytes():
            return [b"\0" * 32]
        case None:
            return [1, b"\0" * 32]
        case array():
            return [array("q", [*value, 9])]
        case list() | tuple() | deque():
            return [type(value)([*value][1:] or [9] * (not value))]
        case dict():
            return [type(value)(list(value.items())[1:] or [(9, 9)] * (not value))]
        case set() | frozenset():
            return [type(value)(list(value)[1:] or [9] * (not value))]
        case _:
            return []


def noticed(session: Session, form: bytes, thing: object, name: str) -> bool:
    """Whether the form changes, or can't be had, when a field of a thing has another value."""
    before = getattr(thing, name)
    for value in spoiled(before):
        try:
            object.__setattr__(thing, name, value)
            if Forms(ROOT).of(session) != form:
                return True
        except Exception:
            return True
        finally:
            object.__setattr__(thing, name, before)
    return False


def unnoticed() -> set[str]:
    """Fields of the manager, the state, the keys and the policy on which no form depends."""
    missed: set[str] = set()
    seen: set[str] = set()
    for seed in range(10):
        session = walked(RICH, seed, 14)
        form = Forms(ROOT).of(session)
        found: dict[int, Any] = {}
        for root in (session.adapter, session.oracle.state, session.oracle.keys, session.oracle.policy):
            reached(vars(root) if isinstance(root, ReferenceAdapter) else root, found)
        for thing in found.values():
            for name in fields_of(thing):
                field = f"{type(thing).__module__.removeprefix('kvproof.')}.{type(thing).__qualname__}.{name}"
                if field in seen or not spoiled(getattr(thing, name)):
                    continue
                if noticed(session, form, thing, name):
                    seen.add(field)
                else:
                    missed.add(field)
    return missed - seen


def test_a_form_depends_on_every_field_but_those_that_are_left_out_for_a_reason():
    assert unnoticed() == {field for fields in LEFT_OUT.values() for field in fields}


def test_a_field_that_is_forgotten_would_be_seen(monkeypatch):
    monkeypatch.setattr(explore_form, "_lives", lambda names, state: [])
    assert "spec.state.Life.pending" in unnoticed()


# --- merging ----------------------------------------------------------------------------


def scope(name: str, length: int, **changes: Any) -> Preset:
    return replace(preset(name), length=length, reaches=(), **changes)


@pytest.mark.parametrize(("name", "length"), [("tiny", 6), ("small", 5)])
def test_all_that_is_merged_has_the_same_successors(name, length):
    found = Explorer(scope(name, length), audit=1).run()
    assert found.case is None and found.audited > 100


def all_free(preset: Preset, state: State) -> list[str]:
    return [
        name for name in NAMES[: preset.requests] if name not in state.requests or state.requests[name].gone
    ]


def test_merging_loses_no_state_and_makes_none(monkeypatch):
    """Every sequence one by one, with every id, nothing merged, leads to the same forms as soon."""
    short = scope("small", 4)
    explored = Explorer(short).run()
    monkeypatch.setattr(explore_moves, "_free_names", all_free)
    root = begin(short)
    freezer, forms = Freezer(root), Forms(root)
    least = {forms.of(root): 0}
    sequences = [freezer.freeze(root)]
    for length in range(1, short.length + 1):
        longer = []
        for data in sequences:
            for operation in list(operations(short, freezer.thaw(data).state)):
                session = freezer.thaw(data)
                session.apply(operation)
                least.setdefault(forms.of(session), length)
                longer.append(freezer.freeze(session))
        sequences = longer
    lengths = list(least.values())
    assert explored.states == [lengths.count(length) for length in range(short.length + 1)]
    assert len(sequences) > 2 * len(least), "there was something to merge"


def without_order(names, state, manager):
    """Blocks numbered by what they hold, and not by where they stand in the free queue."""
    held = {block: None for life in state.lives.values() for row in life.rows for block in row}
    free = [block.block_id for block in manager.block_pool.free_queue]
    free.sort(key=lambda block: (str(state.written.get(block)), block in state.places))
    names._blocks = {block: number for number, block in enumerate((*held, *free), 1)}
    names.usable = list(names._blocks)
    names._blocks[0] = names._blocks[-1] = 0


def test_a_form_without_the_order_of_the_free_queue_is_noticed(monkeypatch):
    monkeypatch.setattr(explore_names.Names, "_name_blocks", without_order)
    monkeypatch.setattr(explore_form, "_pool", lambda names, pool: [])
    monkeypatch.setattr(explore_form, "_policy", lambda names, policy: [])
    with pytest.raises(UnsoundMerge):
        Explorer(scope("tiny", 7), audit=1).run()


def test_a_form_without_the_lives_is_noticed(monkeypatch):
    monkeypatch.setattr(explore_form, "_lives", lambda names, state: [])
    with pytest.raises(UnsoundMerge):
        Explorer(scope("tiny", 6), audit=1).run()


def test_a_block_that_nobody_can_reach_still_counts(monkeypatch):
    """What a free block was last handed out for is in the form, dead or not."""
    plain = Explorer(scope("tiny", 5)).run()
    monkeypatch.setattr(explore_form, "_blocks", lambda names, state: [])
    assert sum(Explorer(scope("tiny", 5), audit=10**9).run().states) < sum(plain.states)
