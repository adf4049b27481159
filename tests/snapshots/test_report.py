"""What a user reads of a violation, to the letter.

`KVPROOF_UPDATE=1 .venv/bin/pytest tests/snapshots` writes the expected texts anew.
"""

import io
import os
from pathlib import Path

import pytest
from rich.console import Console

from kvproof.fuzz import cases
from kvproof.fuzz.cases import Case, Expected
from kvproof.fuzz.cli.failures import finding
from kvproof.fuzz.faults import Fault
from kvproof.fuzz.reports import wording
from kvproof.fuzz.reports.steps import step_lines
from kvproof.fuzz.reports.terminal import one_line, report
from kvproof.spec import operations as op
from kvproof.spec.vocabulary import CacheConfig

HERE = Path(__file__).parent
CONFIG = CacheConfig(blocks=3, block_size=2, max_requests=2, max_len=8)

STALE_HASH = Case(
    CONFIG,
    (
        op.Submit("a", (1, 2)),
        op.Admit("a", 2),
        op.Dispatch(1, (op.Entry("a", 2),)),
        op.Retire(1, (op.Output("a", (3,)),)),
        op.Finish("a"),
        op.Submit("b", ((10, 6),)),
        op.Admit("b", 6),
    ),
    title="a pool that is filled again",
    faults=("stale-hash",),
    compare_policy=False,
    expected=Expected("violated", "KV-I2-key"),
)
WRONG_BYTES = Case(
    CONFIG,
    (
        op.Submit("a", (1,)),
        op.Admit("a", 1),
        op.Dispatch(1, (op.Entry("a", 1),)),
        op.Retire(1, (op.Output("a", (2,)),)),
        op.Submit("b", (1, 3)),
        op.Extend("a", 1),
        op.Dispatch(2, (op.Entry("a", 1),)),
        op.Retire(2, (op.Output("a", (4,)),)),
    ),
    faults=(
        Fault(
            "learns-wrong",
            "The worker learns each sampled token one too high",
            "KV-I2-bytes",
            "kvproof.fuzz.adapters.reference_worker.ReferenceWorker.retire",
            find="states[request_id].tokens.extend(tokens)",
            replace="states[request_id].tokens.extend([token + 1 for token in tokens])",
        ),
    ),
    expected=Expected("violated", "KV-I2-bytes"),
)
COUNTED = Case(
    CONFIG,
    (op.Submit("a", (1, 2, 3), op.Extras(op.Adapter("x", 1), salt="y")), op.Lookup("a")),
    faults=("counted-at-lookup",),
    compare_policy=False,
    expected=Expected("violated", "KV-P-accounting"),
)
CASES = {"stale-hash": STALE_HASH, "wrong-bytes": WRONG_BYTES, "counted": COUNTED}


def expected(name: str, found: str) -> str:
    """The committed text, written anew if asked for."""
    path = HERE / f"{name}.txt"
    if os.environ.get("KVPROOF_UPDATE"):
        path.write_text(found, encoding="utf-8")
    return path.read_text(encoding="utf-8")


def printed(case: Case, width: int = 80) -> str:
    console = Console(file=io.StringIO(), width=width, highlight=False)
    report(console, finding(case, "kvproof-failures/case.json"))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize("name", CASES)
def test_the_report(name):
    found = printed(CASES[name])
    assert found == expected(name, found)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_no_line_is_wider_than_the_console(name, width):
    lines = printed(CASES[name], width).splitlines()
    assert all(len(line) <= width for line in lines if not line.startswith("Reproduce: "))


@pytest.mark.parametrize("name", CASES)
def test_no_python_shows(name):
    found = printed(CASES[name])
    assert not any(each in found for each in ("=(", "Struct", "View(", "Granted(", "Metrics(", ",)"))


def test_the_wrong_bytes_name_their_writer():
    found = " ".join(printed(WRONG_BYTES).split())
    assert "the words of position 1 of b, not of position 1 of a (16 wrong words)" in found


def test_the_steps():
    lines = step_lines(STALE_HASH, cases.replay(STALE_HASH).records)
    assert lines == (
        "step=1 req=a hit_tokens=0 scheduled=2 owned=[[1]] new=[[1]] free=2 ref(hit)=[]",
        "step=2 req=b hit_tokens=0 scheduled=6 owned=[[2,3,1]] new=[[2,3,1]] free=0 ref(hit)=[]",
    )


def test_a_violation_in_one_line():
    assert one_line(finding(COUNTED).violation) == (
        "KV-P-accounting: Queries and hits count once per life, when it begins; preemptions when it is "
        "preempted. Expected 0 requests counted, 0 query tokens, 0 hit tokens, 0 preemptions; observed "
        "1 request counted, 3 query tokens, 0 hit tokens, 0 preemptions."
    )


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (
            op.Submit("a", ((5, 9), 3), options=op.Options(False, max_len=12)),
            "submit a, 10 tokens: 5…13 3; does not read the cache; at most 12 tokens",
        ),
        (
            op.Submit("a", (1,), op.Extras(items=(op.Item("i", 0, 1),))),
            "submit a, 1 token: 1; item 'i' at position 0",
        ),
        (op.Admit("a", 3, 2), "admit a for up to 3 tokens, 2 lookahead"),
        (op.Extend("a", 1), "extend a by up to 1 token"),
        (
            op.Dispatch(3, (op.Entry("a", 2, (7,)), op.Entry("b", 1)), 2),
            "dispatch step 3: a computes 2 and drafts 7, b computes 1, 2 padding rows",
        ),
        (op.Retire(3, (op.Output("a", (9,)), op.Output("b"))), "retire step 3: a gets 9"),
        (op.Table("swap", "a", "b"), "swap the worker rows of a and b"),
        (op.Evict("a", 4), "evict the key of a at boundary 4"),
        (op.Reset(), "reset the prefix cache"),
        (op.Observe(), "observe everything"),
    ],
)
def test_operations_in_words(value, words):
    assert wording.operation(value) == words


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (str(op.Granted(((1, 2),), 4)), "hit of 4 tokens, row 1 2"),
        (str(op.Refused()), "refused"),
        ("row (1,)", "row [1]"),
        ("slots (4, -1) of a", "slots [4, -1] of a"),
        ("rows ((1, 2),) of a", "rows [1, 2] of a"),
        ("hits (3 free)", "hits (3 free)"),
    ],
)
def test_evidence_without_python(text, words):
    assert wording.evidence(text) == words
