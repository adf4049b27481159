"""Which seeded faults exploration catches: the search, the record, the command, the phase, the matrix."""

import json
from typing import Any

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from kvproof.fuzz.cli import explore_faults as cli
from kvproof.fuzz.cli import phases
from kvproof.fuzz.cli.errors import HOLDS, USAGE, VIOLATED
from kvproof.fuzz.cli.profiles import profile
from kvproof.fuzz.cli.root import kvproof
from kvproof.fuzz.engines import explore as engine
from kvproof.fuzz.engines import explore_faults, matrix
from kvproof.fuzz.engines.explore import Explorer, Unmergeable, explore
from kvproof.fuzz.engines.explore_faults import attempts, catch, catch_all, differences, record, recorded
from kvproof.fuzz.engines.explore_moves import preset, presets
from kvproof.fuzz.faults import by_id, planted, seeded
from kvproof.fuzz.reports import matrix as report

FEW = (by_id("counted-at-lookup"), by_id("full-hit"))
"""Faults that the smallest preset catches."""


# --- one clause alone -------------------------------------------------------------------


def test_a_sequence_in_which_another_clause_falls_ends_there_and_the_exploration_goes_on():
    fault, scope = by_id("decode-chained-to-root"), preset("ahead")
    with planted([fault]):
        first = explore(scope, compare_policy=False)
        own = explore(scope, compare_policy=False, clause=fault.clause)
        none = explore(scope, compare_policy=False, clause="KV-I1-null")
    assert first.case is not None and first.case.expected.clause == "KV-I2-standing"
    assert own.case is not None and own.case.expected.clause == fault.clause == "KV-I4-key"
    assert own.others == {"KV-I2-standing": 4} and len(own.case.operations) == 6
    assert none.case is None and none.others["KV-I4-key"] > 0 and none.verdict != "violated"
    assert len(none.states) == scope.length + 1


def test_what_goes_on_behind_another_clause_is_audited_like_the_rest():
    fault = by_id("decode-chained-to-root")
    with planted([fault]):
        found = Explorer(preset("ahead"), compare_policy=False, clause="KV-I1-null", audit=1).run()
    assert found.audited > 10 and found.others


def test_a_manager_that_never_comes_back_to_a_state_is_given_up(monkeypatch):
    monkeypatch.setattr(engine, "UNMERGED", 40)
    fault = by_id("hit-remembered")
    with planted([fault]), pytest.raises(Unmergeable, match="more than 40 states"):
        explore(preset("waits"), compare_policy=False, clause=fault.clause)
    assert explore_faults.attempt(fault, preset("waits")) is None
    assert explore(preset("waits")).verdict == "holds", "it is the fault that keeps something"


def test_a_block_that_is_lost_unseen_has_a_place_in_the_form():
    found = explore_faults.attempt(by_id("duplicate-leaked-behind-a-count"), preset("twins"))
    assert found is not None and found.case is not None and found.case.expected.clause == "KV-P-leak"


# --- the search -------------------------------------------------------------------------


def test_the_first_preset_that_catches_a_fault_ends_the_search():
    fault = by_id("extras-of-decode-forgotten")
    tried = list(attempts(fault, ("chains", "items", "ahead")))
    assert [name for name, _ in tried] == ["chains", "items"]
    found = catch(fault, ("chains", "items", "ahead"))
    assert found == recorded()[fault.id] and found is not None and found.length == 7
    assert catch(fault, ("chains",)) is None and catch(fault, ()) is None


def test_faults_of_a_worker_are_looked_for_with_one_and_others_without():
    tried = [name for name, _ in attempts(by_id("dummy-rows-write"), ("chains", "rows"))]
    assert tried == ["rows"]
    assert list(attempts(by_id("extras-of-decode-forgotten"), ("rows", "batch"))) == []


# --- on record --------------------------------------------------------------------------


def test_every_seeded_fault_is_caught_in_a_preset_of_ci():
    kept, known = recorded(), presets()
    assert set(kept) == {fault.id for fault in seeded()}
    for each in kept.values():
        assert each.preset in profile("ci").presets
        assert 1 <= each.length <= known[each.preset].length


QUICK = [name for name, each in recorded().items() if each.transitions <= 400]


def test_many_are_caught_in_an_instant():
    assert len(QUICK) >= 45


@pytest.mark.parametrize("name", [*QUICK[::3], "reset-leaves-copies-filed", "stale-hash-from-outside"])
def test_a_fault_is_caught_as_on_record(name):
    fault = by_id(name)
    assert differences([fault], recorded()) == {name: ""}


def test_a_difference_is_a_sentence():
    fault, kept = FEW[0], recorded()[FEW[0].id]
    told = [
        differences([fault], found)[fault.id]
        for found in (
            {},
            {fault.id: replace(kept, length=kept.length + 1)},
            {fault.id: replace(kept, preset="rows")},
        )
    ]
    assert told[0] == f"No preset is on record for {fault.id}."
    assert f"after {kept.length} operations" in told[1] and f"where {kept.length + 1} and" in told[1]
    missed = differences([by_id("extras-of-decode-forgotten")], {"extras-of-decode-forgotten": kept})
    assert list(missed.values()) == [f"extras-of-decode-forgotten is not caught in {kept.preset}."]


def test_the_record_is_read_as_it_was_written(tmp_path, monkeypatch):
    found = catch_all(FEW, ("chains",))
    record({**found, "nobody": None}, tmp_path / "new")
    monkeypatch.setattr(
        "kvproof.fuzz.engines.explore_faults.resources.files", lambda package: tmp_path / "new"
    )
    assert recorded() == found


# --- command, phase, matrix -------------------------------------------------------------


def run(*args: object) -> Any:
    return CliRunner().invoke(kvproof, [str(arg) for arg in args])


@pytest.fixture
def few(monkeypatch):
    monkeypatch.setattr(cli, "seeded", lambda: FEW)


def test_the_command_sees_that_all_is_as_on_record(few, monkeypatch):
    result = run("explore", "--every-fault")
    assert result.exit_code == HOLDS, result.output
    assert "2 of 2 faults caught by a shortest sequence" in result.stdout and "chains" in result.stdout
    monkeypatch.setattr(explore_faults, "recorded", dict)
    found = run("explore", "--every-fault", "--json")
    assert found.exit_code == VIOLATED
    assert [row["wrong"] for row in json.loads(found.stdout)["faults"]] == [
        "No preset is on record for counted-at-lookup.",
        "No preset is on record for full-hit.",
    ]


def test_the_command_records_anew(few, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = run("explore", "--every-fault", "--record", "kept")
    assert result.exit_code == HOLDS, result.output
    assert set(json.loads((tmp_path / "kept" / "caught.json").read_text())) == {fault.id for fault in FEW}


@pytest.mark.parametrize("rest", ["--preset tiny", "--fault full-hit", "--no-policy", "--list"])
def test_every_fault_knows_its_presets(rest, capsys):
    with pytest.raises(SystemExit) as left:
        kvproof.main(["explore", "--every-fault", *rest.split()])
    assert left.value.code == USAGE and "--every-fault knows its presets" in capsys.readouterr().err


def test_the_phase_is_blind_where_a_fault_is_not_caught_as_on_record(monkeypatch):
    from kvproof.fuzz import faults

    monkeypatch.setattr(faults, "seeded", lambda: FEW)
    told: list[str] = []
    found = phases._explored_faults(told.append)
    assert found.verdict == "holds" and len(told) == 2
    kept = {name: replace(each, length=1) for name, each in recorded().items()}
    monkeypatch.setattr(explore_faults, "recorded", lambda: kept)
    found = phases._explored_faults(told.append)
    assert found.verdict == "blind" and "full-hit is caught in chains after 4" in found.message


def test_the_matrix_says_in_which_preset_a_fault_was_found(monkeypatch):
    fault = by_id("decode-chained-to-root")
    cell = matrix._explored(fault, ("chains", "ahead", "tiny"))
    assert (cell.state, cell.preset, cell.clause, cell.minimal) == ("killed", "ahead", "KV-I4-key", 6)
    assert cell.states == recorded()[fault.id].states and cell.operations == recorded()[fault.id].transitions
    row = matrix.Line(fault.id, fault.clause, (cell,), known=5)
    assert report._text(cell, row) == f"ahead, {cell.states} / {cell.operations:.0f}, +1"
    missed = matrix._explored(fault, ("chains",))
    assert missed.state == "missed" and missed.clause == "KV-I2-standing"
    monkeypatch.setattr(engine, "UNMERGED", 4)
    assert matrix._explored(by_id("hit-remembered"), ("waits",)).state == "outside"
