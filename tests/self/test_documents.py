"""The documents agree with the code, their links lead somewhere, and their snippets work."""

import importlib.util
import re
import tomllib
from collections.abc import Iterator
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest

from kvproof.fuzz import cases, faults
from kvproof.fuzz.cli import errors
from kvproof.fuzz.engines.soak import soak
from kvproof.spec import operations as op
from kvproof.spec import vocabulary
from kvproof.spec.clauses import Clause, Keys, Moment
from kvproof.spec.oracle import BY_CODE
from kvproof.spec.state import State
from kvproof.spec.transitions import Effects, apply
from kvproof.spec.vocabulary import CacheConfig, Capabilities

ROOT = Path(__file__).parents[2]
SPEC, README, CONTRIBUTING = (ROOT / name for name in ("spec/README.md", "README.md", "CONTRIBUTING.md"))
SKIPPED = ("build", "dist", "kvproof-failures")


def documents() -> list[Path]:
    """Every Markdown file of ours."""
    found = []
    for path in sorted(ROOT.rglob("*.md")):
        folders = path.relative_to(ROOT).parts[:-1]
        if not any(folder.startswith(".") or folder in SKIPPED for folder in folders):
            found.append(path)
    return found


def test_the_documents_are_found():
    assert {SPEC, README, CONTRIBUTING, ROOT / "tests/README.md"} <= set(documents())


# --- generated parts ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def tables() -> ModuleType:
    loader = SourceFileLoader("ci_tables", str(ROOT / "ci/tables"))
    spec = importlib.util.spec_from_loader("ci_tables", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    # Its compiled form would lie beside it in the tree.
    exec(compile((ROOT / "ci/tables").read_text(encoding="utf-8"), "ci/tables", "exec"), module.__dict__)
    return module


def test_generated_tables_are_those_of_the_code(tables, capsys):
    assert tables.main(["--check"]) == 0, capsys.readouterr().err


def test_an_old_table_is_named_and_left_alone(tables, tmp_path, capsys):
    old = tmp_path / "README.md"
    text = SPEC.read_text(encoding="utf-8").replace("`KV-I1-twice`", "`KV-I1-thrice`")
    old.write_text(text, encoding="utf-8")
    assert tables.main(["--check", str(old)]) == 1
    assert f"{old} is old" in capsys.readouterr().err
    assert old.read_text(encoding="utf-8") == text
    assert tables.main([str(old)]) == 0
    assert tables.main(["--check", str(old)]) == 0


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("<!-- table: nonsense -->\n<!-- end -->\n", "table 'nonsense', which nobody makes"),
        ("a table\n<!-- end -->\n", "0 beginnings of generated parts and 1 ends"),
        ("<!-- table: order -->\nno end\n", "1 beginnings of generated parts and 0 ends"),
        ("nothing at all\n", "nothing to fill"),
    ],
)
def test_a_document_that_cannot_be_filled_is_refused(tables, tmp_path, capsys, text, why):
    path = tmp_path / "bad.md"
    path.write_text(text, encoding="utf-8")
    assert tables.main(["--check", str(path)]) == 3
    assert why in capsys.readouterr().err


def test_an_empty_table_is_an_error(tables):
    with pytest.raises(tables.TableError, match="is empty"):
        tables.table(("a", "b"), [])


def test_outputs_are_quoted_without_progress_lines(tables, tmp_path):
    path = tmp_path / "output.md"
    command = "printf '....s  [ 50%%]\\n2 passed\\n'"
    path.write_text(f"<!-- output: {command} -->\n<!-- end -->\n", encoding="utf-8")
    assert tables.main([str(path)]) == 0 and "passed\n" not in path.read_text(encoding="utf-8")
    assert tables.main(["--run", "nothing", str(path)]) == 0 and "passed\n" not in path.read_text()
    assert tables.main(["--run", "printf", str(path)]) == 0
    assert f"```console\n$ {command}\n2 passed\n```" in path.read_text(encoding="utf-8")


# --- what must be mentioned ---------------------------------------------------------------


def cells(path: Path, first: str) -> set[str]:
    """The first cells of all table rows that match, without backticks."""
    rows = re.findall(r"^\| `?(.*?)`? \|", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {cell for cell in rows if re.fullmatch(first, cell)}


def test_every_clause_has_a_row_and_every_row_a_clause():
    assert cells(SPEC, r"KV-\w+-\w+") == set(BY_CODE)


def test_every_operation_answer_and_field_has_a_row():
    words = cells(SPEC, r"[a-z_]+")
    assert {kind.__name__.lower() for kind in (*op.OPERATIONS, *op.AnyAnswer.__args__)} <= words
    for kind in (Capabilities, CacheConfig, cases.Case):
        assert {field.name for field in msgspec.structs.fields(kind)} <= words


def test_every_ability_is_explained():
    text = SPEC.read_text(encoding="utf-8")
    assert [name for name in (*vocabulary.OPERATIONS, *vocabulary.FEATURES) if f"`{name}`" not in text] == []


def cited(text: str) -> Iterator[str]:
    """Requirement numbers: `REQ-2.3`, and those that follow in a list, `REQ-2.2, 2.11` or `REQ-4.1–4.6`."""
    for match in re.finditer(r"REQ-(\d+(?:\.\d+)?(?:(?:, |–)\d+\.\d+)*)", text):
        for part in match.group(1).split(", "):
            first, _, last = part.partition("–")
            section, _, start = first.partition(".")
            stop = int(last.split(".")[1]) if last else int(start or 0)
            yield from (f"{section}.{n}" for n in range(int(start), stop + 1)) if start else (section,)


def test_every_requirement_that_is_cited_has_a_row():
    known = {cell.removeprefix("REQ-") for cell in cells(SPEC, r"REQ-[\d.]+")}
    folders = [ROOT / name for name in ("spec", "impl", "kernels", "fuzz")]
    sources = [path for folder in folders for path in folder.rglob("*.py")]
    used = {number for path in sources for number in cited(path.read_text(encoding="utf-8"))}
    assert len(used) > 20
    assert used - known == set()


def test_citations_are_read():
    numbers = list(cited("(REQ-2.2, 2.11) and REQ-8, (REQ-1.4, 4.1–4.3)"))
    assert numbers == ["2.2", "2.11", "8", "1.4", "4.1", "4.2", "4.3"]


@pytest.mark.parametrize("path", [SPEC, README], ids=["spec", "main"])
def test_exit_codes_are_those_of_the_command_line(path):
    codes = {errors.HOLDS, errors.VIOLATED, errors.UNDECIDED, errors.USAGE, errors.HARNESS_FAULT}
    assert cells(path, r"\d") == {str(code) for code in codes}


def test_the_two_commands_exist_and_are_shown():
    text = README.read_text(encoding="utf-8")
    for command in ("ci/test", "ci/check"):
        assert (ROOT / command).is_file() and f"<!-- output: {command} -->" in text


# --- links and paths ----------------------------------------------------------------------


def slug(heading: str) -> str:
    """The anchor that code hosts give a heading."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def prose(text: str) -> str:
    """A document without its code blocks."""
    return re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)


def broken_links(path: Path, root: Path = ROOT) -> list[str]:
    """Links that lead nowhere, or out of the tree."""
    found = []
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(path.read_text(encoding="utf-8"))):
        name, _, anchor = target.partition("#")
        file = (path.parent / name).resolve() if name else path
        if "://" in target or not file.is_relative_to(root) or not file.exists():
            found.append(target)
        elif anchor:
            headings = re.findall(r"^#+ (.+)$", prose(file.read_text(encoding="utf-8")), re.MULTILINE)
            if anchor not in {slug(heading) for heading in headings}:
                found.append(target)
    return found


@pytest.mark.parametrize("path", documents(), ids=lambda path: str(path.relative_to(ROOT)))
def test_links_resolve(path):
    assert broken_links(path) == []


def test_a_broken_link_is_reported(tmp_path):
    root = tmp_path / "tree"
    (root / "docs").mkdir(parents=True)
    (root / "README.md").write_text("# Title, and more\n", encoding="utf-8")
    good = ["../README.md", "../README.md#title-and-more", "#here"]
    bad = ["nowhere.md", "../README.md#nowhere", "../../outside.md", "https://example.org"]
    (tmp_path / "outside.md").write_text("# Outside\n", encoding="utf-8")
    page = root / "docs/page.md"
    links = " ".join(f"[link]({target})" for target in (*good, *bad))
    page.write_text(f"# Here\n{links}\n```\n[no](link)\n```\n", encoding="utf-8")
    assert broken_links(page, root) == bad


ABSOLUTE = re.compile(r"(?<![\w.…])(?:/(?:[a-z]+|Users)/\w[\w./-]*|[A-Z]:\\\w+)")


@pytest.mark.parametrize("path", documents(), ids=lambda path: str(path.relative_to(ROOT)))
def test_no_document_has_an_absolute_path(path):
    assert ABSOLUTE.findall(path.read_text(encoding="utf-8")) == []


def test_an_absolute_path_is_seen():
    places = ("/home/me/x", "see /tmp/kvproof-1/case.json", r"C:\temp", "(/Users/me/x)")
    assert all(ABSOLUTE.search(place) for place in places)
    assert not any(ABSOLUTE.search(place) for place in ("ci/test", "a/b/c", "../README.md", "K/V"))


# --- snippets -----------------------------------------------------------------------------

_SNIPPET = re.compile(r"^<!-- snippet: (.+?) -->\n```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def snippets() -> dict[str, tuple[str, str]]:
    """Every marked code block of the guide: its name, and its language and text."""
    return snippets_of(CONTRIBUTING)


def snippets_of(path: Path) -> dict[str, tuple[str, str]]:
    """Every marked code block of a document."""
    found = _SNIPPET.findall(path.read_text(encoding="utf-8"))
    return {name: (language, text) for name, language, text in found}


def run(*names: str) -> dict[str, Any]:
    """Execute snippets one after the other; the names that they define."""
    space: dict[str, Any] = {"__name__": "snippet"}
    for name in names:
        language, text = snippets()[name]
        assert language == "python"
        exec(compile(text, f"<snippet {name}>", "exec"), space)
    return space


def test_every_code_block_of_the_guide_is_a_tested_snippet():
    text = CONTRIBUTING.read_text(encoding="utf-8")
    tested = {"clause", "operation", "adapter", "use the adapter", "engine", "report", "fault", "case"}
    assert set(snippets()) == tested
    assert len(re.findall(r"^```\w", text, re.MULTILINE)) == len(tested)


def test_the_library_answers_as_the_readme_says(capsys):
    _, text = snippets_of(README)["library"]
    exec(compile(text, "<snippet library>", "exec"), {})
    said = [line.partition("# ")[2] for line in text.splitlines() if line.startswith("print")]
    assert capsys.readouterr().out.splitlines() == said


def test_the_adapter_holds_and_its_freedom_is_needed():
    plain = run("adapter", "use the adapter")["PlainAdapter"]

    def freeing_twice(self: Any, request: str) -> None:
        self.free += self.requests[request].row[-1:]
        plain.finish(self, request)

    strict = {"capabilities": msgspec.structs.replace(plain.capabilities, stream_ordered=False)}
    for changes, code in ((strict, "KV-I4-handout"), ({"finish": freeing_twice}, "KV-I1-")):
        found = soak(3_000, 1, adapter=type("Wrong", (plain,), changes)).case
        assert found is not None and found.expected.clause.startswith(code)


def test_the_clause_judges_a_row():
    many = run("clause")["many"]
    assert isinstance(many, Clause) and many.sentence == "A row has no more blocks than the pool."
    state = State(CacheConfig(blocks=2, block_size=1), Capabilities(1))
    apply(state, op.Submit("a", (1, 2, 3)), op.Done())
    for row, falls in (((1, 2), False), ((1, 2, 3), True)):
        operation, answer = op.Admit("a", 3), op.Granted((row,))
        effects = apply(state, operation, answer) if not falls else Effects(life=state.lives[1])
        state.lives[1].rows = [list(row)]
        moment = Moment(operation, answer, state, effects, Keys(), None, None)
        assert (many.check(moment) is not None) == falls


def test_the_operation_has_a_json_form():
    pause = run("operation")["Pause"]
    assert msgspec.json.encode(pause("a")) == b'{"op":"pause","request":"a"}'


def test_the_engine_finds_nothing_and_a_fault():
    in_turn = run("engine")["in_turn"]
    result = in_turn(300, 3)
    assert result.operations >= 300 and result.case is None and result == in_turn(300, 3)
    with faults.planted([faults.by_id("shared-hit-not-counted")]):
        assert any(in_turn(300, seed).case for seed in range(5))


def test_the_report_names_a_violation():
    annotation = run("report")["annotation"]
    good = cases.parse(snippets()["case"][1].encode(), "the case of the guide")
    assert annotation(cases.replay(good), "x.json") == ""
    bad = cases.load(ROOT / "fuzz/seeds/stale-hash.json")
    assert annotation(cases.replay(bad), "x.json").startswith("::error file=x.json::KV-I2-key: Every key")


def test_the_fault_is_found_under_its_clause():
    text = snippets()["fault"][1]
    assert tomllib.loads(text)
    (fault,) = faults.parse(text, "the fault of the guide")
    with faults.planted([fault]):
        found = soak(3_000, 0, faults=[fault], compare_policy=False).case
    assert found is not None and found.expected.clause == fault.clause


def test_the_case_of_the_guide_holds():
    outcome = cases.replay(cases.parse(snippets()["case"][1].encode(), "the case of the guide"))
    assert outcome.verdict.result == "holds"
    answers = [type(record.answer) for record in outcome.records]
    assert answers[3] is op.Refused and answers[5] is op.Granted


def test_the_example_of_the_specification_is_a_case_that_holds():
    (text,) = re.findall(r"```json\n(.*?)```", SPEC.read_text(encoding="utf-8"), re.DOTALL)
    case = cases.parse(text.encode(), "the example")
    assert cases.replay(case).recurs(case)


def test_the_tables_script_is_executable():
    assert (ROOT / "ci/tables").stat().st_mode & 0o111


def test_every_quoted_output_is_there() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"<!-- output: (.+?) -->\n(.*?)<!-- end -->", text, re.DOTALL)
    assert len(blocks) > 5
    assert [command for command, block in blocks if not block.strip()] == []


def test_quoted_faults_are_those_that_ship() -> None:
    text = (ROOT / "README.md").read_text()
    (quoted,) = re.findall(
        r"<!-- output: kvproof faults (--only .*?) -->\n(.*?)<!-- end -->", text, re.DOTALL
    )
    names = re.findall(r"--only (\S+)", quoted[0])
    assert {faults.by_id(name).id for name in names} == set(names)
    assert f"{len(names)} of {len(names)} faults found" in quoted[1]
