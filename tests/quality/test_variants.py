"""Freedoms: who declares one may take it, who doesn't may not."""

import pytest
from msgspec.structs import replace

from kvproof.fuzz.adapters.reference import ReferenceAdapter
from kvproof.fuzz.adapters.variants import (
    VARIANTS,
    AllBack,
    PublishAtRetire,
    Rewrite,
    StreamOrdered,
    Swap,
    Variant,
)
from kvproof.fuzz.engines.soak import soak
from kvproof.fuzz.session import Session
from kvproof.fuzz.smoke import examine
from kvproof.fuzz.targets import TargetError, make_adapter
from kvproof.spec import operations as op
from kvproof.spec.vocabulary import CacheConfig, PolicyChoices

OPERATIONS = 6_000


@pytest.mark.parametrize("name", VARIANTS)
def test_a_correct_variant_holds_and_is_what_it_declares(name: str) -> None:
    assert examine(make_adapter(f"variant:{name}")) == ""
    result = soak(OPERATIONS, 11, adapter=lambda: make_adapter(f"variant:{name}"))
    assert result.case is None
    assert result.exercised["KV-I2-bytes"] > 0


UNDECLARED: dict[str, tuple[type[Variant], dict[str, object], tuple[str, ...]]] = {
    "all-back": (AllBack, {"choices": PolicyChoices()}, ("KV-P-order",)),
    "stream-ordered": (StreamOrdered, {"stream_ordered": False, "policy": False}, ("KV-I4-release",)),
    "swap": (Swap, {"swap": False}, ("KV-I3-stable", "KV-I1-table")),
    "rewrite": (Rewrite, {"idempotent": False}, ("KV-I1-exclusive", "KV-I4-handout")),
}


@pytest.mark.parametrize("name", UNDECLARED)
def test_the_same_freedom_undeclared_is_a_finding(name: str) -> None:
    kind, taken_back, clauses = UNDECLARED[name]

    def adapter() -> Variant:
        made = kind()
        made.capabilities = replace(made.capabilities, **taken_back)
        return made

    result = soak(OPERATIONS, 11, adapter=adapter)
    assert result.case is not None
    assert result.case.expected.clause in clauses


def test_keys_at_the_grant_break_the_promise_of_keys_at_retirement() -> None:
    def adapter() -> ReferenceAdapter:
        made = ReferenceAdapter(level=2)
        made.capabilities = replace(made.capabilities, publish="retire", policy=False)
        return made

    result = soak(OPERATIONS, 11, adapter=adapter)
    assert result.case is not None
    assert result.case.expected.clause == "KV-I6-draft"


def test_keys_at_retirement_leave_nothing_to_hit_before() -> None:
    session = Session(PublishAtRetire(), CacheConfig(blocks=6, block_size=2, max_len=8))
    hits = []
    for name, operations in {
        "b": (),
        "c": (op.Dispatch(1, (op.Entry("a", 5),)), op.Retire(1, (op.Output("a", (9,)),))),
    }.items():
        if name == "b":
            session.run([op.Submit("a", (1, 2, 3, 4, 5)), op.Admit("a", 5)])
        session.run([*operations, op.Submit(name, (1, 2, 3, 4, 5))])
        hits.append(session.apply(op.Lookup(name)))
    assert [getattr(found, "hit", None) for found in hits] == [0, 4]


def test_a_block_that_is_swapped_while_a_step_in_flight_has_it_stays_held_until_that_step_retires() -> None:
    kept: list[int] = []

    class Watched(Swap):
        """Says how many blocks it keeps."""

        def retire(self, operation: op.Retire) -> op.Retired:
            answer = super().retire(operation)
            kept.append(len(self._kept))
            return answer

    class Early(Swap):
        """Keeps none."""

        def retire(self, operation: op.Retire) -> op.Retired:
            answer = super().retire(operation)
            self.manager.block_pool.free_blocks([block for _, block in self._kept])
            self._kept.clear()
            return answer

    assert soak(OPERATIONS, 11, adapter=Watched).case is None
    assert max(kept) > 0
    result = soak(OPERATIONS, 11, adapter=Early)
    assert result.case is not None
    assert result.case.expected.clause == "KV-I4-release"


def test_whoever_may_write_a_block_again_may_do_so_with_equal_content_only() -> None:
    taken: list[str] = []

    class Counted(Rewrite):
        """Says whose blocks it took over."""

        def _take_over(self, request: str, index: int) -> None:
            before = self._rows(request)
            super()._take_over(request, index)
            if self._rows(request) != before:
                taken.append(request)

    class Careless(Rewrite):
        """Takes over a block of whoever holds one."""

        def _take_over(self, request: str, index: int) -> None:
            pool, row = self.manager.block_pool, self.manager.coordinator.get_blocks(request)[0]
            assert isinstance(row, list)
            others = [block for block in pool.blocks[1:] if block.ref_cnt and block not in row]
            if others:
                self.manager.evict_blocks([row[index].block_id])
                pool.touch(others[:1])
                pool.free_blocks([row[index]])
                row[index] = others[0]

    assert soak(OPERATIONS, 11, adapter=Counted).case is None
    assert taken
    result = soak(OPERATIONS, 11, adapter=Careless)
    assert result.case is not None
    assert result.case.expected.clause in ("KV-I1-exclusive", "KV-I4-handout")


def test_a_swap_redirects_what_is_granted_and_not_yet_dispatched() -> None:
    """Then the old block's key promises what is never written: that is a finding."""
    swapped: list[bool] = []

    class Hasty(Swap):
        """Swaps while a grant is still to be written."""

        def retire(self, operation: op.Retire) -> op.Retired:
            ReferenceAdapter.retire(self, operation)
            lives = self.manager.lives.items()
            idle = [name for name, life in lives if not self.manager.steps.contains(life)]
            names = [name for name in idle if self._swap(name)]
            swapped.extend(map(bool, names))
            return op.Retired(swapped={name: self._rows(name) for name in names} or None)

    result = soak(OPERATIONS, 11, adapter=Hasty)
    assert swapped
    assert result.case is not None
    assert result.case.expected.clause == "KV-I6-withdraw"


def test_an_unknown_variant_is_refused_in_one_sentence() -> None:
    with pytest.raises(TargetError, match="there is no variant 'x'; variants are all-back"):
        make_adapter("variant:x")
