"""Seeded faults are planted exactly, taken out again, and read strictly."""

import pkgutil
from pathlib import Path

import msgspec
import pytest

from kvproof.fuzz.adapters import reference_worker
from kvproof.fuzz.faults import Edit, Fault, FaultError, by_id, load, parse, planted, seeded
from kvproof.impl import arithmetic
from kvproof.impl.block_pool import BlockPool
from kvproof.impl.worker import slot_mapping

TARGET = "kvproof.impl.arithmetic.cdiv"
FAULT = Fault("off", "rounds down", "KV-I3-cover", TARGET, "-(-numerator // divisor)", "numerator // divisor")


def test_a_fault_is_there_while_planted_and_gone_afterwards() -> None:
    assert arithmetic.cdiv(5, 4) == 2
    with planted([FAULT]):
        assert arithmetic.cdiv(5, 4) == 1
    assert arithmetic.cdiv(5, 4) == 2


SLOTS = Fault(
    "slots", "one too far", "KV-I5-slot", "kvproof.impl.worker.slot_mapping.slots_of",
    source="def slots_of(*args, **kwargs):\n    return [0]\n",
)  # fmt: skip


def test_a_function_that_others_took_over_by_name_is_planted_and_taken_out_there_too() -> None:
    borrower = vars(reference_worker)
    original = slot_mapping.slots_of
    with planted([SLOTS]):
        assert borrower["slots_of"] is slot_mapping.slots_of is not original
    assert borrower["slots_of"] is slot_mapping.slots_of is original


def test_an_error_inside_takes_the_fault_out_too() -> None:
    original = BlockPool.touch
    with pytest.raises(RuntimeError), planted([by_id("shared-hit-not-counted")]):
        assert BlockPool.touch is not original
        raise RuntimeError
    assert BlockPool.touch is original


@pytest.mark.parametrize("fault", seeded(), ids=lambda fault: fault.id)
def test_every_seeded_fault_can_be_planted(fault: Fault) -> None:
    module, name = fault.target.rsplit(".", 1)
    owner = pkgutil.resolve_name(module)
    original = getattr(owner, name)
    with planted([fault]):
        assert getattr(owner, name) is not original
    assert getattr(owner, name) is original


def edited(**changes: str) -> Fault:
    fields = {
        "id": "f",
        "title": "t",
        "clause": "KV-I1-lost",
        "target": TARGET,
        "find": "divisor)",
        "replace": "1)",
    }
    return msgspec.convert({**fields, **changes}, Fault)


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (edited(target="kvproof.impl.nowhere.f"), "there is no kvproof.impl.nowhere.f"),
        (edited(target="kvproof.impl.arithmetic.nothing"), "there is no"),
        (edited(target="kvproof.impl.block.KVCacheBlock"), "not a Python function"),
        (edited(find="numerator"), "occurs 6 times"),
        (edited(find="absent"), "occurs 0 times"),
        (edited(find="", source="def cdiv(:"), "not Python"),
        (edited(find="", source="def other(): pass"), "does not define cdiv"),
    ],
)
def test_a_fault_that_cannot_be_planted_is_one_sentence_and_changes_nothing(fault: Fault, words: str) -> None:
    original = arithmetic.cdiv
    with pytest.raises(FaultError, match=words) as caught, planted([FAULT, fault]):
        pass
    assert arithmetic.cdiv is original and "\n" not in str(caught.value)


def test_further_edits_are_planted_with_the_first() -> None:
    both = Fault(
        "both", "t", "c", TARGET, FAULT.find, FAULT.replace,
        also=(Edit("kvproof.impl.arithmetic.full_blocks", "return tokens // block_size", "return 0"),),
    )  # fmt: skip
    with planted([both]):
        assert (arithmetic.cdiv(5, 4), arithmetic.full_blocks(9, 4)) == (1, 0)
    assert arithmetic.full_blocks(9, 4) == 2


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "missing required field"),
        ("fault = []", "holds no fault"),
        ("[[fault]]\nid = 1", "Expected `str`"),
        ("[[fault", "not a file of faults"),
        ('[[fault]]\nid="a"\ntitle="t"\nclause="KV-I1-lost"\ntarget="x"\n', "needs either"),
        ('[[fault]]\nid="a"\ntitle="t"\nclause="KV-X-none"\ntarget="x"\nsource="y"\n', "names no clause"),
        ('[[fault]]\nid="a"\ntitle="t"\nclause="c"\ntarget="x"\nfnd="y"\n', "unknown field"),
        (2 * '[[fault]]\nid="a"\ntitle="t"\nclause="KV-I1-lost"\ntarget="x"\nsource="y"\n', "two faults a"),
    ],
)
def test_a_broken_file_of_faults_is_one_sentence(text: str, words: str) -> None:
    with pytest.raises(FaultError, match=words) as caught:
        parse(text, "faults.toml")
    assert "\n" not in str(caught.value)


def test_files_and_names_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(FaultError, match="cannot read"):
        load(tmp_path / "absent.toml")
    with pytest.raises(FaultError, match="no seeded fault 'x'"):
        by_id("x")


def test_only_what_nothing_else_sees_is_hunted_with_the_policy_compared() -> None:
    compared = {fault.clause for fault in seeded() if fault.against_policy}
    assert compared == {"KV-P-answer", "KV-P-refs", "KV-P-order", "KV-P-index"}
