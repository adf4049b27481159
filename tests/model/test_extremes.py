"""Exactly full, one short, refused for its hits: the real manager answers as the capacity theorem says."""

import msgspec
import pytest

from kvproof.fuzz import cases
from kvproof.fuzz.engines.solve import Scenario, case_of, scenarios


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
