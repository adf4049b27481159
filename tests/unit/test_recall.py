"""Known bugs as data, the turns of a run, and what runs amount to."""

import io
import json

import pytest
from click.testing import CliRunner
from rich.console import Console

from kvproof.fuzz.cases import Case, Expected
from kvproof.fuzz.cli import recall as cli
from kvproof.fuzz.cli.root import kvproof
from kvproof.fuzz.engines import recall
from kvproof.fuzz.engines.recall import ROUND, First, Job, Run, Turns, row, run, run_apart
from kvproof.fuzz.faults import by_id, planted
from kvproof.fuzz.reports import recall as report
from kvproof.fuzz.targets import known as known_bugs
from kvproof.fuzz.targets.known import Known, KnownError, fields_of, parse, select
from kvproof.spec import operations as op
from kvproof.spec.vocabulary import CacheConfig

SALTED = Known(
    "salted",
    "An adapter's name as a salt",
    ("KV-I2-standing",),
    "reference",
    "1 to 2",
    fixed="vllm==3.0",
    fields=frozenset({"adapters", "salts"}),
)


def case(clause: str, *operations: op.AnyOperation) -> Case:
    return Case(
        CacheConfig(blocks=2, block_size=1, max_len=8), operations, expected=Expected("violated", clause)
    )


LORA = op.Submit("a", (1,), op.Extras(adapter=op.Adapter("x")))
SALT = op.Submit("b", (1,), op.Extras(salt="x"))
ITEM = op.Submit("c", (1,), op.Extras(items=(op.Item("x", 0, 1),)))


# --- data -------------------------------------------------------------------------------


def test_a_match_takes_the_clause_and_exactly_the_key_fields():
    minimal = case("KV-I2-standing", LORA, SALT)
    assert fields_of(minimal) == {"adapters", "salts"}
    assert SALTED.is_in(minimal)
    assert not SALTED.is_in(case("KV-I2-hit", LORA, SALT))
    assert not SALTED.is_in(case("KV-I2-standing", LORA, LORA))
    larger = case("KV-I2-standing", LORA, SALT, ITEM)
    assert SALTED.may_be_in(larger) and not SALTED.is_in(larger)
    assert not SALTED.may_be_in(case("KV-I2-standing", LORA, ITEM))


def test_operations_tell_bugs_apart():
    with_step = Known("a", "", ("KV-P-crash",), "reference", "", needs=frozenset({"observe"}))
    without = Known("b", "", ("KV-P-crash",), "reference", "", lacks=frozenset({"observe"}))
    plain, stepped = case("KV-P-crash", op.Reset()), case("KV-P-crash", op.Reset(), op.Observe())
    assert with_step.is_in(stepped) and not with_step.is_in(plain) and not with_step.may_be_in(plain)
    assert without.is_in(plain) and not without.is_in(stepped) and without.may_be_in(stepped)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[[known]]\nid = 1", "cannot be read"),
        ("nothing", "cannot be read"),
        ('[[known]]\nid="a"\ntitle=""\nclauses=[]\ntarget=""\nshipped=""\n' * 2, "two known bugs"),
    ],
)
def test_wrong_data_is_refused(text, why):
    with pytest.raises(KnownError, match=why):
        parse(text)


def test_a_selection_keeps_the_order_asked_for():
    assert [each.id for each in select(("stale-index", "adapter-moved"))] == ["stale-index", "adapter-moved"]
    with pytest.raises(KnownError, match="no known bug 'nothing'"):
        select(("nothing",))


# --- turns ------------------------------------------------------------------------------


def test_each_clause_that_fell_has_its_turn_with_all_fields_and_without_each():
    turns = Turns()
    assert turns.at(0) == (frozenset(), "")
    turns.fell("KV-P-events")
    turns.fell("KV-P-canonical", ("salts", "items"))
    seen = [turns.at(ROUND * i) for i in range(6)]
    ignored = {"KV-P-events", "KV-P-canonical", "KV-P-chain"}
    canonical = frozenset({"KV-P-events"})
    assert seen[0] == seen[5] == (frozenset(ignored), "")
    assert seen[1] == (frozenset(ignored) - {"KV-P-events"}, "")
    assert seen[2:5] == [(canonical, ""), (canonical, "items"), (canonical, "salts")]


def test_a_turn_lasts_a_round():
    turns = Turns()
    turns.fell("KV-P-events")
    assert turns.at(ROUND - 1)[0] == {"KV-P-events"}
    assert turns.at(ROUND + 7)[0] == turns.at(2 * ROUND + 6)[0] == frozenset()
    assert turns.at(2 * ROUND + 7)[0] == {"KV-P-events"}


def test_what_falls_in_the_wake_of_another_has_no_turn_and_a_crash_is_never_ignored():
    turns = Turns()
    for clause in ("KV-I2-hit", "KV-I2-standing", "KV-P-crash"):
        turns.fell(clause)
    assert "KV-I2-hit" in turns.at(0)[0] and "KV-P-crash" not in turns.at(0)[0]
    assert [turns.at(ROUND * i)[0] for i in (1, 2)] == [
        # Its own wake is judged, too, where it is judged itself: it falls first.
        frozenset({"KV-I2-hit", "KV-I2-write", "KV-I2-read", "KV-I2-bytes"}),
        turns.at(0)[0],
    ]


# --- runs -------------------------------------------------------------------------------


def test_a_planted_bug_is_found_and_a_sound_manager_is_silent(monkeypatch):
    monkeypatch.setattr(recall, "select", lambda ids: (SALTED,))
    job = Job("reference", ("salted",), (0,), operations=1_500)
    silent = run(job, 0)
    assert silent.firsts == () and silent.operations >= 1_500 and silent.level == 3
    with planted([by_id("adapter-is-salt")]):
        found = run(job, 0)
        assert found.operations == run(job, 0).operations <= 1_500
    first = found.first("salted")
    assert first is not None and first.operations == found.operations
    assert first.case.title == SALTED.title and SALTED.is_in(first.case)


def test_a_run_in_another_process_says_why_it_did_not_run():
    seen: list[Run] = []
    (wrong,) = run_apart(Job("nothing", (), (3,)), seen.append)
    assert wrong.seed == 3 and wrong.error.startswith("there is no target") and seen == [wrong]
    dead = run_apart(Job("reference", ("nothing",), (0, 1)))
    assert [each.seed for each in dead] == [0, 1]
    assert all(each.error == "the process ended with code 1" for each in dead)


def a_run(seed: int, operations: int, found: bool) -> Run:
    minimal = case("KV-I2-standing", LORA, SALT)
    firsts = (First("salted", operations, operations / 1000, minimal),) if found else ()
    return Run("reference", seed, 2, operations, operations / 1000, firsts)


@pytest.mark.parametrize(
    ("found", "quiet", "word"), [(10, 2, "holds"), (9, 2, "holds"), (8, 2, "blind"), (10, 1, "violated")]
)
def test_nine_of_ten_runs_find_it_and_every_fixed_one_is_silent(found, quiet, word):
    runs = [a_run(i, 1000 * (i + 1), i < found) for i in range(10)]
    made = row(SALTED, runs, [a_run(i, 500, i >= quiet) for i in range(2)])
    assert (made.found, made.seeds, made.quiet, made.heard, made.judged) == (found, 10, quiet, 2, 500)
    assert made.word == word
    assert made.operations is not None and made.operations.most == 1000 * found


def test_a_skip_and_an_error_are_told():
    assert row(SALTED, [Run("reference", 0, skipped="no network")]).word == "undecided"
    assert row(SALTED, [Run("reference", 0, error="gone")]).word == "errored"
    assert row(SALTED, [a_run(0, 5, False)]).word == "blind"


def test_the_table_fits_eighty_columns_and_the_record_is_whole(tmp_path):
    rows = [row(SALTED, [a_run(i, 123_456, True) for i in range(20)], [a_run(0, 900_000, False)])]
    to = Console(width=80, record=True, file=io.StringIO())
    to.print(report.table(rows))
    text = to.export_text()
    assert "20/20" in text and "silent" in text and "123,456" in text and "L2" in text
    assert max(map(len, text.splitlines())) <= 80
    report.keep(rows, 120, tmp_path)
    (figures,) = json.loads((tmp_path / "recall.json").read_text())["rows"]
    assert figures["found"] == 20 and figures["silent"]["quiet"] == 1 and figures["result"] == "holds"
    assert "no GPU ran" in (tmp_path / "recall.md").read_text()


# --- command ----------------------------------------------------------------------------


def test_the_list_names_every_bug():
    done = CliRunner().invoke(kvproof, ["recall", "--list", "--json"], standalone_mode=False)
    assert [each["id"] for each in json.loads(done.output)] == [each.id for each in known_bugs.load()]


def test_the_command_measures_then_listens_to_the_fixed_release(monkeypatch, tmp_path):
    jobs = []

    def fake(job, progress):
        jobs.append(job)
        runs = [a_run(seed, 100 + seed, job.target == "reference") for seed in job.seeds]
        return [Run(job.target, each.seed, 2, each.operations, 1.0, each.firsts) for each in runs]

    monkeypatch.setattr(cli, "run_apart", fake)
    monkeypatch.setattr(cli, "select", lambda only: (SALTED,))
    arguments = ["recall", "--seeds", "4", "--record", str(tmp_path), "--cases", str(tmp_path / "cases")]
    done = CliRunner().invoke(kvproof, arguments, standalone_mode=False)
    assert done.exit_code == 0, done.output
    assert "holds: 1 of 1 known bug found" in done.output
    assert [(job.target, job.seeds, job.operations) for job in jobs] == [
        ("reference", (0, 2), 0),
        ("reference", (1, 3), 0),
        *[("vllm==3.0", (seed,), cli.FLOOR) for seed in range(3)],
    ]
    assert (tmp_path / "recall.md").exists() and (tmp_path / "cases" / "salted.json").exists()


def test_an_unknown_bug_is_a_usage_error(capsys):
    with pytest.raises(SystemExit) as left:
        kvproof.main(["recall", "--only", "nothing"])
    assert left.value.code == 3
    assert "there is no known bug 'nothing'" in capsys.readouterr().err
