"""The harness executes the rows of an allocator that shows no memory."""

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from kvproof.fuzz.adapters.reference import ReferenceAdapter
from kvproof.fuzz.engines.soak import soak
from kvproof.fuzz.faults import by_id, planted
from kvproof.fuzz.harness_worker import HarnessWorker
from kvproof.fuzz.session import Session
from kvproof.fuzz.targets import make_adapter
from kvproof.spec import operations as op
from kvproof.spec.oracle import CLAUSES
from kvproof.spec.vocabulary import CacheConfig, Capabilities

CONFIG = CacheConfig(blocks=6, block_size=2, depth=2, max_requests=3, max_len=12)
SHADOW = frozenset(clause.code for clause in CLAUSES if clause.code != "KV-I2-bytes")
"""Every clause but the one about bytes: what is left to see is seen in memory or not at all."""


class Blind(ReferenceAdapter):
    """The reference manager, of which only answers and rows are shown."""

    def __init__(self, distort: Callable[[op.Granted], op.Granted] | None = None) -> None:
        super().__init__(level=2)
        operations = tuple(name for name in self.capabilities.operations if name != "table")
        self.capabilities = replace(self.capabilities, level=1, policy=False, operations=operations)
        self.distort = distort

    def observe(self, blocks: object, keys: object = ()) -> None:  # type: ignore[override]
        return None

    def admit(self, request: str, n: int, lookahead: int) -> op.Granted | op.Refused:
        answer = super().admit(request, n, lookahead)
        if self.distort is None or isinstance(answer, op.Refused) or not answer.hit:
            return answer
        return self.distort(answer)


def reversed_hit(answer: op.Granted) -> op.Granted:
    """The two hit blocks in the wrong order: right blocks at the wrong places."""
    return replace(answer, rows=((answer.rows[0][1], answer.rows[0][0], *answer.rows[0][2:]),))


def history() -> list[op.AnyOperation]:
    """One request computes five tokens and ends; another with the same prompt hits four of them."""
    operations: list[op.AnyOperation] = []
    for step, name in enumerate("ab", 1):
        operations += [
            op.Submit(name, (1, 2, 3, 4, 5)),
            op.Admit(name, 5),
            op.Dispatch(step, (op.Entry(name, 5 if name == "a" else 1),)),
            op.Retire(step, (op.Output(name, (9,)),)),
            op.Finish(name),
        ]
    return operations


@pytest.mark.parametrize("ignore", [frozenset(), SHADOW], ids=["every clause", "bytes alone"])
def test_rows_in_order_leave_the_bytes_that_the_claims_demand(ignore: frozenset[str]) -> None:
    session = Session(Blind(), CONFIG, ignore=ignore)
    verdict = session.run(history())
    assert verdict.result == "holds"
    assert verdict.exercised["KV-I2-bytes"] == 8
    assert "KV-I2-bytes" not in verdict.unchecked


def test_a_hit_in_the_wrong_order_shows_in_memory_though_nothing_else_is_judged() -> None:
    session = Session(Blind(reversed_hit), CONFIG, ignore=SHADOW)
    session.run(history())
    assert session.violation is not None
    assert session.violation.code == "KV-I2-bytes"


def test_without_a_device_bytes_are_unchecked() -> None:
    session = Session(Blind(), CONFIG, execute=False)
    assert "KV-I2-bytes" in session.run(history()).unchecked
    assert session.device is None


def test_an_allocator_with_memory_keeps_its_own_device() -> None:
    session = Session(make_adapter("reference"), CONFIG)
    assert session.device is session.adapter.device


def test_a_pool_that_no_device_can_hold_is_judged_without_bytes() -> None:
    large = CacheConfig(blocks=1 << 20, block_size=16, max_len=16)
    session = Session(Blind(), large, full=False)
    assert "KV-I2-bytes" in session.verdict().unchecked


@pytest.mark.parametrize("row", [(1,), (0, 2, 3), (7, 2, 3)], ids=["too short", "null", "outside"])
def test_a_row_that_nobody_can_execute_ends_the_comparison(row: tuple[int, ...]) -> None:
    session = Session(Blind(lambda answer: replace(answer, rows=(row,))), CONFIG, ignore=SHADOW)
    session.run(history())
    assert session.violation is None
    assert session.device is None


class Short(Blind):
    """Forgets the last block of every admission."""

    def admit(self, request: str, n: int, lookahead: int) -> op.Granted | op.Refused:
        answer = super().admit(request, n, lookahead)
        assert isinstance(answer, op.Granted)
        return replace(answer, rows=(answer.rows[0][:-1],))


def test_a_row_without_room_for_the_drafts_ends_the_comparison() -> None:
    session = Session(Short(), CONFIG, ignore=SHADOW)
    session.run([op.Submit("a", (1, 2, 3, 4)), op.Admit("a", 4, 2)])
    session.run([op.Dispatch(1, (op.Entry("a", 4, (5, 6)),)), op.Retire(1, (op.Output("a", (5,)),))])
    assert session.violation is None
    assert session.device is None


def test_a_declared_swap_replaces_the_row_that_the_worker_has() -> None:
    """The third block of the row changes between two steps; the second step writes into the new one."""
    capabilities = Capabilities(1, swap=True)
    session = Session(Swapping(capabilities), CONFIG, ignore=SHADOW)
    session.run(
        [
            op.Submit("a", (1, 2, 3, 4)),
            op.Admit("a", 4),
            op.Dispatch(1, (op.Entry("a", 4),)),
            op.Retire(1, (op.Output("a", (5,)),)),
            op.Extend("a", 1),
            op.Dispatch(2, (op.Entry("a", 1),)),
            op.Retire(2, (op.Output("a", (6,)),)),
        ]
    )
    # Block 5 was never written, so a worker that reads the new row finds its first tokens missing.
    assert session.violation is not None
    assert session.violation.evidence.block == 5


class Swapping(Blind):
    """Answers another first block from the second grant on."""

    def __init__(self, capabilities: Capabilities) -> None:
        super().__init__()
        self.capabilities = capabilities

    def extend(self, request: str, n: int, lookahead: int) -> op.Granted | op.Refused:
        answer = super().extend(request, n, lookahead)
        assert isinstance(answer, op.Granted)
        return replace(answer, rows=((5, *answer.rows[0][1:]),))


def test_soak_of_a_correct_allocator_at_level_1_holds_with_bytes() -> None:
    result = soak(4_000, 3, adapter=Blind)
    assert result.case is None
    assert result.exercised["KV-I2-bytes"] > 200


def test_a_seeded_fault_shows_in_bytes_alone_at_level_1() -> None:
    with planted([by_id("adapter-is-salt")]):
        result = soak(20_000, 0, adapter=Blind, ignore=SHADOW)
    assert result.case is not None
    assert result.case.expected.clause == "KV-I2-bytes"


def test_the_worker_is_told_of_every_operation_that_it_needs() -> None:
    session = Session(Blind(), CONFIG)
    session.run(history())
    worker = session._worker
    assert isinstance(worker, HarnessWorker)
    assert not worker.lost
    assert worker.device.writer(1, 0, 0) is not None
