"""Mutants are made of every kind of change, planted wherever their function has been taken to, and judged."""

from functools import cache

import pytest

from kvproof.fuzz.engines import judges
from kvproof.fuzz.engines.mutate import GROUPS, BaselineError, run_mutants
from kvproof.fuzz.faults import by_id, planted
from kvproof.fuzz.faults.mutants import IMPL, ORACLE, Mutant, functions, mutants, mutated
from kvproof.impl import arithmetic
from kvproof.spec import transitions
from kvproof.spec.properties import leaks

MADE = cache(mutants)


@pytest.fixture(autouse=True)
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """Soaks long enough for what is planted here."""
    for limits, operations in ((judges.OPERATIONS, 600), (judges.FURTHER, 100)):
        for group in limits:
            monkeypatch.setitem(limits, group, operations)
    monkeypatch.setattr(judges, "TAMPERED", 2)


def find(module: str, target: str, after: str) -> Mutant:
    (found,) = [each for each in MADE(module) if each.target.endswith(target) and each.after == after]
    return found


def test_every_module_has_mutants_and_no_two_are_alike() -> None:
    assert all(functions(module) for module in (*IMPL, *ORACLE))
    for module in ("kvproof.impl.life", "kvproof.spec.properties.leaks"):
        made = mutants(module)
        assert made, module
        assert len({(each.target, each.source) for each in made}) == len(made)


def test_operators_bounds_arguments_and_statements_are_changed() -> None:
    after = {
        each.after for each in MADE("kvproof.impl.arithmetic") if each.target.endswith("scheduled_tokens")
    }
    assert "if computed + num_new <= num_tokens:" in after
    assert "return computed - num_new" in after
    dropped = [each.before for each in MADE("kvproof.impl.life") if each.after == "pass"]
    assert "self.num_undispatched_tokens = 0" in dropped and "self.last_dispatched = step" in dropped


def test_texts_for_readers_are_left_alone() -> None:
    made = MADE("kvproof.spec.properties.leaks")
    assert not [each for each in made if each.before.startswith("return Evidence(")]
    assert not [each for each in MADE("kvproof.impl.life") if each.before.startswith("raise ")]


def test_a_mutant_is_there_while_it_is_planted_and_gone_afterwards() -> None:
    with mutated(find("kvproof.impl.arithmetic", "full_blocks", "return tokens / block_size")):
        assert arithmetic.full_blocks(5, 2) == 2.5
    assert arithmetic.full_blocks(5, 2) == 2


@pytest.mark.parametrize(
    ("target", "function"),
    [
        ("kvproof.spec.transitions._do_submit", vars(transitions)["_do_submit"]),
        ("kvproof.spec.properties.leaks.drained", leaks.drained.check),
    ],
)
def test_a_function_in_a_table_and_the_check_of_a_clause_are_reached_too(target: str, function) -> None:
    module, name = target.rsplit(".", 1)
    before = function.__code__
    with mutated(Mutant(module, target, 1, "", "", f"def {name}(*arguments):\n    return 7\n")):
        assert function(1, 2) == 7
    assert function.__code__ is before


@pytest.mark.parametrize(
    ("group", "module", "target", "after", "killed"),
    [
        ("impl", "kvproof.impl.arithmetic", "fits", "return wanted.fresh + wanted.evictable < free", True),
        ("impl", "kvproof.impl.life", "StepsInFlight.dispatch", "if step < self.last_dispatched:", False),
        (
            "oracle",
            "kvproof.spec.invariants.ownership",
            ".queue",
            "if view is not None and view.ref_cnt > 1:",
            True,
        ),
    ],
)
def test_mutants_are_judged(
    monkeypatch: pytest.MonkeyPatch, group: str, module: str, target: str, after: str, killed: bool
) -> None:
    wanted = find(module, target, after)
    monkeypatch.setattr(
        "kvproof.fuzz.engines.mutate.mutants", lambda name, _: [wanted] if name == module else []
    )
    (row,) = run_mutants(groups=[group], jobs=1)
    assert row.killed is killed, row
    assert bool(row.by) is killed


def test_what_never_ends_is_killed_by_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvproof.fuzz.engines.mutate.SECONDS", 0.5)
    module = "kvproof.impl.life"
    endless = Mutant(
        module, f"{module}.Life.dispatch", 1, "", "",
        "def dispatch(self, step):\n    while True:\n        pass\n",
    )  # fmt: skip
    monkeypatch.setattr(
        "kvproof.fuzz.engines.mutate.mutants", lambda name, _: [endless] if name == module else []
    )
    (row,) = run_mutants(groups=["impl"], jobs=1)
    assert row.killed and row.by == "hung"


@pytest.mark.parametrize("group", GROUPS)
def test_what_falls_without_a_mutant_says_nothing_of_one(monkeypatch: pytest.MonkeyPatch, group: str) -> None:
    # Without a mutant to judge, only the judgement of none is left to complain of.
    monkeypatch.setattr("kvproof.fuzz.engines.mutate.mutants", lambda module, _: [])
    fell = {group: ""}
    monkeypatch.setattr("kvproof.fuzz.engines.mutate._found", lambda asked: (fell[asked], 3))
    assert run_mutants(groups=[group]) == []
    fell[group] = "KV-I1-lost"
    with pytest.raises(BaselineError, match=f"judgement of {group} ends with KV-I1-lost"):
        run_mutants(groups=[group])


def test_the_judgement_without_a_mutant_is_a_real_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvproof.fuzz.engines.mutate.mutants", lambda module, _: [])
    with planted([by_id("lookahead-published")]), pytest.raises(BaselineError, match="without any mutant"):
        run_mutants(groups=["impl"])
