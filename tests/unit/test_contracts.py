"""What CrossHair says is read and replayed before it counts."""

import pytest

from kvproof.fuzz.engines import contracts, prove
from kvproof.impl import arithmetic

SOURCE = '''def half(number: int) -> int:
    """Half of it.

    pre: number >= 0
    post: __return__ * 2 <= number
    post: __return__ * 2 >= number - 1
    """
    return number // 2


def bare(number: int) -> int:
    """Nothing is said of it."""
    return number
'''


def judged(body, output):
    text = SOURCE.replace("number // 2", body)
    names: dict = {}
    exec(text, names)
    return contracts.judge(text, names, output)


def test_only_confirmed_contracts_count_and_bare_functions_are_listed():
    output = "x.py:5: info: Confirmed over all paths.\nx.py:6: info: Not confirmed.\n"
    report = judged("number // 2", output)
    assert [each.line for each in report.contracts] == [5, 6]
    assert [each.line for each in report.confirmed] == [5]
    assert report.open == ["half", "bare"]


def test_an_unmet_precondition_or_no_output_confirms_nothing():
    assert judged("number // 2", "x.py:4: info: Unable to meet precondition.\n").confirmed == ()
    assert judged("number // 2", "").confirmed == ()


@pytest.mark.parametrize("call", ["half(3)", "half(number = 3)"])
def test_a_counterexample_is_believed_only_if_it_replays(call):
    line = f"x.py:5: error: false when calling {call} (which returns 2)\n"
    assert list(judged("number // 2 + 1", line).refuted.values()) == [call]
    report = judged("number // 2", line)
    assert not report.refuted and list(report.doubtful.values()) == [call]
    assert not judged("number // 2 + 1", line.replace("3", "-3")).refuted


def test_an_error_of_the_function_is_a_counterexample():
    line = "x.py:5: error: ZeroDivisionError: division by zero when calling half(0)\n"
    assert judged("1 // number", line).refuted


def test_every_contract_of_the_arithmetic_is_confirmed():
    pytest.importorskip("crosshair")
    row = prove.prove_contracts(arithmetic)
    assert (row.verdict, row.controls) == ("proved", "2 of 2 refuted and replayed"), row.detail


def test_a_call_that_can_not_be_read_is_not_believed():
    line = "x.py:5: error: false when calling half(<object>) (which returns 2)\n"
    assert not judged("number // 2 + 1", line).refuted


def test_without_its_wrong_variants_the_row_is_undecided(monkeypatch):
    pytest.importorskip("crosshair")
    monkeypatch.setattr(prove, "WRONG_CONTRACTS", {"not in the source": ("no such text", "other")})
    row = prove.prove_contracts(arithmetic)
    assert (row.verdict, row.controls) == ("undecided", "0 of 1 refuted and replayed")
