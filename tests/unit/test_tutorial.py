"""The code of the adapter tutorial runs as it stands there."""

import importlib
import re
import sys
from importlib import resources
from typing import Any

import pytest

from kvproof import make_adapter, soak

SNIPPET = re.compile(r"<!-- tutorial: (\S+) -->\n```python\n(.*?)```", re.DOTALL)
TEXT = (resources.files("kvproof.fuzz.adapters") / "TUTORIAL.md").read_text()
FILES = dict(SNIPPET.findall(TEXT))


@pytest.fixture
def written(tmp_path, monkeypatch):
    """The files of the tutorial, in a folder that Python searches."""
    for name, code in FILES.items():
        (tmp_path / name).write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in FILES:
        sys.modules.pop(name.removesuffix(".py"), None)


def test_every_python_block_of_the_tutorial_is_a_file():
    assert list(FILES) == ["toy.py", "toy_adapter.py", "judge.py", "break.py"]
    assert len(FILES) == TEXT.count("```python")


def left_by(name: str) -> dict[str, Any]:
    """The names that a file of the tutorial leaves when it has run."""
    space: dict[str, Any] = {"__name__": name}
    exec(compile(FILES[name], name, "exec"), space)
    return space


def test_the_toy_holds(written):
    result = left_by("judge.py")["result"]
    assert result.case is None
    assert result.operations >= 20_000 and result.situations["hit"] > 0


def test_the_broken_toy_does_not_hold_and_is_mended_afterwards(written):
    left = left_by("break.py")
    found, smallest = left["found"], left["smallest"]
    assert found.case is not None and found.case.expected.clause == "KV-I2-hit"
    assert smallest.expected.clause == "KV-I2-hit" and 1 < len(smallest.operations) <= 12
    assert left["Toy"].forget is left["correct"]


def test_the_toy_is_a_target_by_name(written):
    result = soak(3_000, 2, adapter=lambda: make_adapter("python:toy_adapter:ToyAdapter"))
    assert result.case is None


def test_the_adapter_is_short():
    assert len(FILES["toy_adapter.py"].splitlines()) < 100


def test_a_toy_that_never_counts_its_users_is_found(written, monkeypatch):
    toy = importlib.import_module("toy")
    correct = toy.Toy.take

    def take(self, found, count):
        fresh = correct(self, found, count)
        for block in found if fresh is not None else ():
            self.users[block] -= 1
        return fresh

    monkeypatch.setattr(toy.Toy, "take", take)
    found = soak(3_000, 1, adapter=lambda: make_adapter("python:toy_adapter:ToyAdapter")).case
    assert found is not None
