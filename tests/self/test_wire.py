"""The stdio protocol on paper: schemas, the page, and its example are those of the code."""

import json
from pathlib import Path

import msgspec
import pytest

from kvproof.fuzz.targets import wire
from kvproof.spec import operations as op

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "fuzz/targets/PROTOCOL.md"


def test_schemas_are_those_of_the_code():
    folder = ROOT / "fuzz/targets/schemas"
    found = {path.name: path.read_text(encoding="utf-8") for path in folder.iterdir()}
    assert found == wire.schemas(), "run: python -m kvproof.fuzz.targets.wire fuzz/targets/schemas"


def test_schemas_name_only_what_they_define():
    def references(value: object) -> list[str]:
        if isinstance(value, dict):
            own = [value["$ref"]] if isinstance(value.get("$ref"), str) else []
            return own + [each for part in value.values() for each in references(part)]
        return [each for part in value for each in references(part)] if isinstance(value, list) else []

    for text in wire.schemas().values():
        schema = json.loads(text)
        assert {each.removeprefix("#/$defs/") for each in references(schema)} <= set(schema["$defs"])
        assert '"number"' not in text, "there are no floats"


def test_the_page_names_every_message():
    text = PAGE.read_text(encoding="utf-8")
    assert [wire.name_of(kind) for kind in wire.MESSAGES if f"`{wire.name_of(kind)}`" not in text] == []


def test_the_example_of_the_page_is_a_conversation():
    text = PAGE.read_text(encoding="utf-8")
    (block,) = [part for part in text.split("```") if part.startswith("text\n")]
    lines = [line for line in block.splitlines()[1:] if line]
    assert len(lines) > 4
    for asked, answered in zip(lines[::2], lines[1::2], strict=True):
        message = msgspec.json.decode(asked.removeprefix("→ "), type=wire.AnyMessage)
        wire.read(answered.removeprefix("← ").encode(), type(message))


@pytest.mark.parametrize(
    ("kind", "line", "why"),
    [
        (op.Admit, b"", "is not JSON"),
        (op.Admit, b"[]", "has the wrong shape"),
        (op.Admit, b'{"hit":0,"rows":[]}', "missing required field `ok`"),
        (op.Admit, b'{"ok":true}', "missing required field `hit`"),
        (op.Admit, b'{"ok":true,"hit":0,"rows":[[1]],"magic":1}', "unknown field `magic`"),
        (op.Admit, b'{"ok":true,"hit":1.0,"rows":[[1]]}', "got `float`"),
        (op.Admit, b'{"ok":false,"hit":0}', "unknown field `hit`"),
        (op.Extend, b'{"ok":true,"hit":0,"rows":[[1]]}', "unknown field `hit`"),
        (op.Finish, b'{"ok":true}{"ok":true}', "is not JSON"),
        (op.Finish, b'{"ok":"true"}', "Expected `bool`, got `str`"),
        (op.Finish, b'{"ok":true,"\xff":1}', "is not JSON"),
    ],
)
def test_reading_is_strict(kind, line, why):
    with pytest.raises(wire.WireError, match=why):
        wire.read(line, kind)


def test_what_is_right_is_read():
    assert wire.read(b'{ "rows": [[1, 2]], "hit": 0, "ok": true }', op.Admit) == wire.Admitted(
        True, 0, ((1, 2),)
    )
    assert wire.read(b'{"ok":false}', op.Admit) == wire.No(False)
