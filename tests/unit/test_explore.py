"""Presets and their operations, what an exploration says, what is on record, the command and the phase."""

import json
import subprocess
import sys
from typing import Any

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from kvproof.fuzz import cases
from kvproof.fuzz.adapters.reference import ReferenceAdapter
from kvproof.fuzz.cli import explore as cli
from kvproof.fuzz.cli import phases
from kvproof.fuzz.cli.errors import HOLDS, USAGE, VIOLATED
from kvproof.fuzz.cli.profiles import NAMES, profile
from kvproof.fuzz.cli.root import kvproof
from kvproof.fuzz.engines import explore_moves, explore_record
from kvproof.fuzz.engines.explore import Explorer, Unrepeatable, explore
from kvproof.fuzz.engines.explore_moves import Preset, PresetError, operations, preset, presets
from kvproof.fuzz.engines.explore_record import Counts, counts_of, difference, record, recorded
from kvproof.fuzz.engines.explore_tally import SENTENCES
from kvproof.fuzz.faults import by_id, planted
from kvproof.fuzz.session import Session
from kvproof.spec import operations as op
from kvproof.spec.contract import reason_against
from kvproof.spec.oracle import CLAUSES
from kvproof.spec.situations import SITUATIONS

SHORT = replace(preset("tiny"), length=4, reaches=("hit", "full-pool"))


@pytest.fixture
def short(monkeypatch):
    """Presets of which each is explored in an instant."""
    found = {"tiny": SHORT, "other": replace(SHORT, length=3, reaches=())}
    monkeypatch.setattr(explore_moves, "presets", lambda: found)
    monkeypatch.setattr(cli, "presets", lambda: found)
    kept = {name: counts_of(explore(each)) for name, each in found.items()}
    monkeypatch.setattr(explore_record, "recorded", lambda: kept)
    monkeypatch.setattr(cli, "recorded", lambda: kept)
    return found


# --- presets and operations -------------------------------------------------------------


def test_presets_ship_with_counts_on_record_and_situations_to_reach():
    kept = recorded()
    assert [*profile("ci").presets, "standard"] == list(profile("nightly").presets) == list(presets())
    names = {each.name for each in SITUATIONS}
    for name, each in presets().items():
        assert each.reaches and set(each.reaches) <= names
        assert len(kept[name].states) == each.length + 1
        assert all(kept[name].situations[situation] for situation in each.reaches)
    assert 8_000 <= sum(kept["tiny"].states) <= 12_000
    assert sum(kept["small"].states) >= 50_000
    assert {name for name, each in presets().items() if each.level > 2} == {"rows", "batch"}
    assert {"tiny"} == set(profile("quick").presets) < set(profile("ci").presets)
    assert all(set(profile(name).presets) <= set(kept) for name in NAMES)


def test_a_preset_that_there_is_not():
    with pytest.raises(PresetError, match=r"no preset 'large'; there are chains, ahead"):
        preset("large")


def after(scope: Preset, *history: op.AnyOperation) -> list[op.AnyOperation]:
    session = Session(ReferenceAdapter(2), scope.config, execute=False)
    session.run(history)
    assert not session.over
    found = list(operations(scope, session.state))
    assert len(found) == len(set(found))
    assert not any(reason_against(session.state, each) for each in found)
    return found


A, B = (op.Submit(name, (0, 0, 0)) for name in "ab")


def test_nothing_but_arrivals_and_a_reset_begins_a_sequence():
    long = op.Submit("a", (0, 0, 1, 1, 0))
    assert after(preset("tiny")) == [A, long, op.Reset()]


def test_of_ids_without_a_trace_one_is_enough():
    wide = replace(preset("tiny"), requests=3)
    assert {each.request for each in after(wide, A) if isinstance(each, op.Submit)} == {"b"}
    step = (op.Admit("a", 3), op.Dispatch(1, (op.Entry("a", 3),)), op.Finish("a"))
    submits = [each.request for each in after(wide, A, *step) if isinstance(each, op.Submit)]
    assert submits == ["a", "a", "b", "b"], "a has a step in flight, b and c have not"


def test_grants_steps_and_samples_come_in_every_way():
    config = replace(preset("small").config, blocks=6)
    wide = replace(preset("small"), chunks=(1, 2), sampled=(0, 1), config=config)
    admits = [each for each in after(wide, A) if isinstance(each, op.Admit)]
    assert [(each.n, each.lookahead) for each in admits] == [(3, 0), (3, 3), (1, 0), (1, 3), (2, 0), (2, 3)]
    both = (A, op.Admit("a", 3, 3), B, op.Admit("b", 3))
    steps = [each.entries for each in after(wide, *both) if isinstance(each, op.Dispatch)]
    a, drafting, b = op.Entry("a", 3), op.Entry("a", 3, (0, 0, 0)), op.Entry("b", 1)
    assert steps == [(a,), (drafting,), (a, b), (drafting, b)]
    retires = [each for each in after(wide, *both, op.Dispatch(1, (a, b))) if isinstance(each, op.Retire)]
    sampled = [tuple(output.sampled[0] for output in each.outputs) for each in retires]
    assert sampled == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_a_life_on_which_others_rest_does_not_end_first():
    ends = after(preset("tiny"), A, op.Admit("a", 3), B, op.Admit("b", 3))
    assert {each.request for each in ends if isinstance(each, op.Finish | op.Preempt)} == {"b"}


# --- explorations -----------------------------------------------------------------------


def test_an_exploration_judges_every_clause_that_structures_show_and_counts_situations():
    told: list[tuple[int, int]] = []
    found = Explorer(SHORT).run(lambda states, length: told.append((states, length)))
    assert found.verdict == "holds" and found.case is None and found.missed == ()
    assert found.states[0] == 1 and sum(found.states) < found.transitions
    # Bytes are for runs with a device.
    assert {c.code for c in CLAUSES if c.level <= 2} - {"KV-I2-bytes"} == set(found.exercised)
    assert found.situations["full-pool"] > found.situations["hit"] == found.situations["same-step-hit"] > 0
    assert told and told == sorted(told) and told[-1][0] <= sum(found.states)


def test_a_preset_that_is_too_easy_proves_nothing():
    found = explore(replace(SHORT, length=2))
    assert found.verdict == "undecided" and found.missed == ("hit",)


def test_situations_are_counted_per_transition_and_not_for_the_audit():
    plain, audited = Explorer(SHORT, audit=10**9).run(), Explorer(SHORT, audit=1).run()
    assert audited.audited > 0 == plain.audited
    assert plain.situations == audited.situations
    assert counts_of(plain) == counts_of(audited)


def test_a_shortest_sequence_comes_out_as_a_case_that_replays():
    with planted([by_id("shared-hit-not-counted")]):
        found = explore(preset("tiny"), compare_policy=False, faults=("shared-hit-not-counted",))
    assert found.case is not None and found.verdict == "violated"
    kinds = [type(each) for each in found.case.operations]
    assert kinds == [op.Submit, op.Submit, op.Admit, op.Admit]
    assert found.case.expected.clause == "KV-I1-refcount"
    assert cases.replay(found.case).recurs(found.case)


def test_a_manager_with_state_outside_its_objects_is_told_apart(monkeypatch):
    from kvproof.impl.manager import KVCacheManager

    calls = iter(range(1000))
    right = KVCacheManager.reset_prefix_cache

    def reset(self: KVCacheManager) -> bool:
        return right(self) if next(calls) != 7 else False

    monkeypatch.setattr(KVCacheManager, "reset_prefix_cache", reset)
    with pytest.raises(Unrepeatable, match="does not repeat"):
        explore(SHORT)


SCRIPT = """
from msgspec.structs import replace
from kvproof.fuzz.engines.explore import explore
from kvproof.fuzz.engines.explore_moves import preset
from kvproof.fuzz.engines.explore_record import counts_of
print(counts_of(explore(replace(preset("tiny"), length=5))))
"""


def test_counts_are_the_same_whatever_the_hash_seed():
    runs = []
    for seed in ("0", "4711"):
        environment = {"PYTHONHASHSEED": seed, "PATH": ""}
        run = subprocess.run([sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True)
        assert run.returncode == 0, run.stderr
        runs.append(run.stdout)
    assert runs[0] == runs[1]


# --- on record --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "length"),
    [(name, {"fields": 3, "small": 5, "standard": 4, "batch": 5}.get(name, 6)) for name in presets()],
)
def test_the_first_lengths_are_as_recorded(name, length):
    found = explore(replace(preset(name), length=min(length, preset(name).length)))
    assert found.states == list(recorded()[name].states[: length + 1])


def test_a_difference_is_told(tmp_path):
    found = explore(SHORT)
    now = counts_of(found)
    assert difference("tiny", found, {"tiny": now}) == ""
    assert difference("tiny", found, {}) == "No counts are on record for tiny."

    def told(**changes: Any) -> str:
        return difference("tiny", found, {"tiny": replace(now, **changes)})

    assert told(
        states=(*now.states[:-1], 9)
    ) == "58 states take 4 operations, where 9 are on record.".replace("58", str(now.states[-1]))
    assert told(states=now.states[:-1]) == "The length is 4, where 3 is on record."
    assert "transitions, where 7 are on record" in told(transitions=7)
    assert told(situations={**now.situations, "hit": 0}).startswith("Situation hit was met")
    assert told(situations={**now.situations, "padding": 3}).startswith("Situation padding was met 0 times")


def test_recording_keeps_other_presets(tmp_path):
    found = explore(replace(SHORT, length=2))
    record({"one": found}, tmp_path / "new")
    record({"two": found}, tmp_path / "new")
    text = (tmp_path / "new" / "explored.json").read_bytes()
    assert set(json.loads(text)) == {"one", "two"}


# --- command ----------------------------------------------------------------------------


def run(*args: object) -> Any:
    return CliRunner().invoke(kvproof, [str(arg) for arg in args])


def test_the_command_says_how_many_states_there_are(short, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = run("explore", "--preset", "tiny", "--preset", "other")
    assert result.exit_code == HOLDS, result.output
    states = sum(recorded_of(short, "tiny"))
    assert f"holds: tiny, all {states} states within 4 operations" in result.stdout
    assert "holds: other, all" in result.stdout and SENTENCES["full-pool"] in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 90
    assert list(tmp_path.iterdir()) == []


def recorded_of(short: dict[str, Preset], name: str) -> list[int]:
    return explore(short[name]).states


def test_the_command_as_json(short, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = run("explore", "--json")
    assert result.exit_code == HOLDS, result.output
    found = json.loads(result.stdout)
    (row,) = found["presets"]
    assert found["verdict"] == row["verdict"] == "holds" and row["preset"] == "tiny"
    assert row["states"] == sum(row["states_by_length"]) and row["length"] == 4
    assert row["situations"]["hit"] > 0 and row["missed"] == [] and row["changed"] == ""


def test_a_count_that_is_not_the_recorded_one_is_a_violation(short, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cli, "recorded", lambda: {"tiny": Counts((1, 2), 3, {})})
    result = run("explore")
    assert result.exit_code == VIOLATED
    assert "The length is 4, where 1 is on record." in result.stdout
    result = run("explore", "--record", "kept")
    assert result.exit_code == HOLDS and (tmp_path / "kept" / "explored.json").exists()


def test_the_command_keeps_the_shortest_case_of_a_planted_fault(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = run("explore", "--fault", "shared-hit-not-counted", "--no-policy")
    assert result.exit_code == VIOLATED, result.output
    assert "KV-I1-refcount" in result.stdout
    assert "no sequence of fewer than 4 operations breaks a clause" in " ".join(result.stdout.split())
    (path,) = (tmp_path / "kvproof-failures").iterdir()
    assert run("replay", path).exit_code == HOLDS


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("explore --preset large", f"there is no preset 'large'; there are {', '.join(presets())}."),
        ("explore --fault none", "there is no seeded fault 'none'"),
        ("explore --fault full-hit --record kept", "only explorations without faults"),
    ],
)
def test_bad_input_is_one_sentence(line, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as left:
        kvproof.main(line.split())
    assert left.value.code == USAGE
    error = capsys.readouterr().err
    assert error.startswith(f"kvproof: {message}") and error.count("\n") == 1


def test_the_list_names_every_preset():
    result = run("explore", "--list")
    assert result.exit_code == HOLDS
    assert [line.split()[0] for line in result.stdout.splitlines()] == list(presets())


# --- phase ------------------------------------------------------------------------------


def check(*names: str) -> phases.Phase:
    return phases.run_explore(replace(profile("quick"), presets=names), 0, lambda text: None)


def test_the_phase_has_a_canary_and_compares_counts(short, monkeypatch):
    found = check("tiny", "other")
    assert found.verdict == "holds" and [test.name for test in found.tests] == ["canary", "tiny", "other"]
    assert "hit" in found.situations and "KV-I1-lost" in found.exercised and "KV-P-order" in found.exercised
    monkeypatch.setattr(explore_record, "recorded", dict)
    assert check("tiny").verdict == "violated"


def test_an_explorer_that_misses_its_fault_is_blind(short, monkeypatch):
    monkeypatch.setattr(phases, "EXPLORED", ("vacated-row-kept", "tiny"))
    found = check()
    assert found.verdict == "blind" and "misses the planted fault vacated-row-kept" in found.tests[0].message


def test_the_phase_hands_on_the_case_of_a_broken_manager(short):
    with planted([by_id("keyed-a-token-early")]):
        found = check("tiny")
    (case,) = found.failing
    assert case.expected.clause in found.tests[1].message and found.tests[1].verdict == "violated"


def test_a_preset_that_is_too_easy_is_undecided(short, monkeypatch):
    easy = {"tiny": SHORT, "easy": replace(SHORT, length=2)}
    monkeypatch.setattr(explore_moves, "presets", lambda: easy)
    found = check("easy")
    assert found.verdict == "undecided" and "too easy" in found.tests[1].message
