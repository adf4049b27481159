"""One backend for the devices of a process: which, where it can't be had, and that it changes no verdict."""

import json

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from kvproof.fuzz import devices
from kvproof.fuzz.cli import phases
from kvproof.fuzz.cli.errors import CODES, HARNESS_FAULT, HOLDS, USAGE
from kvproof.fuzz.cli.profiles import profile
from kvproof.fuzz.cli.root import kvproof
from kvproof.fuzz.device import Device
from kvproof.fuzz.engines.soak import soak
from kvproof.fuzz.targets.judge import Job, judge_apart
from kvproof.kernels import builds
from kvproof.kernels.backends.cupy_backend import CupyBackend
from kvproof.kernels.backends.numpy_backend import NumpyBackend
from kvproof.kernels.builds import BuildError
from kvproof.spec.vocabulary import CacheConfig

CONFIG = CacheConfig(blocks=4, block_size=4)
ON_CPU = ("numpy", "cpu", "cpu-checked")
compiled = pytest.mark.skipif(builds.compiler() is None, reason="no C++ compiler")


def run(*args: str) -> tuple[int, str, str]:
    """The exit code, stdout and stderr of a command."""
    result = CliRunner().invoke(kvproof, args)
    return result.exit_code, result.stdout, result.stderr


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: CupyBackend) -> None:
        raise BuildError("no GPU that CuPy can use.\nAnd more that nobody needs.")

    monkeypatch.setattr(CupyBackend, "__init__", refuse)


@pytest.fixture
def not_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    """A compiler that leaves out the calls at accesses."""
    options = tuple(each for each in builds.CHECKED if each != "-fsanitize=thread")
    monkeypatch.setattr(builds, "CHECKED", options)


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")


# --- the choice ---------------------------------------------------------------------------------


def test_the_innermost_choice_counts_and_ends_with_its_block():
    outer, inner = NumpyBackend(), NumpyBackend()
    with devices.using(outer):
        with devices.using(inner):
            assert Device(CONFIG).backend is inner
        assert Device(CONFIG).backend is outer
        with pytest.raises(ZeroDivisionError), devices.using(inner):
            raise ZeroDivisionError
        assert devices.current() is outer
    assert devices.current() is devices.current()


def test_a_device_may_be_given_another_backend():
    own = NumpyBackend()
    assert Device(CONFIG, backend=own).backend is own


@compiled
def test_devices_run_on_the_processor_unless_somebody_says_otherwise():
    assert devices.current().name == devices.DEFAULT == "cpu"


def test_without_a_compiler_it_is_numpy_and_one_line_says_so(no_compiler):
    lines: list[str] = []
    assert devices.make("cpu", lines.append).name == "numpy"
    assert len(lines) == 1 and lines[0].startswith("device: numpy instead of cpu: ")


def refuse() -> None:
    raise BuildError("the compiler ended with 1: no such thing.\nAnd more that nobody needs.")


@compiled
@pytest.mark.parametrize("name", ["cpu", "cpu-checked"])
def test_a_compiler_that_refuses_the_source_is_said_in_one_sentence_and_numpy_does_not_run(name, monkeypatch):
    monkeypatch.setattr(builds, "_compile", lambda *_: refuse())
    monkeypatch.setattr(builds, "is_whole", lambda artefact: False)
    with pytest.raises(devices.DeviceError) as caught:
        devices.make(name, pytest.fail)
    assert str(caught.value) == f"there is no device {name} here: the compiler ended with 1: no such thing."


@compiled
def test_a_build_that_is_not_watched_is_said_and_numpy_does_not_run(not_watched):
    code, out, err = run("fuzz", "--device", "cpu-checked", "--ops", "5")
    assert (code, out) == (USAGE, "")
    why = "the compiler's calls at loads and stores don't arrive"
    assert err == f"kvproof: there is no device cpu-checked here: {why}.\n"


@compiled
def test_the_device_phase_is_broken_where_the_kernels_cannot_be_watched(not_watched):
    found = phases.run_device(replace(profile("ci"), device=300), 0, lambda text: None)
    assert CODES[found.verdict] == HARNESS_FAULT
    (test,) = found.tests
    assert test.message == (
        "The kernels can't be watched: the compiler's calls at loads and stores don't arrive."
    )


def test_a_gpu_that_is_not_there_is_said_in_one_sentence(no_gpu):
    with pytest.raises(devices.DeviceError) as caught:
        devices.make("cuda")
    assert str(caught.value) == "there is no device cuda here: no GPU that CuPy can use."


@compiled
def test_a_damaged_build_in_the_cache_is_said_in_one_sentence_with_its_file(monkeypatch, tmp_path):
    damaged = tmp_path / "kv_kernels.so"
    damaged.write_bytes(b"no library")
    monkeypatch.setattr("kvproof.kernels.backends.cpu_backend.build_cpu", lambda: damaged)
    with pytest.raises(devices.DeviceError, match=r"^there is no device cpu here: .*kv_kernels\.so: .*\.$"):
        devices.make("cpu")


# --- commands -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "command",
    [
        ("fuzz", "--ops", "5"),
        ("check",),
        ("replay", "case.json"),
        ("shrink", "case.json"),
        ("conform", "--target", "reference"),
    ],
    ids=lambda args: args[0],
)
def test_a_gpu_that_is_not_there_is_wrong_usage_of_every_command(command, no_gpu):
    code, out, err = run(*command, "--device", "cuda")
    assert (code, out) == (USAGE, "")
    assert err == "kvproof: there is no device cuda here: no GPU that CuPy can use.\n"


def test_a_device_that_nobody_has_is_wrong_usage():
    code, _, err = run("fuzz", "--device", "tpu")
    assert code == USAGE and "'numpy', 'cpu', 'cpu-checked', 'cuda'" in err


def test_without_a_compiler_a_command_runs_on_numpy_and_says_so_once(no_compiler):
    code, out, err = run("fuzz", "--ops", "100", "--json")
    assert code == HOLDS and json.loads(out)["device"] == "numpy"
    assert err.count("numpy instead of cpu") == 1


def test_the_last_line_tells_which_backend_ran():
    code, out, _ = run("fuzz", "--ops", "100", "--device", "numpy")
    assert code == HOLDS and out.endswith("\n  level 3 on numpy\n")


def test_a_choice_ends_with_its_command():
    before = devices.current()
    run("fuzz", "--ops", "5", "--device", "numpy")
    assert devices.current() is before


@compiled
def test_a_seed_is_the_same_run_on_every_backend_but_for_its_speed():
    documents = []
    for name in ON_CPU:
        code, out, _ = run("fuzz", "--ops", "500", "--seed", "3", "--device", name, "--json")
        found = json.loads(out)
        assert code == HOLDS and found.pop("device") == name and found.pop("ops_per_second") > 0
        documents.append(found)
    assert documents[0]["digest"] and documents[1:] == documents[:1] * 2


@compiled
def test_a_planted_fault_breaks_the_same_clause_after_the_same_operations_on_every_backend():
    from kvproof.fuzz.faults import by_id, planted

    fault, found = by_id("shared-hit-not-counted"), []
    for name in ON_CPU:
        with devices.using(devices.make(name)), planted([fault]):
            result = soak(3_000, 1, faults=[fault], compare_policy=False)
        assert result.case is not None
        found.append((result.operations, result.case))
    assert found[1:] == found[:1] * 2


def test_an_allocator_is_judged_on_the_device_of_whoever_asks():
    with devices.using(devices.make("numpy")):
        judgement = judge_apart(Job("reference", 60))
    assert (judgement.result, judgement.device) == ("holds", "numpy")
