"""`kvproof doctor` says what is broken, not merely what it wishes."""

import json
from pathlib import Path

import pytest

from kvproof.fuzz.cli import doctor
from kvproof.fuzz.cli.errors import HARNESS_FAULT, HOLDS
from kvproof.fuzz.engines import traces
from kvproof.fuzz.faults import Fault


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
