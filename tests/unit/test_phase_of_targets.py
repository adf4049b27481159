"""The phase that judges other people's allocators hands on what the profile says of each."""

import pytest
from msgspec.structs import replace

from kvproof.fuzz.cli.phases import run_targets
from kvproof.fuzz.cli.profiles import Expected, profile
from kvproof.fuzz.targets import judge
from kvproof.fuzz.targets.judge import Job, Judgement

TARGETS = (
    Expected("plain", "holds"),
    Expected("known", "holds", ignore=("KV-P-events", "KV-P-chain"), without=("embeddings", "salts")),
    Expected("wrong", "violated"),
)
WANTED = replace(profile("ci"), targets=TARGETS, target_operations=7)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Job]:
    """The jobs, of which each gets the verdict that its target's name stands for."""
    jobs: list[Job] = []
    results = {"plain": "holds", "known": "holds", "wrong": "violated", "gone": "skipped"}

    def judged(job: Job) -> Judgement:
        jobs.append(job)
        return Judgement(job.target, results[job.target], "not there" * (job.target == "gone"), operations=5)

    monkeypatch.setattr(judge, "judge_apart", judged)
    return jobs


def test_a_target_is_judged_without_what_the_profile_leaves_out_for_it(asked: list[Job]) -> None:
    phase = run_targets(WANTED, 3, lambda text: None)
    assert asked == [
        Job("plain", 7, seed=3),
        Job("known", 7, seed=3, ignore=("KV-P-events", "KV-P-chain"), without=("embeddings", "salts")),
        Job("wrong", 7, seed=3),
    ]
    assert phase.verdict == "holds" and phase.count == "15 operations"


def test_the_profiles_leave_something_out_for_some_target() -> None:
    """Or else nothing would be handed on that matters."""
    assert any(each.ignore and each.without for each in profile("ci").targets)


@pytest.mark.parametrize(
    ("target", "result", "verdict"),
    [("plain", "violated", "violated"), ("wrong", "holds", "violated"), ("gone", "holds", "skipped")],
)
def test_another_verdict_than_the_known_one_is_a_violation(
    asked: list[Job], target: str, result: str, verdict: str
) -> None:
    wanted = replace(WANTED, targets=(Expected(target, result),))
    (test,) = run_targets(wanted, 0, lambda text: None).tests
    assert test.verdict == verdict and test.message
