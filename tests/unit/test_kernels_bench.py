"""What is measured of the kernels: equal work in turn, aims that can be missed, and a record."""

import json

import numpy as np
import pytest
from click.testing import CliRunner

from kvproof.fuzz.cli.errors import HOLDS, USAGE
from kvproof.fuzz.cli.root import kvproof
from kvproof.fuzz.engines.bench import Machine
from kvproof.fuzz.reports import bench_device as report_of
from kvproof.kernels import bench, builds
from kvproof.kernels.backends.cpu_backend import CpuBackend
from kvproof.kernels.backends.numpy_backend import NumpyBackend
from kvproof.kernels.bench import OURS, Aim, Row
from kvproof.kernels.words import Geometry

needs_compiler = pytest.mark.skipif(builds.compiler() is None, reason="no C++ compiler")
MACHINE = Machine(2, "3.11", "Linux", 0.5)


def row(ours: float, aim: Aim | None = None, **others: float) -> Row:
    return Row("a row", {OURS: ours, **others}, 0.1, 4000, aim, "so")


@pytest.mark.parametrize(
    ("made", "met"),
    [
        (row(10, Aim("torch", ratio=1), torch=10), True),
        (row(10, Aim("torch", ratio=2), torch=19), False),
        (row(10, Aim("torch", ratio=2)), None),
        (row(60, Aim("numpy", limit=60), numpy=5), True),
        (row(61, Aim("numpy", limit=60), numpy=500), False),
        (row(10), None),
    ],
)
def test_an_aim_is_a_ratio_or_a_limit_and_may_be_missed(made: Row, met: bool | None) -> None:
    assert made.met is met


def test_an_aim_that_is_missed_is_said() -> None:
    rows = [row(10, Aim("torch", ratio=2), torch=19), row(10, Aim("torch", ratio=2), torch=21), row(1)]
    assert report_of.summary(rows) == "1 of 2 aims are reached."
    assert [each["reached"] for each in report_of.document(rows, 3, MACHINE)["rows"]] == [False, True, None]
    lines = report_of.markdown(rows, 3, MACHINE).splitlines()
    cells = [line.count("|") for line in lines if line.startswith("|")]
    assert len(cells) == 5 and len(set(cells)) == 1


def test_contenders_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    calls = {who: lambda who=who: order.append(who) for who in (OURS, "torch")}
    monkeypatch.setattr(bench, "_repeats", lambda call: 1)
    monkeypatch.setattr(bench, "MAKERS", [(("a row",), lambda: iter([bench._Made("a row", calls)]))])
    [found] = bench.measure(3)
    assert order == [OURS, "torch"] * 3
    assert found.micros.keys() == calls.keys()


def test_the_names_are_those_of_the_rows() -> None:
    assert len(set(bench.names())) == len(bench.names()) == 27


@needs_compiler
@pytest.mark.parametrize("name", ["int8 HND", "bf16 NHD", "interleaved", "packed", "fuzz step"])
def test_rows_are_measured_beside_others(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    pytest.importorskip("torch")
    monkeypatch.setattr(bench, "TOKENS", 64)
    monkeypatch.setattr(bench, "LEAST", 1.0)
    rows = bench.measure(1, name)
    assert [each.name for each in rows] == [each for each in bench.names() if name in each]
    assert all(len(each.micros) >= 2 and all(each.micros.values()) for each in rows)


@pytest.mark.parametrize(
    ("layout", "how", "order"),
    [
        ("NHD", "index_copy_", (0, 1, 2, 3, 4)),
        ("HND", "indexed assignment", (0, 1, 3, 2, 4)),
        ("interleaved", "index_copy_", (1, 2, 3, 0, 4)),
        ("packed", "indexed assignment", (0, 1, 3, 4, 2, 5)),
    ],
)
@pytest.mark.parametrize("kind", bench._KINDS)
def test_a_row_of_each_layout_says_how_torch_writes_it(
    monkeypatch: pytest.MonkeyPatch, kind: str, layout: str, how: str, order: tuple[int, ...]
) -> None:
    pytest.importorskip("torch")
    seen = []
    monkeypatch.setattr(bench, "TOKENS", 64)
    monkeypatch.setattr(bench, "check_same_work", lambda calls, pools: seen.append((calls.keys(), pools)))
    [made] = bench._moves(kind, layout)
    [(contenders, pools)] = seen
    assert contenders >= {OURS, "torch"} and f"torch's {how} " in made.reason
    assert made.aim is not None and made.aim.against == "torch"
    # The memory's own order, and 16 bytes at its end where it is packed.
    assert pools.transpose(order).flags.c_contiguous and pools.base.nbytes == pools.nbytes
    assert layout != "packed" or pools.shape[-1] * pools.itemsize == 16


def test_other_work_is_seen() -> None:
    pools = np.ones(4, np.uint8)
    with pytest.raises(AssertionError, match="different"):
        bench.check_same_work({OURS: lambda: pools.fill(1), "torch": lambda: pools.fill(2)}, pools)
    with pytest.raises(AssertionError, match="nothing"):
        bench.check_same_work({OURS: lambda: None, "torch": lambda: None}, pools)


@needs_compiler
def test_a_step_verifies_what_it_wrote() -> None:
    for backend in (CpuBackend(), NumpyBackend()):
        calls = bench.step_calls(backend, Geometry(2, 2, 2), 9, 4, 8)
        left = {name: call() for name, call in calls.items()}
        assert left["verify"].shape == (2, 8) and not left["verify"].any()  # type: ignore[attr-defined]
        assert len(set(left["slots"].tolist())) == 8  # type: ignore[attr-defined]


@needs_compiler
def test_a_record_has_every_row(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    monkeypatch.setattr(bench, "measure", lambda rounds, only, progress: [row(1, Aim("torch", 2), torch=3)])
    done = CliRunner().invoke(kvproof, ["bench", "--device", "cpu", "--record", str(tmp_path)])
    assert done.exit_code == HOLDS and "1 of 1 aims" in done.output
    assert json.loads((tmp_path / "device.json").read_text())["rows"][0]["ratio"] == 3
    assert "| a row | 1.00 | 3.00 | 3.00 |" in (tmp_path / "device.md").read_text()


@pytest.mark.parametrize("arguments", [["--only", "nothing"], ["--only", "fp8", "--record", "."]])
def test_bad_input_is_one_sentence(arguments: list[str]) -> None:
    done = CliRunner().invoke(kvproof, ["bench", "--device", "cpu", *arguments])
    assert done.exit_code == USAGE
    assert "no row has" in done.output or "a record has every row" in done.output


def test_without_a_compiler_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    done = CliRunner().invoke(kvproof, ["bench", "--device", "cpu", "--only", "fuzz step"])
    assert done.exit_code == USAGE and "no device cpu here" in done.output
