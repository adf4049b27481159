"""The command line: exit codes, single sentences for bad input, JSON, help, and the same run twice."""

import json
import os
import re
import subprocess
import sys
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result
from junitparser import JUnitXml

from kvproof.fuzz import cases, devices
from kvproof.fuzz.cli import bundled, check, explain, phases, smoke
from kvproof.fuzz.cli.errors import CODES, HARNESS_FAULT, HOLDS, INTERRUPTED, UNDECIDED, USAGE, VIOLATED
from kvproof.fuzz.cli.profiles import NAMES, Profile, profile
from kvproof.fuzz.cli.prove import overall
from kvproof.fuzz.cli.root import COMMANDS, kvproof
from kvproof.fuzz.reports.hints import hints
from kvproof.fuzz.reports.junit import Checked, junit
from kvproof.spec import operations as op
from kvproof.spec.oracle import BY_CODE

STALE = resources.files("kvproof.fuzz.seeds") / "stale-hash.json"
TIMELINE = resources.files("kvproof.spec.cases") / "timeline.json"
MAIN = "from kvproof.fuzz.cli import main; main()"
CONFIG = '"config": {"blocks": 3, "block_size": 2}'


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*args: object) -> Result:
    return CliRunner().invoke(kvproof, [str(arg) for arg in args])


def document(*args: object, code: int = HOLDS) -> Any:
    """What a command prints to stdout with --json, where nothing else may be."""
    result = run(*args, "--json")
    assert result.exit_code == code, result.output
    return json.loads(result.stdout)


# --- help and version ---------------------------------------------------------------------


@pytest.mark.parametrize("group", [(), ("targets",)], ids=["kvproof", "targets"])
def test_a_group_without_a_command_shows_its_help_and_says_what_is_missing(group):
    result = run(*group)
    assert result.exit_code == USAGE
    assert result.stdout.startswith("Usage: ") and "Commands:" in result.stdout
    [line] = result.stderr.splitlines()
    assert line.startswith("kvproof: a command is missing; 'kvproof ")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_an_example(command):
    result = run(command, "--help")
    assert result.exit_code == HOLDS
    assert re.search(rf"Examples?:\n +kvproof {command}", result.stdout)


def test_the_help_lists_every_command_and_loads_none():
    code = (
        "import sys; from kvproof.fuzz.cli import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True)
    assert all(f"\n  {command} " in done.stdout for command in COMMANDS)
    assert not {"numpy", "hypothesis", "z3", "rich"} & set(done.stdout.split())


def test_the_version_is_one_line():
    assert re.fullmatch(r"kvproof \d+\.\d+\.\d+\n", run("--version").stdout)


# --- bad input ----------------------------------------------------------------------------

BAD_FILES = {
    "broken.json": "{" + CONFIG,
    "unknown.json": "{" + CONFIG + ', "operations": [{"op": "fly"}]}',
    "config.json": '{"config": {"blocks": 0, "block_size": 2}, "operations": [{"op": "reset"}]}',
    "illegal.json": "{" + CONFIG + ', "operations": [{"op": "finish", "request": "a"}]}',
    "empty.json": "{" + CONFIG + ', "operations": []}',
    "target.json": "{" + CONFIG + ', "target": "nobody", "operations": [{"op": "reset"}]}',
    "holds.json": "{" + CONFIG + ', "operations": [{"op": "reset"}]}',
    "short.jsonl": '{"timestamp": 0, "input_length": 1000, "output_length": 3, "hash_ids": [1]}\n',
    "none.jsonl": "",
    "not.jsonl.gz": "x",
    "faults.toml": "x",
}


@pytest.mark.parametrize(
    "args",
    [
        "",
        "nonsense",
        "--nonsense",
        "replay",
        "replay broken.json",
        "replay unknown.json",
        "replay config.json",
        "replay illegal.json",
        "replay empty.json",
        "replay target.json",
        "replay absent.json",
        "replay .",
        "shrink broken.json",
        "shrink holds.json",
        "shrink STALE --out file/small.json",
        "shrink STALE --out .",
        "workload short.jsonl --blocks 10",
        "workload none.jsonl --blocks 10",
        "workload not.jsonl.gz --blocks 10",
        "workload absent --blocks 10",
        "workload mooncake_conversation_2k",
        "workload mooncake_conversation_2k --blocks 0",
        "workload mooncake_conversation_2k --blocks many",
        "fuzz --out file/below",
        "fuzz --engine guess",
        "fuzz --ops 0",
        "fuzz --fault nobody",
        "faults --only nobody",
        "faults --patch faults.toml",
        "faults --patch absent.toml",
        "faults --engine guess",
        "check --profile lazy",
        "check --junit file/report.xml",
        "check --junit .",
        "explain KV-I2-kee",
        "explain nothing",
        "prove --nonsense",
        "conform --target cmd:",
        "conform --target nobody",
        "conform --target variant:nobody",
        "conform --target vllm==newest",
        "conform --target vllm --releases 0.13.0,newest",
        "faults --mutants --only stale-hash",
        "faults --mutants --since absent",
        "faults --since .",
        "faults --matrix --seeds 3",
        "faults --matrix --patch absent.toml",
        "faults --matrix --ops 5",
        "faults --list --record .",
        "faults --record .",
        "faults --seeds 2 --only stale-hash --record .",
        "explore --preset vast",
        "bench --only nothing-like-it",
    ],
)
def test_bad_input_is_one_sentence(folder, args):
    for name, text in {**BAD_FILES, "file": ""}.items():
        (folder / name).write_text(text)
    before = sorted(folder.rglob("*"))
    result = run(*(str(STALE) if arg == "STALE" else arg for arg in args.split()))
    assert result.exit_code == USAGE, result.output
    [line] = result.stderr.splitlines()
    assert line.startswith("kvproof: ") and line.endswith((".", "?"))
    assert sorted(folder.rglob("*")) == before, "nothing is half-written"


def test_an_unknown_clause_brings_near_ones():
    assert "KV-I4-release" in run("explain", "KV-I4-relese").stderr


# --- faults of the harness, interruption --------------------------------------------------


def test_an_unexpected_error_leaves_a_traceback_in_a_file(monkeypatch):
    monkeypatch.setattr(smoke, "canary", lambda: 1 / 0)
    result = run("demo")
    assert result.exit_code == HARNESS_FAULT
    [line] = result.stderr.splitlines()
    path = line.rsplit(" ", 1)[1].removesuffix(".")
    assert "ZeroDivisionError" in line and "Traceback" in Path(path).read_text()
    Path(path).unlink()


def test_debug_prints_the_traceback(monkeypatch):
    monkeypatch.setattr(smoke, "canary", lambda: 1 / 0)
    result = run("--debug", "demo")
    assert result.exit_code == HARNESS_FAULT and "Traceback" in result.stderr


def test_an_interruption_is_one_line(monkeypatch):
    def interrupt() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(smoke, "canary", interrupt)
    result = run("demo")
    assert result.exit_code == INTERRUPTED and result.stderr == "kvproof: interrupted.\n"


# --- fuzz ---------------------------------------------------------------------------------


def test_fuzz_says_what_it_did():
    found = document("fuzz", "--ops", 300, "--seed", 3)
    assert found["operations"] >= 300 and found["ops_per_second"] > 0
    assert found["violations"] == [] and found["verdict"] == "holds" and found["digest"]


def test_fuzz_writes_a_case_that_replays(folder):
    found = document("fuzz", "--fault", "stale-hash", "--no-policy", "--out", "found", code=VIOLATED)
    [violation] = found["violations"]
    assert violation["clause"] == "KV-I2-key" and violation["sentence"] == BY_CODE["KV-I2-key"].sentence
    assert violation["operations"] <= 12
    [row] = document("replay", violation["case"])
    assert row["recurs"] and row["clause"] == "KV-I2-key"


def test_fuzz_reports_on_paper_too(folder):
    result = run("fuzz", "--fault", "stale-hash", "--no-policy")
    assert result.exit_code == VIOLATED and "\x1b" not in result.stdout
    [path] = (folder / "kvproof-failures").iterdir()
    assert f"Reproduce: kvproof replay kvproof-failures/{path.name}\n" in result.stdout


def test_the_same_seed_gives_the_same_digest_whatever_the_hash_seed():
    digests = set()
    for hash_seed in "1", "2":
        done = subprocess.run(
            [sys.executable, "-P", "-c", MAIN, "fuzz", "--ops", "800", "--seed", "5", "--json"],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        )
        digests.add(json.loads(done.stdout)["digest"])
    assert len(digests) == 1
    assert digests != {document("fuzz", "--ops", 800, "--seed", 6)["digest"]}


# --- replay and shrink --------------------------------------------------------------------


def test_replay_prints_a_line_for_every_grant():
    result = run("replay", "--steps", TIMELINE)
    lines = [line for line in result.stdout.splitlines() if line.startswith("step=")]
    grant = (
        r"step=\d+ req=\w+ hit_tokens=\d+ scheduled=\d+ owned=\[\[[\d,]*\]\] new=\[\[[\d,]*\]\] "
        r"free=\d+ ref\(hit\)=\[[\d,]*\]"
    )
    refusal = r"step=\d+ req=\w+ refused free=\d+"
    assert result.exit_code == HOLDS
    assert all(re.fullmatch(grant, line) or re.fullmatch(refusal, line) for line in lines)
    assert sum("refused" in line for line in lines) == 1
    for line in lines:
        if found := re.search(r"owned=\[\[(.*?)\]\] new=\[\[(.*?)\]\]", line):
            owned, new = (each.split(",") if each else [] for each in found.groups())
            assert set(new) <= set(owned)


def test_replay_of_several_cases_gives_a_row_each():
    rows = document("replay", STALE, TIMELINE)
    assert [row["recurs"] for row in rows] == [True, True]
    assert [row["result"] for row in rows] == ["violated", "holds"]


def test_a_verdict_that_does_not_recur_is_a_violation(folder):
    case = cases.load(Path(str(STALE)))
    cases.save(msgspec.structs.replace(case, expected=cases.Expected()), folder / "case.json")
    result = run("replay", "case.json")
    assert result.exit_code == VIOLATED and "violated KV-I2-key, expected holds" in result.stdout


def test_an_expectation_that_is_not_met_is_a_violation(folder):
    case = bundled.timeline()
    wrong = tuple(each and msgspec.structs.replace(each, free=(1,)) for each in case.expect)
    cases.save(msgspec.structs.replace(case, expect=wrong), folder / "case.json")
    [row] = document("replay", "case.json", code=VIOLATED)
    assert not row["recurs"] and "free" in row["difference"]


def test_shrink_writes_beside_the_case_and_leaves_it_alone(folder):
    case = cases.load(Path(str(STALE)))
    first, *rest = case.operations
    longer = msgspec.structs.replace(case, operations=(first, op.Observe(), *rest, op.Observe()))
    data = cases.dumps(longer)
    (folder / "case.json").write_bytes(data)
    found = document("shrink", "case.json")
    assert (folder / "case.json").read_bytes() == data and found["case"] == "case.min.json"
    assert found["after"]["operations"] < found["before"]["operations"] == len(longer.operations)
    assert cases.replay(cases.load(folder / "case.min.json")).verdict.result == "violated"


# --- faults, proofs, workload -------------------------------------------------------------


def test_a_fault_is_killed_under_its_own_clause():
    [row] = document("faults", "--only", "full-hit", "--ops", 2000)
    assert row["killed"] and row["clause"] == row["fell"] == "KV-I3-bound" and row["minimal"] <= 12
    assert {"fault", "corpus", "clause", "engine", "operations", "seconds", "killed"} <= row.keys()


def test_a_fault_from_elsewhere_that_nobody_sees_survives(folder):
    (folder / "mine.toml").write_text(
        '[[fault]]\nid = "mine"\ntitle = "None at all"\nclause = "KV-I1-lost"\n'
        'target = "kvproof.impl.arithmetic.max_hit_blocks"\n'
        'find = "return (num_tokens - 1) // block_size"\n'
        'replace = "return (num_tokens - 1) // (block_size)"\n'
    )
    result = run("faults", "--patch", "mine.toml", "--ops", 100)
    assert result.exit_code == VIOLATED and re.search(r"mine +KV-I1-lost +no ", result.stdout)


def test_the_faults_can_be_listed():
    rows = document("faults", "--list")
    assert {row["clause"] for row in rows} <= set(BY_CODE) and len(rows) >= 12


@pytest.mark.parametrize(
    ("rows", "word"),
    [
        (["proved", "proved"], "holds"),
        (["proved", "skipped"], "holds"),
        (["proved", "refuted", "undecided"], "violated"),
        (["proved", "undecided"], "undecided"),
        (["proved", "vacuous"], "undecided"),
        (["skipped"], "undecided"),
        ([], "undecided"),
    ],
)
def test_the_verdict_of_proofs(rows, word):
    assert overall(rows) == word


def test_proofs_are_rows():
    rows = document("prove", "--no-crosshair")
    assert all(row["verdict"] == "proved" and row["bound"] and row["controls"] for row in rows)


def test_a_workload_counts():
    found = document("workload", "mooncake_conversation_2k", "--blocks", 1000, "--limit", 100)
    assert found["requests"] == 100 and found["violations"] == []
    assert {"hit_blocks", "evictions", "ops_per_second"} <= found.keys()


# --- explain ------------------------------------------------------------------------------


def test_every_clause_is_explained():
    rows = document("explain")
    assert {row["code"] for row in rows} == set(BY_CODE) == set(hints())
    assert all(row["symptom"] and row["look"] for row in rows)


def test_a_code_may_be_written_in_small_letters():
    assert explain.clause_of("kv-i2-key").code == "KV-I2-key"
    assert "stale-hash" in run("explain", "KV-I2-key").stdout


def test_the_places_to_look_exist():
    root = resources.files("kvproof")
    for code, hint in hints().items():
        for path in re.findall(r"impl/[\w/]+(?:\.py)?", hint.look):
            place = root.joinpath(path)
            assert place.is_file() or place.is_dir(), f"{code} names {path}"


# --- check --------------------------------------------------------------------------------


@pytest.fixture
def small(monkeypatch):
    """A profile of seconds. Hypothesis has tests of its own."""
    from kvproof.fuzz.engines import soak, stateful

    def little(name: str) -> Profile:
        return Profile(9, 6_000, 500, TRACES, crosshair=False, faults=False)

    monkeypatch.setattr(check, "profile", little)
    monkeypatch.setattr(stateful, "stateful", soak.soak)


TRACES: dict[str, tuple[int, ...]] = {"mooncake_conversation_2k": (1000,)}


def test_a_run_too_small_to_meet_every_situation_is_undecided(small, monkeypatch):
    monkeypatch.setattr(check, "profile", lambda name: Profile(9, 40, 10, TRACES, False, False))
    found = document("check", code=UNDECIDED)
    assert found["verdict"] == "undecided"
    assert "eviction-of-shared-block" in found["situations"]["missed"]
    assert [each for each in found["phases"] if each["verdict"] != "holds"] == []


def test_check_says_what_a_run_of_its_size_detects(small):
    found = document("check")
    assert found["situations"]["missed"] == [] and len(found["situations"]["met"]) > 25
    powers = [each["probability"] for each in found["power"]]
    assert powers == sorted(powers) and len(powers) >= 40


def test_the_profiles_ship():
    found = [profile(name) for name in NAMES]
    assert [each.soak for each in found] == sorted(each.soak for each in found)
    assert found[0].traces == {"mooncake_conversation_2k": (1000, 20_000)}
    assert {"tiny"} == set(found[0].presets) < set(found[1].presets) < set(found[2].presets)
    assert "claude_code_sessions" in found[2].traces and "mooncake_synthetic" in found[1].traces
    assert found[1].soak >= 100_000 and found[1].faults and found[1].crosshair


def test_check_runs_every_phase(folder, small):
    found = document("check", "--junit", "report.xml")
    assert [each["name"] for each in found["phases"]] == [
        name for name in phases.PHASES if name not in ("explore", "device", "faults", "targets", "mutants")
    ]
    assert found["verdict"] == "holds" and found["exit_code"] == HOLDS
    assert found["device"] == devices.current().name
    codes = [code for names in found["clauses"].values() for code in names]
    assert sorted(codes) == sorted(BY_CODE) and len(found["clauses"]["judged"]) > 40
    suites = JUnitXml.fromfile(str(folder / "report.xml"))
    names = {case.name for suite in suites for case in suite}
    assert {
        "canary",
        "timeline",
        "soak",
        "mooncake_conversation_2k, 1000 blocks",
        "seeds/stale-hash",
    } <= names
    assert suites.failures == suites.errors == 0


def test_a_blind_harness_judges_nothing(monkeypatch, small):
    monkeypatch.setattr(smoke, "CANARY_OPERATIONS", 1)
    result = run("check")
    assert result.exit_code == HARNESS_FAULT
    assert "blind" in result.stdout and "timeline" not in result.stdout


def test_a_broken_allocator_is_found_by_the_fuzz_phase(small):
    from kvproof.fuzz.faults import by_id, planted

    with planted([by_id("full-hit")]):
        found = phases.run_fuzz(Profile(9, 2000, 1, {}, False, False), 0, lambda text: None)
    assert found.verdict == "violated"


@pytest.mark.parametrize(
    ("words", "word"),
    [
        (["holds", "skipped"], "holds"),
        (["holds", "undecided"], "undecided"),
        (["undecided", "violated"], "violated"),
        (["violated", "blind"], "blind"),
        ([], "undecided"),
    ],
)
def test_the_worst_verdict_counts(words, word):
    assert phases.worst(words) == word
    assert CODES[word] in (HOLDS, VIOLATED, UNDECIDED, HARNESS_FAULT)


def test_junit_has_a_place_for_every_verdict():
    words = ("holds", "violated", "undecided", "skipped", "blind")
    tests = [Checked("group", word, word, 1.5, "KV-I1-lost", "a\x00 < b") for word in words]
    suites = JUnitXml.fromstring(junit(tests).decode())
    assert (suites.tests, suites.failures, suites.errors, suites.skipped) == (5, 1, 2, 1)
    with pytest.raises(ValueError, match="at least one"):
        junit([])


# --- demo ---------------------------------------------------------------------------------


def test_the_demo_finds_shrinks_and_explains():
    result = run("demo")
    assert result.exit_code == HOLDS
    assert "✗ KV-I2-key" in result.stdout and "Reproduce: kvproof replay " in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 80


def test_the_demo_falls_back_to_a_temporary_folder(folder):
    (folder / "kvproof-failures").write_text("in the way")
    result = run("demo")
    assert result.exit_code == HOLDS
    [path] = re.findall(r"Reproduce: kvproof replay (\S+)", result.stdout)
    assert Path(path).is_absolute() and Path(path).is_file()
