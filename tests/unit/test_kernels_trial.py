"""The trial of a GPU, on this machine's processor and on a stand-in for CuPy that runs there."""

import ctypes
import importlib.util
import subprocess
import sys
import time
from array import array
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from kvproof.kernels import builds, cuda_place, trial
from kvproof.kernels.builds import AbsentError
from kvproof.kernels.calls import Kernels
from kvproof.kernels.library import CpuLibrary, Launch
from kvproof.kernels.mirror import GUARD, MirrorLibrary
from kvproof.kernels.places import CpuPlace, HostCopies, NotHereError
from kvproof.kernels.trial import Row, rows_of
from kvproof.kernels.works import Size

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(builds.compiler() is None, reason="no C++ compiler")
FEW = Size(tokens=64, layers=1)


# --- a stand-in for CuPy -------------------------------------------------------------------------


class Pointer:
    def __init__(self, values):
        self.ptr, self.nbytes = values.__array_interface__["data"][0], values.nbytes

    def memset_async(self, value, size):
        ctypes.memset(self.ptr, value, size)

    def copy_from_device_async(self, source, size):
        ctypes.memmove(self.ptr, source.ptr, size)


class DeviceArray(np.ndarray):
    """An array of the stand-in: the host's arrays are never where its kernels are sent."""

    @property
    def data(self):
        return Pointer(self)

    def set(self, values):
        self[...] = values


class Stream:
    """What is launched on it has ended at once."""

    def __init__(self, non_blocking):
        assert non_blocking
        self.waited = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def record(self):
        return self

    def wait_event(self, event):
        self.waited.append(event)

    def synchronize(self):
        pass


class Event:
    def record(self):
        self.at = time.perf_counter()

    def synchronize(self):
        pass


class Module:
    """The kernels of the processor's build, given their parameters by value."""

    def __init__(self, path):
        assert Path(path).exists()
        self.library = CpuLibrary(builds.build_cpu())

    def get_function(self, name):
        def run(grid, block, arguments):
            [packed] = arguments
            assert packed.shape == (1,)
            parameters = array("q", packed.tobytes())
            self.library.launch(name, parameters, Launch(*grid, *block))

        return run


def stand_in(free=1 << 30):
    cuda = SimpleNamespace(
        is_available=lambda: True,
        Device=lambda: SimpleNamespace(compute_capability="90", id=0, synchronize=lambda: None),
        Stream=Stream,
        Event=Event,
        get_elapsed_time=lambda began, ended: (ended.at - began.at) * 1000,
        set_allocator=lambda allocator: None,
        runtime=SimpleNamespace(
            getDeviceProperties=lambda device: {"name": b"no GPU"},
            driverGetVersion=lambda: 0,
            memGetInfo=lambda: (free, free),
        ),
    )
    return SimpleNamespace(
        __version__="0",
        cuda=cuda,
        RawModule=Module,
        empty=lambda shape, kind: np.empty(shape, kind).view(DeviceArray),
        asarray=lambda values: values if isinstance(values, DeviceArray) else values.copy().view(DeviceArray),
        asnumpy=lambda values: np.array(values),
    )


@pytest.fixture
def cuda(monkeypatch, tmp_path):
    """The GPU's place on the stand-in, with small arrays and few threads."""
    (built := tmp_path / "kv_kernels.sm_90.cubin").write_bytes(b"none")
    monkeypatch.setattr(cuda_place, "find_cupy", stand_in)
    monkeypatch.setattr(cuda_place, "binary_for", lambda cupy, folder: built)
    monkeypatch.setattr(cuda_place, "SPREAD", Launch(grid=8, block=4, lanes=4))
    monkeypatch.setattr(cuda_place, "SMALL", FEW)
    monkeypatch.setattr(cuda_place, "REPEATS", 1)
    return cuda_place.CudaPlace


@pytest.fixture(scope="module")
def ci_gpu() -> ModuleType:
    loader = SourceFileLoader("ci_gpu", str(ROOT / "ci/gpu"))
    spec = importlib.util.spec_from_loader("ci_gpu", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    exec(compile((ROOT / "ci/gpu").read_text(encoding="utf-8"), "ci/gpu", "exec"), module.__dict__)
    return module


def table(capsys):
    """The printed rows, name and state."""
    lines = capsys.readouterr().out.splitlines()[1:-1]
    rows = [(line[2:44].strip(), line[45:54].strip()) for line in lines]
    return dict(row for row in rows if row[0])


def test_the_whole_trial_runs_on_a_stand_in(cuda, ci_gpu, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(ci_gpu, "OPERATIONS", 200)
    monkeypatch.setattr(ci_gpu, "STEPS", 10)
    monkeypatch.setattr(trial, "ROUNDS", 2)
    monkeypatch.setattr(trial, "shutil", SimpleNamespace(which=lambda name: None))
    assert ci_gpu.main(["--cases", "14", "--record", str(tmp_path)]) == 1
    found = table(capsys)
    # Nothing runs at the same time there, and it has no memory to speak of.
    assert {name for name, state in found.items() if state == "failed"} == {"two streams without one"}
    skipped = {name for name, state in found.items() if state == "skipped"}
    assert skipped == {"beyond 2^31", "torch", "memcheck"}
    assert found["fuzzing with verification"] == found["random cases equal numpy"] == "passed"
    assert sum(state == "measured" for state in found.values()) >= 20
    assert "| digests equal numpy's | passed |" in (tmp_path / "gpu.md").read_text()
    assert '"no GPU, driver 0' in (tmp_path / "gpu.json").read_text()


def test_digests_are_the_same_on_every_device(cuda):
    rows = [list(trial.digests(place)) for place in (CpuPlace(), cuda())]
    assert rows[0] == rows[1]
    assert {row.state for row in rows[0]} == {"passed"}


def test_without_a_gpu_it_is_skipped_and_with_require_it_fails(ci_gpu, monkeypatch, capsys):
    def missing():
        raise AbsentError("no GPU that CuPy can use.")

    monkeypatch.setattr(cuda_place, "find_cupy", missing)
    assert ci_gpu.main([]) == 0
    assert ci_gpu.main(["--require"]) == 2
    assert capsys.readouterr().out == "skipped: no GPU that CuPy can use.\n" * 2


def test_a_python_without_kvproof_takes_it_from_the_checkout(ci_gpu, monkeypatch):
    missing, found = ("kvproof", "msgspec"), importlib.util.find_spec
    monkeypatch.setattr(sys, "path", [*sys.path])
    with monkeypatch.context() as inside:
        absent = lambda name: None if name in missing else found(name)  # noqa: E731
        inside.setattr(importlib.util, "find_spec", absent)
        ci_gpu.prepare()
    program = (
        f"import sys; sys.path.insert(0, {sys.path[0]!r}); import kvproof.kernels.trial as trial; "
        "print(trial.__file__, 'msgspec' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    path, loaded = done.stdout.split()
    assert Path(path).resolve() == ROOT / "kernels" / "trial.py" and loaded == "False"
    assert (ROOT / "ci/gpu").stat().st_mode & 0o111


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--only", "nothing"], "no check has 'nothing' in its name."),
        (["--only", "memcheck", "--device", "cpu"], "no check has 'memcheck' in its name."),
        (["--device", "tpu"], "argument --device: invalid choice: 'tpu'"),
        (["--cases", "0"], "argument --cases: 0 is less than 1."),
        (["--cases", "-3"], "argument --cases: -3 is less than 1."),
        (["--cases", "many"], "argument --cases: invalid number value: 'many'."),
        (["--record", __file__], f"argument --record: cannot write to folder {__file__}: File exists."),
    ],
)
def test_usage_ends_with_3_before_anything_runs(ci_gpu, monkeypatch, capsys, arguments, said):
    monkeypatch.setattr(ci_gpu, "place_of", lambda given: pytest.fail("it ran"))
    with pytest.raises(SystemExit) as ended:
        raise SystemExit(ci_gpu.main(arguments))
    assert ended.value.code == 3
    found = capsys.readouterr()
    assert found.err.startswith(f"ci/gpu: {said}") and found.err.count("\n") == 1 and not found.out


def test_a_folder_to_record_to_is_made(ci_gpu, tmp_path, capsys):
    folder = tmp_path / "missing" / "folder"
    arguments = ["--device", "cpu", "--only", "digests", "--record", str(folder)]
    assert ci_gpu.main(arguments) == 0
    assert {each.name for each in folder.iterdir()} == {"gpu.json", "gpu.md"}


def test_a_gpu_whose_kernels_cannot_be_had_is_a_failure(ci_gpu, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(cuda_place, "find_cupy", stand_in)
    assert ci_gpu.main(["--cubins", str(tmp_path)]) == 1
    assert capsys.readouterr().out == f"failed: {tmp_path} has no kv_kernels.sm_90.cubin.\n"


# --- its checks can fail ------------------------------------------------------------------------------


class Broken(CpuPlace):
    """A place whose kernels leave out the last token of every launch."""

    def kernels(self, *, waits=True):
        return Kernels(Shortened(self.library), self.spread, self.memory, waits=waits)

    def backend(self):
        backend = super().backend()
        backend.library = Shortened(backend.library)
        return backend

    def mirrored(self):
        return MirrorLibrary(Shortened(self.library), HostCopies())

    def torn(self, rounds, *, event):
        return 1

    def share(self):
        raise AssertionError("not the tensor's memory")


class Shortened:
    watch = None

    def __init__(self, inner):
        self.inner, self.signatures = inner, inner.signatures

    def launch(self, kernel, parameters, launch):
        fields, shorter = self.signatures[kernel].fields, array("q", parameters)
        for name in ("count", "tokens", "rows"):
            if name in fields and name not in self.signatures[kernel].addresses:
                shorter[fields.index(name)] -= 1
        self.inner.launch(kernel, shorter, launch)


class Idle(CpuPlace):
    """A place whose kernels do nothing."""

    def backend(self):
        backend = super().backend()
        backend.library = trial._Silent(backend.library)
        return backend


def failed(rows):
    return [row.name for row in rows if row.state == "failed"]


def test_every_check_can_fail():
    broken = Broken()
    assert failed(trial.differences(broken, 14)) == ["random cases equal numpy"]
    assert failed(trial.digests(broken)) == ["bytes equal numpy's", "digests equal numpy's"]
    assert len(failed(trial.digests(Idle()))) == 3
    assert len(failed(trial.attention(broken))) == 4
    assert failed(trial.streams(broken)) == ["two streams with an event"]
    assert failed(rows_of("torch", lambda: trial.sharing(broken))) == ["torch"]


def test_fuzzing_on_a_device_that_does_nothing_is_seen(ci_gpu, monkeypatch):
    monkeypatch.setattr(ci_gpu, "OPERATIONS", 300)
    monkeypatch.setattr(ci_gpu, "STEPS", 10)
    rows = [[row.state for row in ci_gpu.fuzz(place)] for place in (CpuPlace(), Idle(), Broken())]
    assert rows == [["passed", "passed"], ["passed", "failed"], ["failed", "passed"]]


def test_a_check_that_breaks_is_a_failed_row(capsys):
    def breaks():
        yield Row("first", "passed", "")
        raise RuntimeError("out of memory\nmore")

    assert list(rows_of("check", breaks))[1] == Row("check", "failed", "RuntimeError: out of memory")
    assert "out of memory" in capsys.readouterr().err


def test_what_is_not_here_is_a_skipped_row():
    def missing():
        raise NotHereError("no such tool")
        yield

    assert list(rows_of("check", missing)) == [Row("check", "skipped", "no such tool")]


# --- the memory checker ---------------------------------------------------------------------------------


def tool(folder, text, code):
    (made := folder / "compute-sanitizer").write_text(f"#!/bin/sh\necho '{text}'\nexit {code}\n")
    made.chmod(0o755)
    return made


@pytest.mark.parametrize(
    ("text", "code", "row"),
    [
        ("========= ERROR SUMMARY: 0 errors", 0, ("passed", "ERROR SUMMARY: 0 errors")),
        ("========= ERROR SUMMARY: 3 errors", 9, ("failed", "ERROR SUMMARY: 3 errors")),
        ("Error: Device not supported", 1, ("skipped", "compute-sanitizer doesn't support this device")),
    ],
)
def test_what_the_memory_checker_says(tmp_path, monkeypatch, text, code, row):
    tool(tmp_path, text, code)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    [found] = rows_of("memcheck", lambda: trial.memory_checker(["program"]))
    assert found[1:] == row


def test_the_memory_checker_reports_the_memory_alone(tmp_path, monkeypatch):
    (made := tmp_path / "compute-sanitizer").write_text('#!/bin/sh\necho "$*"\n')
    made.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    [found] = trial.memory_checker(["program", "argument"])
    assert found.figure.endswith("tool memcheck --report-api-errors no --error-exitcode 9 program argument")


def test_arrays_may_have_an_allocation_of_their_own(cuda, monkeypatch):
    told: list[None] = []
    cupy = stand_in()
    cupy.cuda.set_allocator = told.append
    monkeypatch.setattr(cuda_place, "find_cupy", lambda: cupy)
    place = cuda(pooled=False)
    assert told == [None]
    assert (place.mirrored()._guard, cuda().mirrored()._guard) == (0, GUARD)


def test_a_huge_memory_is_only_asked_for_where_it_is_free(cuda):
    with pytest.raises(NotHereError, match="aren't free"):
        cuda().huge()


def test_streams_wait_for_each_other_with_an_event_only(cuda):
    made = []

    class Seen(Stream):
        def __init__(self, non_blocking):
            super().__init__(non_blocking)
            made.append(self)

    place = cuda()
    place.cupy.cuda.Stream = Seen
    for event in (True, False):
        assert place.torn(1, event=event) == 0
    assert [len(stream.waited) for stream in made] == [0, 1, 0, 0]
    assert made[1].waited == [made[0]]
