"""Does it find, does it shrink, and does it find nothing where nothing is."""

import subprocess
import sys

import pytest

from kvproof.fuzz import cases
from kvproof.fuzz.cases import Case, CaseError, Expected
from kvproof.fuzz.engines.hunt import hunt
from kvproof.fuzz.engines.soak import soak
from kvproof.fuzz.engines.stateful import stateful
from kvproof.fuzz.faults import by_id, planted, seeded
from kvproof.fuzz.shrink import shrink, size
from kvproof.spec import operations as op
from kvproof.spec.oracle import BY_CODE
from kvproof.spec.vocabulary import CacheConfig, Capabilities


def test_soak_finds_nothing_in_the_reference() -> None:
    result = soak(4000, seed=11)
    assert result.case is None, result.case
    assert result.operations >= 4000


def test_hypothesis_finds_nothing_in_the_reference() -> None:
    result = stateful(800, 5)
    assert result.case is None, result.case
    assert result.operations >= 800


@pytest.mark.parametrize("fault", seeded(), ids=lambda fault: fault.id)
def test_soak_kills_each_seeded_fault_under_its_own_clause_in_few_operations(fault) -> None:
    found = hunt(fault, seed=1)
    assert found.killed, f"fell: {found.clause or 'nothing'}"
    assert found.case is not None and len(found.case.operations) <= 12
    assert cases.replay(found.case).recurs(found.case)


@pytest.mark.parametrize("fault", ["stale-hash", "fence-off-by-one"])
def test_hypothesis_kills_too(fault: str) -> None:
    found = hunt(by_id(fault), engine="hypothesis", finds=1)
    assert found.killed


def test_a_fault_for_each_clause_and_two_for_each_invariant() -> None:
    faults = seeded()
    assert len(faults) >= 40 and len({fault.id for fault in faults}) == len(faults)
    assert {fault.clause for fault in faults} == BY_CODE.keys()
    for number in range(1, 7):
        assert sum(fault.clause.startswith(f"KV-I{number}-") for fault in faults) >= 2


@pytest.mark.parametrize("freedom", ["publish", "stream_ordered", "idempotent", "swap", "max_hit", "depth"])
def test_a_fault_for_each_freedom_that_is_taken_and_not_declared(freedom: str) -> None:
    assert freedom in Capabilities.__struct_fields__
    assert any(f"freedom: {freedom}" in fault.features for fault in seeded())


def test_shrinking_keeps_the_clause_and_never_grows() -> None:
    with planted([by_id("stale-hash")]):
        result = soak(5000, 3, faults=(by_id("stale-hash"),), compare_policy=False)
    assert result.case is not None
    left: list[int] = []
    small = shrink(result.case, left.append)
    assert small.expected == result.case.expected
    assert size(small) < size(result.case) and left == sorted(left, reverse=True)
    assert cases.dumps(shrink(small)) == cases.dumps(small), "a minimal case stays as it is"


def test_what_does_not_fall_cannot_be_shrunk() -> None:
    case = Case(CacheConfig(4, 2), (op.Submit("a", (1,)), op.Admit("a", 1)))
    with pytest.raises(CaseError, match="expects a violation"):
        shrink(case)
    wrong = Case(case.config, case.operations, expected=Expected("violated", "KV-I2-key"))
    with pytest.raises(CaseError, match="does not break KV-I2-key"):
        shrink(wrong)


SCRIPT = """
from kvproof.fuzz.engines.soak import soak
from kvproof.fuzz.engines.stateful import stateful
print(soak(800, 7).digest, stateful(200, 7).digest, soak(800, 8).digest)
"""


def test_a_seed_is_a_history_whatever_the_hash_seed() -> None:
    runs = []
    for hash_seed in ("0", "4711"):
        environment = {"PYTHONHASHSEED": hash_seed, "PATH": ""}
        run = subprocess.run([sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True)
        assert run.returncode == 0, run.stderr
        runs.append(run.stdout)
    assert runs[0] == runs[1]
    first, _, other = runs[0].split()
    assert first != other, "another seed is another history"
