"""Case files: one form, read strictly, written whole or not at all."""

import json
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvproof.fuzz import cases
from kvproof.fuzz.cases import Case, CaseError, Expected
from kvproof.fuzz.choices import Choices
from kvproof.fuzz.engines.soak import soak
from kvproof.fuzz.faults import by_id, planted
from kvproof.spec import operations as op
from kvproof.spec.vocabulary import CacheConfig

CASE = Case(CacheConfig(4, 2), (op.Submit("a", (1, (5, 3))), op.Admit("a", 4)), title="two operations")
GOOD = json.loads(cases.dumps(CASE))


def forged(**changes: object) -> bytes:
    return json.dumps({**GOOD, **changes}).encode()


def test_a_case_survives_its_file(tmp_path: Path) -> None:
    path = tmp_path / "new" / "case.json"
    cases.save(CASE, path)
    assert cases.load(path) == CASE
    assert [file.name for file in path.parent.iterdir()] == ["case.json"]


@given(st.integers(0, 2**64 - 1))
def test_any_history_survives_its_file(seed: int) -> None:
    fault = by_id("stale-hash")
    with planted([fault]):
        case = soak(60 + Choices(seed).below(60), seed, faults=(fault,)).case
    if case is not None:
        assert cases.parse(cases.dumps(case), "case") == case


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "is not a case"),
        (b"{", "is not a case"),
        (b"\xff\xfe", "is not a case"),
        (b"[]", "is not a case"),
        (forged(operations=[]), "no operations"),
        (forged(operations=[{"op": "teleport"}]), "teleport"),
        (forged(operations=[{"op": "admit", "request": "a"}]), "n"),
        (forged(operations=[{"op": "admit", "request": "a", "n": "many"}]), "int"),
        (forged(colour="red"), "colour"),
        (forged(format=99), "format 99"),
        (forged(config={"blocks": 0, "block_size": 2}), "'blocks' must be at least 1"),
        (forged(config={"blocks": 2, "block_size": 2, "groups": []}), "one cache group"),
        (forged(config={"blocks": 2, "block_size": 2, "hash": "crc"}), "'hash' must be one of"),
        (forged(ignore=["KV-X-none"]), "a clause that there is not"),
        (forged(expected={"result": "violated", "clause": "KV-X"}), "a clause that there is not"),
        (forged(config={"blocks": 10**12, "block_size": 2}), "at most 16,777,216"),
        (forged(config={"blocks": 2, "block_size": 2, "max_len": 10**9}), "at most 16,777,216"),
        (forged(expect=[None]), "expects 1 records of 2"),
    ],
)
def test_a_broken_case_is_one_sentence(data: bytes, words: str) -> None:
    with pytest.raises(CaseError, match=words) as caught:
        cases.parse(data, "broken.json")
    text = str(caught.value)
    assert text.startswith("broken.json") and text.endswith(".") and "\n" not in text


def test_files_that_are_not_there_or_cannot_be_written_are_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(CaseError, match=r"cannot read .*: No such file or directory\."):
        cases.load(tmp_path / "absent.json")
    (tmp_path / "file").write_text("")
    with pytest.raises(CaseError, match="cannot write"):
        cases.save(CASE, tmp_path / "file" / "case.json")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_an_operation_that_the_engine_must_not_do_is_named_by_its_number() -> None:
    case = msgspec.structs.replace(CASE, operations=(*CASE.operations, op.Extend("a", 1)))
    with pytest.raises(CaseError, match=r"operation 3 is not legal: .*undispatched grant\."):
        cases.replay(case)


def test_a_verdict_that_is_not_the_expected_one_does_not_recur() -> None:
    wrong = msgspec.structs.replace(CASE, expected=Expected("violated", "KV-I2-key"))
    assert cases.replay(CASE).recurs(CASE) and not cases.replay(wrong).recurs(wrong)


def test_the_schema_names_every_operation() -> None:
    text = json.dumps(op.schema())
    for kind in op.OPERATIONS:
        assert f'"{kind.__name__.lower()}"' in text
