"""`kvproof doctor` says what is broken, not merely what it wishes."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kvproof.fuzz.cli import doctor
from kvproof.fuzz.cli.errors import HARNESS_FAULT, HOLDS
from kvproof.fuzz.engines import traces
from kvproof.fuzz.faults import Fault
from kvproof.kernels.builds import AbsentError


def states(findings: list[doctor.Finding]) -> dict[str, str]:
    return {each.name: each.state for each in findings}


def test_nothing_here_is_broken() -> None:
    found = [*doctor.machine(), *doctor.packages(), *doctor.data(), *doctor.targets()]
    assert [each for each in found if each.state == "broken"] == []
    assert states(found)["reference"] == "ok"


def test_a_needed_package_that_lacks_is_broken_and_one_of_use_is_absent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(doctor, "PACKAGES", {"no-such-needed": "", "no-such-useful": "dreams"})
    found = states(list(doctor.packages()))
    assert (found["no-such-needed"], found["no-such-useful"]) == ("broken", "absent")


@pytest.mark.parametrize(
    ("installed", "gpu", "usable", "finding"),
    [
        (False, True, True, ("absent", "kernels on a GPU")),
        (True, False, True, ("absent", "is installed, but there is no GPU here to run kernels on")),
        (True, True, False, ("absent", "is installed, but: no GPU that CuPy can use.")),
        (True, True, True, ("ok", "kernels on a GPU")),
    ],
)
def test_cupy_is_of_use_where_it_has_a_gpu(
    monkeypatch: pytest.MonkeyPatch, installed: bool, gpu: bool, usable: bool, finding: tuple[str, str]
) -> None:
    def find() -> None:
        assert gpu, "it is loaded for nothing"
        if not usable:
            raise AbsentError("no GPU that CuPy can use.")

    monkeypatch.setattr("importlib.util.find_spec", lambda name: object() if installed else None)
    monkeypatch.setattr(doctor, "_driver_has_gpu", lambda: gpu)
    monkeypatch.setattr(doctor, "find_cupy", find)
    assert doctor._cupy()[1:] == finding


def driver(code: int, count: int) -> SimpleNamespace:
    """A driver whose calls end so, with so many GPUs."""

    def tell(at: Any) -> int:
        at._obj.value = count
        return 0

    return SimpleNamespace(cuInit=lambda flags: code, cuDeviceGetCount=tell)


def test_the_driver_says_whether_there_is_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for each in (driver(0, 1), driver(0, 0), driver(100, 1)):
        monkeypatch.setattr("ctypes.CDLL", lambda name, each=each: each)
        found.append(doctor._driver_has_gpu())
    assert found == [True, False, False]
    monkeypatch.setattr("ctypes.CDLL", lambda name: SimpleNamespace())
    assert not doctor._driver_has_gpu(), "no driver of CUDA"


def test_data_that_is_not_whole_is_broken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fault = Fault("gone", "t", "KV-I2-key", "kvproof.impl.manager.KVCacheManager.nowhere", "a", "b")
    monkeypatch.setattr(doctor, "seeded", lambda: (fault,))
    monkeypatch.setattr(traces, "bundled", lambda name: tmp_path / f"{name}.jsonl.gz")
    found = states(list(doctor.data()))
    assert (found["cases"], found["traces"], found["faults"]) == ("ok", "broken", "broken")


def test_a_build_of_the_kernels_that_cannot_be_loaded_is_broken(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    damaged = tmp_path / "kv_kernels.so"
    damaged.write_bytes(b"no library")
    monkeypatch.setattr("kvproof.kernels.backends.cpu_backend.build_cpu", lambda: damaged)
    [device] = [each for each in doctor.machine() if each.name == "device"]
    assert device.state == "broken" and str(damaged) in device.what


def test_the_exit_code_says_whether_anything_is_broken(capsys: pytest.CaptureFixture[str]) -> None:
    good, bad = doctor.Finding("a", "ok", ""), doctor.Finding("b", "broken", "it is in two")
    assert doctor.report([good]) == HOLDS
    capsys.readouterr()
    assert doctor.report([good, bad], as_json=True) == HARNESS_FAULT
    assert json.loads(capsys.readouterr().out)["broken"] == 1
