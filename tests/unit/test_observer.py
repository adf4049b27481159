"""Observer mode: a scheduler's own log is judged, a gap in it is undecided, a broken one is one sentence."""

from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from kvproof.fuzz.adapters.reference import ReferenceAdapter
from kvproof.fuzz.cases import replay
from kvproof.fuzz.cli.root import kvproof
from kvproof.fuzz.observer import Header, LogError, Observer, read, write
from kvproof.spec import operations as op
from kvproof.spec.vocabulary import FEATURES, OPERATIONS, CacheConfig, Capabilities

CONFIG = CacheConfig(blocks=4, block_size=2, max_len=8)
HEADER = Header(CONFIG, Capabilities(1, operations=OPERATIONS, features=FEATURES), "an engine")


DONE = op.Done()


class Scheduler:
    """An engine that decides for itself: serves what arrives, preempts the youngest when space runs out."""

    def __init__(self) -> None:
        self.manager = ReferenceAdapter(level=2)
        self.manager.configure(CONFIG, 0)
        self.records: list[op.Record] = []

    def say(self, operation: op.AnyOperation, answer: op.AnyAnswer = DONE) -> op.AnyAnswer:
        self.records.append(op.Record(len(self.records), operation, answer))
        return answer

    def serve(self) -> None:
        for name in ("a", "b"):
            submit = op.Submit(name, (1, 2, 3, 4, ord(name)))
            self.manager.submit(submit)
            self.say(submit)
        running: list[str] = []
        for name in ("a", "b"):
            if isinstance(self.say(op.Admit(name, 9), self.manager.admit(name, 9, 0)), op.Granted):
                running.append(name)
        entries = tuple(op.Entry(name, 5 if name == "a" else 1) for name in running)
        step = op.Dispatch(1, entries)
        self.say(step, self.manager.dispatch(step))
        retire = op.Retire(1, tuple(op.Output(name, (7,)) for name in running))
        self.say(retire, self.manager.retire(retire))
        for name in running:
            self.say(op.Extend(name, 1), self.manager.extend(name, 1, 0))
        youngest = running.pop()
        self.manager.preempt(youngest)
        self.say(op.Preempt(youngest))
        self.manager.abort("a")
        self.say(op.Abort("a"))


@pytest.fixture
def log(tmp_path: Path) -> Path:
    scheduler = Scheduler()
    scheduler.serve()
    path = tmp_path / "engine.jsonl"
    path.write_bytes(write(HEADER, scheduler.records))
    return path


def judge(path: Path) -> Observer:
    header, lines = read(path)
    observer = Observer(header)
    for line in lines:
        observer.report(line.operation, line.answer, line.observation)
    return observer


def test_what_a_scheduler_did_by_itself_is_judged(log: Path) -> None:
    verdict = judge(log).verdict()
    assert verdict.result == "holds" and verdict.records == len(log.read_bytes().splitlines()) - 1
    result = CliRunner().invoke(kvproof, ["observe", str(log)])
    assert result.exit_code == 0 and "holds: an engine" in result.output


def test_a_wrong_answer_in_the_log_is_a_violation(log: Path) -> None:
    log.write_bytes(log.read_bytes().replace(b'"rows":[[1,2,4]]', b'"rows":[[2,1,4]]'))
    observer = judge(log)
    violation = observer.verdict().violation
    assert violation is not None and violation.code == "KV-I2-hit"
    result = CliRunner().invoke(kvproof, ["observe", str(log)])
    assert result.exit_code == 1 and "KV-I2-hit at record 4" in result.output


def test_a_log_with_a_gap_is_undecided(log: Path) -> None:
    lines = log.read_bytes().splitlines()
    log.write_bytes(b"\n".join(line for line in lines if b'"dispatch"' not in line))
    observer = judge(log)
    assert observer.verdict().result == "undecided"
    assert observer.gap.startswith("record 5 does not follow")
    result = CliRunner().invoke(kvproof, ["observe", str(log)])
    assert result.exit_code == 2


def test_level_two_without_structures_is_a_gap() -> None:
    header = msgspec.structs.replace(HEADER, capabilities=Capabilities(2))
    observer = Observer(header)
    observer.report(op.Submit("a", (1,)), op.Done())
    assert "shows no structures" in observer.gap


def test_a_replayed_case_is_a_log_too(tmp_path: Path) -> None:
    from kvproof.fuzz.cases import Case

    case = Case(CONFIG, (op.Submit("a", (1, 2, 3)), op.Admit("a", 3)))
    capabilities = ReferenceAdapter().capabilities
    path = tmp_path / "log.jsonl"
    path.write_bytes(write(Header(CONFIG, capabilities), replay(case).records))
    assert judge(path).verdict().result == "holds"


@pytest.mark.parametrize(
    ("data", "words"),
    [(b"", "is empty"), (b"{}", "line 1 is not the header"), (b"[1]\n", "line 1 is not the header")],
)
def test_a_broken_header_is_one_sentence(tmp_path: Path, data: bytes, words: str) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(data)
    with pytest.raises(LogError, match=words):
        read(path)


def test_a_broken_line_is_named(log: Path) -> None:
    log.write_bytes(log.read_bytes() + b"{nonsense\n")
    with pytest.raises(LogError, match=r"line 12 is not a record"):
        judge(log)
    with pytest.raises(LogError, match="cannot read"):
        read(log.parent / "absent")
