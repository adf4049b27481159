"""Exactly full, one short, refused for its hits: the real manager answers as the capacity theorem says."""

import msgspec
import pytest

from kvproof.fuzz import cases
from kvproof.fuzz.adapters.reference import ReferenceAdapter
from kvproof.fuzz.engines.solve import Scenario, case_of, scenarios
from kvproof.fuzz.session import Session
from kvproof.spec import operations as op
from kvproof.spec.vocabulary import CacheConfig


@pytest.mark.parametrize("scenario", scenarios(), ids=lambda scenario: scenario.name)
def test_the_real_manager_answers_the_extreme_as_predicted(scenario: Scenario) -> None:
    case = case_of(scenario)
    outcome = cases.replay(case)
    assert outcome.recurs(case), (outcome.difference, outcome.verdict.violation)


def test_a_wrong_prediction_is_noticed() -> None:
    for scenario in scenarios():
        other = "refused" if scenario.outcome == "granted" else "granted"
        case = case_of(scenario)
        expect = tuple(each and msgspec.structs.replace(each, answer=other) for each in case.expect)
        wrong = msgspec.structs.replace(case, expect=expect)
        assert not cases.replay(wrong).recurs(wrong)


def test_the_extremes_are_refused_for_different_reasons() -> None:
    outcomes = {scenario.name.rsplit("-", 1)[0]: scenario.outcome for scenario in scenarios()}
    assert sorted(outcomes.values()) == ["granted", "refused", "refused"]


def test_a_refusal_for_hits_that_partial_sight_does_not_show_is_no_finding() -> None:
    """Of the four cached tokens nothing was seen since; with them nine have to fit into three blocks."""
    config = CacheConfig(blocks=3, block_size=2, max_len=12, max_requests=2)
    for full in (False, True):
        session = Session(ReferenceAdapter(2), config, full=full, compare_policy=False)
        session.run(
            [
                op.Submit("a", (1, 2, 3, 4, 5)),
                op.Admit("a", 5),
                op.Dispatch(1, (op.Entry("a", 5),)),
                op.Retire(1, (op.Output("a", (6,)),)),
                op.Finish("a"),
                op.Submit("b", (1, 2, 3, 4, 7, 8, 9, 10, 11)),
            ]
        )
        assert session.apply(op.Admit("b", 5)) == op.Refused()
        assert session.violation is None
