"""A mutant gives itself away: through a door, under collisions, by a contract, by a lie that is swallowed."""

from collections.abc import Callable
from typing import Any

import pytest

from kvproof.fuzz.adapters.doors import Doors
from kvproof.fuzz.engines import judges
from kvproof.fuzz.engines.soak import soak
from kvproof.impl import arithmetic
from kvproof.impl.arithmetic import Demand
from kvproof.impl.block_pool import BlockPool
from kvproof.impl.coordinator import KVCacheCoordinator
from kvproof.impl.free_queue import FreeBlockQueue
from kvproof.impl.manager import KVCacheManager
from kvproof.impl.metrics import PrefixCacheMetrics
from kvproof.impl.worker.block_table import BlockTable
from kvproof.impl.worker.input_batch import InputBatch
from kvproof.spec.invariants import ownership
from kvproof.spec.properties.leaks import drained


def nothing(*_: object, **__: object) -> Any:
    return None


DOORS: dict[str, tuple[type, str, Callable[..., Any]]] = {
    "a key's block": (BlockPool, "get_cached_block", nothing),
    "what was counted": (PrefixCacheMetrics, "take", lambda metrics: metrics.total),
    "a block out of the queue": (FreeBlockQueue, "remove", nothing),
    "a block into the queue": (FreeBlockQueue, "append", nothing),
    "a commit": (BlockTable, "commit", nothing),
    "a row's ids": (BlockTable, "ids", lambda table, row: (row,)),
    "a move": (InputBatch, "move", nothing),
    "two groups": (
        KVCacheCoordinator,
        "get_num_blocks_to_allocate",
        lambda self, request, slots, hits: self.managers[0].get_num_blocks_to_allocate(
            request, slots, hits[0]
        ),
    ),
    "keys once more": (KVCacheManager, "cache_blocks", lambda manager, request, n: 1 // (n - n)),
}


def test_through_every_door_the_reference_says_the_same() -> None:
    assert soak(600, 5, adapter=Doors).case is None


@pytest.mark.parametrize("name", DOORS)
def test_a_door_that_says_something_else_is_found(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    holder, entry, wrong = DOORS[name]
    monkeypatch.setattr(holder, entry, wrong)
    assert soak(400, 1).case is None, "no operation goes through it"
    case = soak(400, 1, adapter=Doors).case
    assert case is not None and case.expected.clause == "KV-P-crash"


def test_under_collisions_structures_hold_and_contents_do_not() -> None:
    assert judges._with_collisions()[0] == ""
    case = soak(1_500, 1, adapter=judges._Weak, compare_policy=False).case
    assert case is not None and case.expected.clause in judges.BY_COLLISION


def test_a_row_with_a_block_twice_is_found_under_collisions_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvproof.impl.managers.full_attention.distinct_prefix", lambda hits: hits)
    assert judges._plain()[0] == "" != judges._with_collisions()[0]


def test_a_contract_that_is_not_kept_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    assert judges._broken_contract() == ""

    def first_of(first: Demand, second: Demand) -> Demand:
        return first

    monkeypatch.setattr(arithmetic, "joint_demand", first_of)
    assert judges._broken_contract() == "joint_demand"


@pytest.mark.parametrize(("clause", "code"), [(ownership.queue, "KV-I1-queue"), (drained, "KV-P-leak")])
def test_a_lie_that_is_swallowed_is_found(monkeypatch: pytest.MonkeyPatch, clause: Any, code: str) -> None:
    assert judges._swallowed_lie() == ""
    check = clause.check
    before = check.__code__
    try:
        check.__code__ = (lambda moment: None).__code__
        assert judges._swallowed_lie().startswith(f"{code}: ")
    finally:
        check.__code__ = before


def test_an_accusation_of_a_true_history_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    check = drained.check
    before = check.__code__
    try:
        check.__code__ = check.__code__.replace(
            co_consts=tuple("wrong" if const is None else const for const in check.__code__.co_consts)
        )
        assert judges.judged_oracle()[0]
    finally:
        check.__code__ = before
