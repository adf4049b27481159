"""A fault may exit, raise or hang wherever it likes: it gets a row of its own, and those behind it theirs."""

import json
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from msgspec.structs import replace

from kvproof.fuzz import cases
from kvproof.fuzz.adapters.reference import ReferenceAdapter
from kvproof.fuzz.cli import phases
from kvproof.fuzz.cli.errors import USAGE, VIOLATED
from kvproof.fuzz.cli.profiles import profile
from kvproof.fuzz.cli.root import kvproof
from kvproof.fuzz.engines.explore import explore
from kvproof.fuzz.engines.explore_moves import preset
from kvproof.fuzz.engines.hunt import hunt
from kvproof.fuzz.engines.judges import judged_impl
from kvproof.fuzz.engines.soak import soak
from kvproof.fuzz.faults import Fault, planted
from kvproof.fuzz.session import Session
from kvproof.fuzz.watch import watched
from kvproof.spec import operations as op
from kvproof.spec.vocabulary import CacheConfig

POOL = "kvproof.impl.block_pool.BlockPool."
QUEUE = "kvproof.impl.free_queue.FreeBlockQueue."
EXITS = Fault("exits", "t", "KV-P-crash", f"{POOL}touch", "block.ref_cnt += 1", "raise SystemExit(0)")
UNSEEN = Fault("unseen", "t", "KV-P-usage", f"{POOL}usage", "/ self.num_usable", "/ 0")
UNBUILT = Fault(
    "unbuilt", "t", "KV-P-crash", "kvproof.impl.arithmetic.row_width", "return cdiv", "return -cdiv"
)
LOOPS = Fault("loops", "t", "KV-I1-lost", f"{POOL}touch", "block.ref_cnt += 1", "while True: pass")
SOUND = Fault(
    "sound", "t", "KV-I4-release", "kvproof.impl.life.StepsInFlight.contains", find=">=", replace=">"
)
CONFIG = CacheConfig(blocks=4, block_size=2, max_requests=2, max_len=8)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hang is known as one after a fifth of a second."""
    monkeypatch.setattr(watched.__wrapped__, "__defaults__", (0.2,))  # type: ignore[attr-defined]


def file_of(folder: Path, *faults: Fault) -> Path:
    keys = ("id", "title", "clause", "target", "find", "replace")
    tables = ["\n".join(f"{key} = {json.dumps(getattr(fault, key))}" for key in keys) for fault in faults]
    path = folder / "mine.toml"
    path.write_text("".join(f"[[fault]]\n{table}\n" for table in tables))
    return path


def run(*args: object) -> Result:
    return CliRunner().invoke(kvproof, ["faults", *(str(arg) for arg in args)])


# --- sessions -----------------------------------------------------------------------------


def test_an_exit_in_an_operation_is_a_crash() -> None:
    assert hunt(EXITS, operations=1_000).clause == "KV-P-crash"


@pytest.mark.parametrize(
    ("fault", "operations", "words"),
    [
        (UNSEEN, 1, "it failed at observe: ZeroDivisionError"),
        (UNBUILT, 0, "it failed at configure: ValueError"),
    ],
)
def test_an_allocator_that_cannot_be_built_or_seen_is_errored(
    fault: Fault, operations: int, words: str
) -> None:
    with planted([fault]):
        session = Session(ReferenceAdapter(), CONFIG)
        verdict = session.run([op.Observe()])
    assert verdict.result == "errored" and verdict.error.startswith(words)
    assert len(session.operations) == operations and "Traceback" in verdict.error
    assert cases.of_session(session, "t").expected.result == "errored"


def test_who_crashed_may_be_unfit_to_be_seen_as_well() -> None:
    class Broken(ReferenceAdapter):
        def submit(self, operation: op.Submit) -> None:
            raise ValueError

        def observe(self, *args: Any) -> op.Observation:
            raise RuntimeError

    session = Session(Broken(2), CONFIG)
    verdict = session.run([op.Submit("a", ((1, 3),))])
    assert verdict.violation is not None and verdict.violation.code == "KV-P-crash"


def test_a_mutant_that_cannot_be_built_or_seen_gives_itself_away() -> None:
    for fault in (UNBUILT, UNSEEN):
        with planted([fault]):
            assert judged_impl()[0] == "errored"


def test_exploring_what_cannot_be_seen_says_so() -> None:
    worse = replace(UNSEEN, find="return 1.0 -", replace="return 1 / (self.num_usable - self.num_free) +")
    with planted([worse]), pytest.raises(Exception, match="failed at observe"):
        explore(preset("tiny"))


# --- the watch ----------------------------------------------------------------------------


def test_a_hang_in_an_operation_is_ended_and_the_fault_is_not_found() -> None:
    for engine in ("soak", "hypothesis"):
        found = hunt(LOOPS, engine=engine, operations=1_000)
        assert not found.killed and "did not come back" in found.error


def test_the_watch_leaves_signal_and_timer_as_they_were() -> None:
    def mine(*_: object) -> None:
        pass

    handler = signal.signal(signal.SIGPROF, mine)
    signal.setitimer(signal.ITIMER_PROF, 1_000, 7)
    try:
        with pytest.raises(RuntimeError), watched():
            assert signal.getsignal(signal.SIGPROF) is not mine
            raise RuntimeError
        assert signal.getsignal(signal.SIGPROF) is mine
        left, interval = signal.getitimer(signal.ITIMER_PROF)
        assert 900 < left < 1_001 and interval == 7
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, handler)


def test_many_short_operations_are_no_hang() -> None:
    """Of a watch that has no patience at all, at least with what is over at each of its ticks."""
    with watched(0.02):
        found = soak(1_000, 0, adapter=lambda: ReferenceAdapter(2), execute=False)
    assert found.case is None


def test_outside_the_main_thread_nobody_is_watched() -> None:
    handlers: list[object] = []

    def look() -> None:
        with watched():
            handlers.append(signal.getsignal(signal.SIGPROF))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert handlers == [signal.getsignal(signal.SIGPROF)]


# --- the command --------------------------------------------------------------------------


def test_each_bad_fault_has_a_row_and_the_sound_one_behind_them_is_found(tmp_path: Path) -> None:
    path = file_of(tmp_path, UNSEEN, UNBUILT, LOOPS, EXITS, SOUND)
    result = run("--patch", path, "--ops", 1_000, "--json")
    assert result.exit_code == VIOLATED, result.output
    rows = {row["fault"]: row for row in json.loads(result.stdout)}
    assert {name: row["killed"] for name, row in rows.items()} == {
        "unseen": False, "unbuilt": False, "loops": False, "exits": True, "sound": True,
    }  # fmt: skip
    words = {"unseen": "at observe", "unbuilt": "at configure", "loops": "not come back"}
    assert all(text in rows[name]["error"] for name, text in words.items())
    assert rows["exits"]["error"] == rows["sound"]["error"] == ""


def test_the_table_says_why(tmp_path: Path) -> None:
    result = run("--patch", file_of(tmp_path, UNSEEN, SOUND), "--ops", 1_000)
    assert "ZeroDivisionError" in result.stdout and "1 of 2 faults found" in result.stdout


def test_measuring_power_goes_on_behind_a_bad_fault_and_says_why(tmp_path: Path) -> None:
    path = file_of(tmp_path, UNSEEN, SOUND)
    args = ("--patch", path, "--ops", 1_000, "--seeds", 2, "--engine", "soak")
    found = json.loads(run(*args, "--json").stdout)
    assert [row["killed"] for row in found["rows"]] == [0, 2]
    (error,) = found["errors"]
    assert (error["fault"], error["engine"]) == ("unseen", "soak") and "at observe" in error["error"]
    assert "unseen, soak: it failed at observe" in run(*args).stdout


def test_the_phase_of_faults_goes_on_behind_a_bad_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvproof.fuzz.faults.seeded", lambda: (UNBUILT, SOUND))
    phase = phases.run_faults(profile("ci"), 0, lambda text: None)
    assert [test.verdict for test in phase.tests] == ["errored", "holds"]
    assert "at configure" in phase.tests[0].message


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("import sys\nsys.exit(0)", "cannot be run: SystemExit: 0"),
        ("@nope\ndef cdiv(n, d): return 1", "cannot be run: NameError"),
        ("cdiv = 3", "does not define cdiv as a function"),
        ("while True: pass", "cannot be run: Hung"),
    ],
)
def test_a_source_that_cannot_be_planted_is_bad_input(tmp_path: Path, source: str, words: str) -> None:
    table = 'id = "a"\ntitle = "t"\nclause = "KV-P-crash"\ntarget = "kvproof.impl.arithmetic.cdiv"\n'
    (tmp_path / "mine.toml").write_text(f"[[fault]]\n{table}source = '''\n{source}\n'''\n")
    result = run("--patch", tmp_path / "mine.toml")
    assert result.exit_code == USAGE and words in result.stderr and result.stderr.count("\n") == 1
