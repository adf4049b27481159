"""Each clause has a control: a true history with one lie in it, by which exactly that clause falls."""

import pytest

from kvproof.fuzz.forgeries import Forge, block, seen
from kvproof.fuzz.histories import CONFIG, HISTORY
from kvproof.fuzz.lies import LIES, records_of
from kvproof.spec import operations as op
from kvproof.spec.oracle import BY_CODE, CLAUSES, Oracle
from kvproof.spec.policy import Policy
from kvproof.spec.properties.refinement import against_policy
from kvproof.spec.vocabulary import Capabilities


@pytest.mark.parametrize("number", range(len(LIES)), ids=lambda number: f"{number}-{LIES[number].code}")
def test_a_lie_brings_down_its_clause_and_the_true_history_does_not(number: int) -> None:
    lie = LIES[number]
    assert lie.judge(lie.true()) is None
    violation = lie.judge(lie.forged())
    assert lie.found(violation), violation


@pytest.mark.parametrize(
    ("code", "forge"), [("KV-P-refs", block(1, ref_cnt=2)), ("KV-P-index", seen(index=()))]
)
def test_counts_and_index_are_compared_with_the_policy(code: str, forge: Forge) -> None:
    records = records_of(HISTORY[:2])
    oracle = Oracle(CONFIG, Capabilities(3, policy=True))
    for record in records:
        assert oracle.judge(record.operation, record.answer, record.observation) is None
    assert isinstance(oracle.policy, Policy)
    claims = oracle.keys.claim_of
    true, lie = records[1].observation, forge(records[1], list(records)).observation
    assert against_policy(oracle.policy, None, op.Done(), true, claims) is None
    difference = against_policy(oracle.policy, None, op.Done(), lie, claims)
    assert difference is not None and difference[0].code == code


def test_every_code_has_a_sentence_and_every_clause_a_lie() -> None:
    assert {clause.code for clause in CLAUSES} <= {lie.code for lie in LIES}
    assert all(clause.sentence.endswith(".") for clause in BY_CODE.values())
