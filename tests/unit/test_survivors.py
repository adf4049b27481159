"""Why a mutant survives is data: read strictly, the entry that says most about a mutant wins."""

from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from kvproof.fuzz.engines.mutate import Row
from kvproof.fuzz.faults.mutants import IMPL, ORACLE, functions
from kvproof.fuzz.faults.survivors import Survivor, SurvivorError, explanation, parse, survivors
from kvproof.fuzz.reports import mutants as report

F = "kvproof.impl.life.Life.dispatch"
KNOWN = (
    Survivor(F, "equivalent", "of all"),
    Survivor(F, "misuse", "of a line", "x = 1"),
    Survivor(F, "blind", "of a change", "x = 1", "x = 2"),
)


def row(target: str, after: str, *, killed: bool = False) -> Row:
    return Row("impl", "kvproof.impl.life", target, 7, "x = 1", after, killed, "KV-I1-lost" * killed, 9, 0.1)


def test_the_entry_that_says_most_explains_a_mutant() -> None:
    assert explanation(KNOWN, F, "x = 1", "x = 2") is KNOWN[2]
    assert explanation(KNOWN, F, "x = 1", "x = 3") is KNOWN[1]
    assert explanation(KNOWN, F, "y", "z") is KNOWN[0]
    assert explanation(KNOWN, "elsewhere", "x = 1", "x = 2") is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "missing required field"),
        ("[[survivor", "cannot be read"),
        ('[[survivor]]\ntarget="a"\nkind="odd"\nreason="r"\n', "no kind"),
        ('[[survivor]]\ntarget="a"\nkind="blind"\nreason="r"\nwhy="?"\n', "unknown field"),
    ],
)
def test_a_broken_table_is_one_sentence(text: str, words: str) -> None:
    with pytest.raises(SurvivorError, match=words) as caught:
        parse(text)
    assert "\n" not in str(caught.value)


def test_entries_that_ship_name_functions_that_exist_and_say_why() -> None:
    known = {name for module in (*IMPL, *ORACLE) for name in functions(module)}
    assert [entry.target for entry in survivors() if entry.target not in known] == []
    assert all(len(entry.reason) > 3 for entry in survivors())


def test_none_that_ships_is_unmet_by_the_generator_or_judged_by_no_clause() -> None:
    assert [entry for entry in survivors() if entry.kind in ("blind", "missing")] == []


def test_the_record_counts_by_module_and_lists_who_is_left() -> None:
    rows = [row(F, "x = 2"), row(F, "x = 3", killed=True), row("kvproof.impl.life.other", "x = 2")]
    document = report.document(report.judged(rows), KNOWN)
    assert document["modules"] == [{"module": "kvproof.impl.life", "mutants": 3, "killed": 1}]
    assert document["killers"] == {"KV-I1-lost": 1}
    assert [(left.kind, left.reason) for left in document["rows"]] == [("blind", "of a change"), ("", "")]


def test_of_a_record_functions_with_the_same_text_are_kept_and_others_are_new(tmp_path: Path) -> None:
    module, other = "kvproof.impl.life", "kvproof.impl.life.Life.__init__"
    rows = [row(F, "x = 2"), row(F, "x = 3", killed=True), row(other, "x = 2")]
    report.keep(report.judged(rows), KNOWN, tmp_path)
    record = report.recorded(tmp_path)
    assert report.unchanged(record) == {F, other}
    changed = msgspec.structs.replace(
        record,
        functions=tuple(
            replace(each, text="other" if each.target == F else each.text) for each in record.functions
        ),
    )
    assert report.unchanged(changed) == {other}
    now = report.joined(changed, frozenset({other}), report.judged([row(F, "x = 4"), row(F, "x = 5")]))
    assert [(each.target, each.mutants, each.killed) for each in now.functions] == [(other, 1, 0), (F, 2, 0)]
    assert [(left.target, left.after) for left in now.rows] == [(other, "x = 2"), (F, "x = 4"), (F, "x = 5")]
    assert report.document(now, KNOWN)["modules"] == [{"module": module, "mutants": 3, "killed": 0}]


@pytest.mark.parametrize(("text", "words"), [(None, "cannot read"), ("{}", "no record of mutants")])
def test_a_broken_record_is_one_sentence(tmp_path: Path, text: str | None, words: str) -> None:
    if text is not None:
        (tmp_path / report.NAME).write_text(text)
    with pytest.raises(report.RecordError, match=words) as caught:
        report.recorded(tmp_path)
    assert "\n" not in str(caught.value)
