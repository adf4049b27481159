"""The runner of stdio targets: who breaks the protocol is errored or violated, soon, and leaves nothing."""

import gc
import shlex
import sys
import time
from pathlib import Path

import pytest
from msgspec.structs import replace

from kvproof.fuzz import cases
from kvproof.fuzz.adapters import stdio
from kvproof.fuzz.adapters.port import Errored
from kvproof.fuzz.adapters.reference import ReferenceAdapter
from kvproof.fuzz.engines.soak import soak
from kvproof.fuzz.session import Session
from kvproof.fuzz.targets import TargetError, make_adapter
from kvproof.fuzz.targets.process import IDLE
from kvproof.spec import operations as op
from kvproof.spec.oracle import Verdict
from kvproof.spec.vocabulary import CacheConfig

FAKES = Path(__file__).parent / "fakes"
CONFIG = CacheConfig(blocks=4, block_size=2)
LIFE: tuple[op.AnyOperation, ...] = (
    op.Submit("a", (1, 2, 3)),
    op.Lookup("a"),
    op.Admit("a", 3),
    op.Row("a"),
    op.Dispatch(1, (op.Entry("a", 3),)),
    op.Retire(1, (op.Output("a", (4,)),)),
    op.Extend("a", 1),
    op.Dispatch(2, (op.Entry("a", 1),)),
    op.Retire(2, (op.Output("a", (5,)),)),
    op.Finish("a"),
)


@pytest.fixture(scope="module", autouse=True)
def processes():
    """None is left behind."""
    yield
    IDLE.stop()


def command(way: str, options: str = "@fresh", timeout: str = "5") -> str:
    words = [sys.executable, "-I", "-S", str(FAKES / "fake.py"), way]
    return f"cmd:{shlex.join(words)} {options} @timeout={timeout}"


def alive(pid: int) -> bool:
    """Whether a process runs, or waits as a zombie of ours."""
    try:
        after = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except FileNotFoundError:
        return False
    # An orphan's zombie is not ours to reap.
    return after[0] != "Z"


def zombies() -> list[str]:
    """Children of this process that ended and were not reaped."""
    tasks = Path("/proc/self/task").glob("*/children")
    children = [pid for task in tasks for pid in task.read_text().split()]
    return [pid for pid in children if not alive(int(pid)) and Path(f"/proc/{pid}").exists()]


def judged(target: str, operations: tuple[op.AnyOperation, ...] = LIFE) -> Verdict:
    """The verdict on one life; nothing may be left of the process."""
    adapter = make_adapter(target)
    assert isinstance(adapter, stdio.StdioAdapter)
    session = Session(adapter, CONFIG)
    lookup = session.capabilities.has("lookup")
    verdict = session.run(each for each in operations if lookup or not isinstance(each, op.Lookup))
    adapter.close()
    assert not alive(adapter.pid) and not zombies()
    return verdict


def test_a_fake_that_keeps_to_the_protocol_holds():
    verdict = judged(command("correct"))
    assert (verdict.result, verdict.records) == ("holds", len(LIFE) - 1)
    result = soak(500, 1, adapter=lambda: make_adapter(command("correct", "")))
    assert result.case is None and result.operations >= 500


ERRORED = {
    "dies-at-start": "it exited with status 3 while it was asked hello",
    "speaks-first": "it spoke before it was asked hello|its answer to hello is not JSON",
    "hangs-at-start": "no answer to hello within 1.5 s",
    "wrong-version": "it declares version 2, which is not of 1",
    "declares-level-3": "it declares level 3, which is not of 0, 1, 2",
    "declares-magic": "it declares operation 'magic', which is not of 'lookup'",
    "declares-an-unknown-field": "its answer to hello has the wrong shape: Object contains unknown field",
    "refuses-configure": "it failed at configure: blocks of 2 tokens are too small",
    "dies-in-the-middle": "it exited with status 7 while it was asked row",
    "is-killed": "it was killed by SIGSEGV while it was asked row",
    "hangs": "no answer to row within 0.4 s",
    "floods-stdout": "it answered row with a line of more than 1 MiB",
    "floods-lines": "it answered row with more than one line",
    "not-json": "its answer to row is not JSON: JSON is malformed",
    "speaks-twice": "it answered submit with more than one line|it spoke before it was asked admit|"
    "its answer to admit has the wrong shape",
    "speaks-late": "it answered configure with more than one line|it spoke before it was asked submit",
    "wrong-shape": "its answer to admit has the wrong shape: Expected `array`, got `int` - at `$.rows[0]`",
    "answers-floats": "its answer to admit has the wrong shape: Expected `int`, got `float` - at `$.hit`",
    "closes-stdout": "it closed its output while it was asked row, but lives on",
    "floods-stderr-and-dies": "it exited with status 1 while it was asked row",
    "leaves-a-child": "it exited with status 0 while it was asked row",
    "declares-level-2": "it declares level 2 and failed at observe: no such operation",
    "declares-level-2-in-batches": "it declares level 2 and failed at observe: no such operation",
    "observes-half": "its answer to observe has the wrong shape: Object missing required field `index`",
}


HASTE = {"hangs": "0.4", "hangs-at-start": "0.15", "leaves-a-child": "0.4"}
"""Who lets us wait. The others have time, on a busy machine too; a first answer has ten times as much."""


@pytest.mark.parametrize("way", ERRORED)
def test_who_breaks_the_protocol_is_errored(way):
    start = time.monotonic()
    verdict = judged(command(way, timeout=HASTE.get(way, "5")))
    assert time.monotonic() - start < 8
    assert verdict.result == "errored" and verdict.violation is None
    reason, *transcript = verdict.error.splitlines()
    assert any(reason.startswith(each) for each in ERRORED[way].split("|")), verdict.error
    assert len(transcript) <= 40 and all(line[0] in "→←!" and len(line) < 450 for line in transcript)


VIOLATED = {
    "always-wrong": ("KV-I1-null", "block 0 at index 0"),
    "declares-lookup": ("KV-P-crash", "no such operation"),
    "refuses-finish": ("KV-P-crash", "finish was refused, which can't be"),
    "reports-an-error": ("KV-P-crash", "the free list is corrupt"),
}


@pytest.mark.parametrize("way", VIOLATED)
def test_who_answers_wrongly_is_violated(way):
    verdict = judged(command(way))
    assert verdict.result == "violated" and verdict.violation is not None
    code, observed = VIOLATED[way]
    assert verdict.violation.code == code and observed in verdict.violation.evidence.observed


def test_the_transcript_ends_with_what_went_wrong():
    error = judged(command("dies-in-the-middle")).error
    assert '→ {"op":"admit","request":"a","n":3}\n← {"ok": true, "rows": [[1, 2]], "hit": 0}' in error
    assert error.endswith('→ {"op":"row","request":"a"}\n! out of luck')


def test_a_flood_on_stderr_alone_does_no_harm():
    assert judged(command("floods-stderr")).result == "holds"


def test_children_of_the_process_go_with_it():
    verdict = judged(command("leaves-a-child", timeout="0.4"))
    (line,) = [line for line in verdict.error.splitlines() if line.startswith("! child")]
    # The kernel kills it in its own time, and it isn't ours to wait for.
    deadline = time.monotonic() + 5
    while alive(int(line.split()[-1])):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_process_that_ignores_the_end_of_its_input_is_stopped():
    start = time.monotonic()
    assert judged(command("ignores-the-end")).result == "holds"
    assert time.monotonic() - start < 3


@pytest.mark.parametrize("way", ["dies-at-start", "dies-in-the-middle"])
def test_an_errored_soak_ends_with_a_case_that_recurs(way):
    case = soak(500, 3, adapter=lambda: make_adapter(command(way))).case
    assert case is not None and case.expected.result == "errored"
    assert cases.replay(case).recurs(case)
    assert isinstance(case.operations[-1], op.Row) if case.operations else way == "dies-at-start"
    assert not zombies()


# --- processes that serve again -----------------------------------------------------------


def test_a_process_serves_one_adapter_after_the_other():
    IDLE.stop()
    adapters = [make_adapter(command("correct", "")) for _ in range(2)]
    pids = [adapter.pid for adapter in adapters if isinstance(adapter, stdio.StdioAdapter)]
    assert pids[0] != pids[1] and all(alive(pid) for pid in pids)
    adapters.pop(0).close()
    again = make_adapter(command("correct", ""))
    other = make_adapter(command("correct", "", timeout="0.5"))
    assert isinstance(again, stdio.StdioAdapter) and isinstance(other, stdio.StdioAdapter)
    assert again.pid == pids[0] and other.pid not in pids
    assert Session(again, CONFIG).run(LIFE[:1]).result == "holds"
    # One that nobody closes is let go when nobody has it any more.
    del again, other, adapters
    gc.collect()
    IDLE.stop()
    assert not any(alive(pid) for pid in pids) and not zombies()


def test_a_closed_adapter_is_not_asked():
    adapter = make_adapter(command("correct"))
    adapter.close()
    adapter.close()
    with pytest.raises(Errored, match="it was closed"):
        adapter.configure(CONFIG, 0)


def test_a_long_message_meets_a_process_that_does_not_read():
    long = op.Submit("a", ((0, 300_000),))
    config = CacheConfig(blocks=20, block_size=1 << 14, max_len=1 << 20)
    for way, result in (("correct", ""), ("stops-reading", "it does not read submit to its end")):
        adapter = make_adapter(command(way, timeout="2"))
        assert Session(adapter, config).run([long]).error.partition("\n")[0] == result
        adapter.close()


# --- levels --------------------------------------------------------------------


def reference(*options: str) -> str:
    return f"cmd:{shlex.join([sys.executable, str(FAKES / 'reference.py'), *options])}"


def without_policy() -> ReferenceAdapter:
    """What can be said over the wire: a level, and no claim of the policy."""
    adapter = ReferenceAdapter(level=2)
    adapter.capabilities = replace(adapter.capabilities, policy=False)
    return adapter


@pytest.mark.parametrize("options", [(), ("--batch",)], ids=["single", "batch"])
def test_the_reference_over_the_wire_is_the_reference(options):
    """Every operation and the whole of level 2 arrive as in one process."""
    there = soak(700, 5, adapter=lambda: make_adapter(reference(*options)))
    here = soak(700, 5, adapter=without_policy)
    assert here.case is None and there == here


def test_partial_observations_travel():
    operations = [each for each in LIFE if not isinstance(each, op.Lookup)]
    adapters = [ReferenceAdapter(level=2), make_adapter(reference("--batch"))]
    records: list[list[op.Record]] = [[], []]
    for adapter, seen in zip(adapters, records, strict=True):
        Session(adapter, CONFIG, full=False, watch=seen.append, compare_policy=False).run(operations)
        adapter.close()
    assert records[0] == records[1] and records[0][-1].observation is not None


def test_a_fault_in_the_reference_is_found_over_the_wire(tmp_path):
    planted = (
        "from kvproof.fuzz import faults; p = faults.planted([faults.by_id('stale-hash')]); p.__enter__()"
    )
    script = tmp_path / "faulty.py"
    script.write_text(f"{planted}\n{(FAKES / 'reference.py').read_text()}")
    target = f"cmd:{shlex.join([sys.executable, str(script)])}"
    found = soak(3_000, 0, adapter=lambda: make_adapter(target)).case
    assert found is not None and found.expected.clause == "KV-I2-key"


# --- the target's name --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "why"),
    [
        ("cmd:", "a command is needed"),
        ("cmd:@fresh", "a command is needed"),
        ("cmd:./no-such-allocator", "cannot start './no-such-allocator'"),
        ("cmd:'./never closed", "cannot read the command"),
        ("cmd:x @retries=3", "there is no option '@retries'"),
        ("cmd:x @timeout=soon", "a timeout is a number of seconds above 0, not 'soon'"),
        ("cmd:x @timeout=0", "a timeout is a number of seconds above 0, not '0'"),
    ],
)
def test_a_command_that_cannot_be_had_is_named(target, why):
    with pytest.raises(TargetError, match="^" + why.replace("(", r"\(")):
        make_adapter(target)


def test_the_timeout_may_come_from_the_environment(monkeypatch):
    monkeypatch.setenv("KVPROOF_STDIO_TIMEOUT", "0.3")
    words = [sys.executable, "-I", "-S", str(FAKES / "fake.py"), "hangs"]
    assert judged(f"cmd:{shlex.join(words)} @fresh").error.startswith("no answer to row within 0.3 s")
