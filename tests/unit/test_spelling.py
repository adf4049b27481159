"""Spellings: identities that differ stay so, and a key that loses what they stand in is found."""

from itertools import product

import pytest

from kvproof.fuzz.adapters.reference import ReferenceAdapter
from kvproof.fuzz.choices import Choices
from kvproof.fuzz.engines.soak import soak
from kvproof.fuzz.faults import Fault, planted
from kvproof.fuzz.spelling import PLAIN, SPELLINGS, draw_spelling
from kvproof.spec import operations as op

TEXTS = ("x", "xx", "X", "y", "z")
FIELD = "kvproof.impl.hashing.field"
TEXT = 'data = str(value).encode("utf-8", "surrogatepass")'


def all_extras() -> list[op.Extras]:
    adapters = [op.Adapter(*each) for each in product(TEXTS, (0, 1), ("", "x"))]
    return [
        *[op.Extras(adapter=each) for each in adapters],
        *[op.Extras(salt=text) for text in ("", *TEXTS)],
        *[op.Extras(items=(op.Item(text, 0, 1),)) for text in TEXTS],
        *[op.Extras(embeddings=(op.Embedding(0, content),)) for content in (0, 1)],
    ]


@pytest.mark.parametrize("name", SPELLINGS)
def test_what_differs_is_spelled_differently(name: str) -> None:
    spelled = [SPELLINGS[name].of(extras) for extras in all_extras()]
    assert len(set(spelled)) == len(spelled)


@pytest.mark.parametrize("name", SPELLINGS)
def test_what_is_absent_stays_absent(name: str) -> None:
    assert SPELLINGS[name].of(op.Extras()) == op.Extras()


def test_the_plain_spelling_changes_nothing_and_is_the_usual_one() -> None:
    assert [PLAIN.of(extras) for extras in all_extras()] == all_extras()
    drawn = [draw_spelling(Choices(seed)) for seed in range(1_000)]
    assert 650 < drawn.count(PLAIN) < 850 and {*drawn} == {PLAIN, *SPELLINGS.values()}


def at_level_2() -> ReferenceAdapter:
    return ReferenceAdapter(2)


CARELESS = {
    "cut to eight bytes": TEXT + "[:8]",
    "stripped of white space": TEXT.replace("str(value)", "str(value).strip()"),
    "in ASCII alone": 'data = str(value).encode("ascii", "ignore")',
    "the lowest byte of numbers": "data = str(value & 255 if isinstance(value, int) else value).encode()",
    "the last folder of paths": "data = str(value).rsplit('/', 1)[-1].encode()",
}


@pytest.mark.parametrize("lost", CARELESS)
def test_a_key_that_loses_a_part_of_its_fields_is_found(lost: str) -> None:
    fault = Fault("careless", lost, "KV-I2-standing", FIELD, TEXT, CARELESS[lost])
    with planted([fault]):
        result = soak(
            60_000,
            1,
            adapter=lambda: ReferenceAdapter(2),
            faults=(fault,),
            compare_policy=False,
            execute=False,
        )
    assert result.case is not None
    assert result.case.expected.clause == "KV-I2-standing"
