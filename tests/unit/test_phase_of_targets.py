"""The phase that judges other people's allocators hands on what the profile says of each."""

import pytest
from msgspec.structs import replace

from kvproof.fuzz.cases import Case
from kvproof.fuzz.cli.phases import run_targets
from kvproof.fuzz.cli.profiles import Expected, profile
from kvproof.fuzz.targets import judge
from kvproof.fuzz.targets.judge import Finding, Job, Judgement
from kvproof.spec.oracle import BY_CODE
from kvproof.spec.vocabulary import CacheConfig

TARGETS = (
    Expected("plain", "holds"),
    Expected("known", "holds", ignore=("KV-P-events", "KV-P-chain"), without=("embeddings", "salts")),
    Expected("wrong", "violated", clauses=("KV-P-events", "KV-P-crash"), may=("KV-P-atomic",)),
)
FELL = ("KV-P-events", "KV-P-crash")
"""What falls where anything does."""
WANTED = replace(profile("ci"), targets=TARGETS, target_operations=7)


def finding(code: str) -> Finding:
    return Finding(code, BY_CODE[code].sentence, 1, 0.1, Case(CacheConfig(4, 2), ()))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Job]:
    """The jobs, of which each gets the verdict that its target's name stands for."""
    jobs: list[Job] = []
    results = {"plain": "holds", "known": "holds", "wrong": "violated", "gone": "skipped"}

    def judged(job: Job) -> Judgement:
        jobs.append(job)
        codes = FELL if results[job.target] == "violated" else ()
        return Judgement(
            job.target,
            results[job.target],
            "not there" * (job.target == "gone"),
            operations=5,
            findings=tuple(finding(code) for code in codes),
        )

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


@pytest.mark.parametrize(
    ("clauses", "may", "words"),
    [
        (("KV-P-events",), ("KV-P-crash",), ""),
        (
            ("KV-P-events", "KV-I2-hit"),
            ("KV-P-crash",),
            "KV-I2-hit must fall and did not: KV-P-events, KV-P-crash.",
        ),
        (("KV-P-events",), (), "KV-P-crash fell, which the target is not known for."),
        ((), (), "KV-P-events, KV-P-crash fell"),
    ],
)
def test_a_target_is_violated_under_the_clauses_that_it_is_known_for(
    asked: list[Job], clauses: tuple[str, ...], may: tuple[str, ...], words: str
) -> None:
    wanted = replace(WANTED, targets=(Expected("wrong", "violated", clauses, may),))
    (test,) = run_targets(wanted, 0, lambda text: None).tests
    assert test.verdict == ("violated" if words else "holds") and test.message.startswith(words)


@pytest.mark.parametrize("name", ["ci", "nightly"])
def test_the_profiles_name_what_must_fall_of_whoever_is_violated(name: str) -> None:
    for each in profile(name).targets:
        assert bool(each.clauses) == (each.result == "violated"), each.target
        assert {*each.clauses, *each.may, *each.ignore} <= BY_CODE.keys()
        assert not {*each.clauses} & {*each.may, *each.ignore}
