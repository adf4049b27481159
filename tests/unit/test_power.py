"""The figures of detection power: intervals that are known from tables, trials that can fail."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from kvproof.fuzz.cli import faults as cli
from kvproof.fuzz.cli.errors import HOLDS
from kvproof.fuzz.cli.faults import command
from kvproof.fuzz.engines import power
from kvproof.fuzz.engines.hunt import hunt, runs
from kvproof.fuzz.engines.power import Power, Trial, measure, median, median_rank, wilson
from kvproof.fuzz.faults import Fault, by_id
from kvproof.fuzz.reports import power as report

NOBODY_SEES = Fault(
    "none", "None at all", "KV-I1-lost", "kvproof.impl.arithmetic.cdiv", "divisor)", "divisor + 0)"
)


@pytest.mark.parametrize(
    ("hits", "count", "least", "most"),
    [(20, 20, 0.8389, 1.0), (0, 20, 0.0, 0.1611), (10, 20, 0.2993, 0.7007), (19, 20, 0.7639, 0.9911)],
)
def test_wilsons_interval(hits: int, count: int, least: float, most: float) -> None:
    assert wilson(hits, count) == pytest.approx((least, most), abs=1e-4)


@pytest.mark.parametrize(("count", "rank"), [(1, 0), (5, 0), (6, 1), (8, 1), (9, 2), (20, 6), (100, 40)])
def test_the_ranks_between_which_a_median_lies(count: int, rank: int) -> None:
    assert median_rank(count) == rank


def test_a_median_with_its_interval_and_what_never_ends_in_it() -> None:
    found = median(list(range(1, 21)))
    assert found == power.Median(10.5, 6, 15)
    endless = median([*range(1, 14), *[None] * 7])
    assert endless == power.Median(10.5, 6, None)
    assert median([1, None, None]) is None
    assert median([1, 2, 3]) == power.Median(2, None, None)


def test_a_trial_ends_with_the_faults_own_clause_or_with_its_budget() -> None:
    row = measure(by_id("shared-hit-not-counted"), "soak", range(3), 2_000)
    assert row.killed == row.seen == 3 and row.probability == 1.0
    assert all(0 < trial.operations <= 2_000 for trial in row.trials)
    assert row.operations is not None and row.operations.value > 0
    blind = measure(NOBODY_SEES, "soak", range(2), 50)
    assert blind.killed == blind.seen == 0 and blind.operations is None
    assert all(trial.operations >= 50 and trial.first is None for trial in blind.trials)


def test_a_find_under_another_clause_is_seen_but_not_a_kill() -> None:
    wrong = Fault(
        "wrong", "t", "KV-P-reset", "kvproof.impl.block_pool.BlockPool.touch", "block.ref_cnt += 1", "pass"
    )
    row = measure(wrong, "soak", range(2), 300)
    assert row.killed == 0 and row.seen == 2
    hunted = hunt(wrong, operations=300)
    assert not hunted.killed and hunted.clause and hunted.clause != "KV-P-reset"


def test_runs_go_on_until_the_budget_is_spent_and_never_repeat_a_seed() -> None:
    finds = list(runs(by_id("lookahead-published"), "soak", 120, 0))
    assert len(finds) > 2
    assert finds[-2].operations < 120 <= finds[-1].operations
    titles = [find.case.title for find in finds if find.case is not None]
    assert len(titles) == len(set(titles)) >= len(finds) - 1


def test_the_record_has_every_figure() -> None:
    trials = (Trial(0, True, 10, 4), Trial(1, False, 100, None))
    row = Power("f", "KV-I1-lost", "soak", 100, trials, ("KVB-001",))
    (figures,) = report.document([row])["rows"]
    assert {"fault", "corpus", "clause", "engine", "operations", "seconds", "killed"} <= figures.keys()
    assert figures["killed"] == 1 and figures["seen"] == 1 and figures["seeds"] == 2
    assert json.loads(report.encoded(report.document([row])))["rows"][0]["trials"] == [
        [0, True, 10, 4],
        [1, False, 100, None],
    ]
    assert "| f | KV-I1-lost | soak | 1/2 | ≥ 9% |" in report.markdown([row])


def run(*arguments: str) -> Result:
    return CliRunner().invoke(command, arguments, standalone_mode=False)


def test_the_command_measures_and_keeps_the_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "seeded", lambda: (by_id("lookahead-published"),))
    result = run("--engine", "soak", "--seeds", "3", "--ops", "500", "--json", "--record", str(tmp_path))
    assert result.return_value == HOLDS, result.exception
    (row,) = json.loads((tmp_path / "power.json").read_text())["rows"]
    assert row["killed"] == row["seeds"] == 3 and row["engine"] == "soak"
    assert json.loads(result.stdout)["rows"] == [row]
    assert "lookahead-published" in (tmp_path / "power.md").read_text()
    run("--engine", "hypothesis", "--seeds", "2", "--ops", "300", "--record", str(tmp_path))
    rows = json.loads((tmp_path / "power.json").read_text())["rows"]
    assert [(each["engine"], each["seeds"]) for each in rows] == [("soak", 3), ("hypothesis", 2)]
    assert rows[0] == row


def test_a_record_needs_something_to_keep(tmp_path: Path) -> None:
    assert "--record keeps" in str(run("--record", str(tmp_path)).exception)
