"""The GPU's backend, on a stand-in for CuPy whose arrays are copies: nothing of the host is passed by
address, and what is told comes back as arrays of numpy. On a GPU, the same with CuPy itself."""

import ctypes
import hashlib
import json
import sys
from array import array
from types import SimpleNamespace

import numpy as np
import pytest

from kvproof.kernels import builds
from kvproof.kernels.backends.base import CLEAN, Report, SlotError
from kvproof.kernels.backends.choose import choose
from kvproof.kernels.backends.cupy_backend import (
    CupyMemory,
    architecture_for,
    binary_for,
    find_cupy,
    parameters_by_value,
)
from kvproof.kernels.backends.numpy_backend import NumpyBackend
from kvproof.kernels.backends.source_backend import SourceBackend
from kvproof.kernels.builds import BuildError
from kvproof.kernels.library import CpuLibrary, Launch
from kvproof.kernels.nvrtc import ARCHITECTURES, OPTIONS, find_nvrtc, ship
from kvproof.kernels.source import source_hash
from kvproof.kernels.words import Geometry

GEOMETRY = Geometry(2, 3, 2)


class DeviceArray(np.ndarray):
    """An array that has its address where CuPy's arrays have it."""

    @property
    def data(self):
        at = self.__array_interface__["data"][0]
        return SimpleNamespace(ptr=at, memset_async=lambda value, size: ctypes.memset(at, value, size))

    def set(self, values):
        assert values.shape == self.shape and values.dtype == self.dtype
        self[...] = values


class StandIn:
    """As much of CuPy as the memory uses. The host's arrays are never where kernels are sent."""

    def empty(self, shape, kind):
        return np.empty(shape, kind).view(DeviceArray)

    def asarray(self, values):
        return values if isinstance(values, DeviceArray) else values.copy().view(DeviceArray)

    def asnumpy(self, values):
        assert isinstance(values, DeviceArray)
        return np.array(values)


def stand_in():
    if builds.compiler() is None:
        pytest.skip("no C++ compiler")
    return StandInBackend(CpuLibrary(builds.build_cpu()), CupyMemory(StandIn()), Launch())


class StandInBackend(SourceBackend):
    name = "stand-in"


def on_a_gpu():
    try:
        return choose("cuda", pytest.fail)
    except BuildError as error:
        pytest.skip(str(error))


@pytest.fixture(params=[stand_in, on_a_gpu], ids=lambda make: make.__name__)
def backend(request):
    return request.param()


def ints(*values: int):
    return np.array(values, np.int64)


def test_a_step_on_device_arrays_equals_numpy(backend):
    digests = np.arange(100, 104, dtype=np.uint64)
    told = []
    for each in (backend, NumpyBackend()):
        cache = each.new_cache(GEOMETRY, 5, 4)
        table, lengths = np.array([[3, 1, 2]], np.int32), np.array([3], np.int32)
        slots = each.compute_slot_mapping(table, lengths, ints(0, 0, 0, -1), ints(0, 5, 11, 0), 4)
        key, value = each.synthesize(digests, GEOMETRY)
        assert each.reshape_and_cache(key, value, cache, slots) == CLEAN
        assert each.copy_blocks(cache, ints(2), ints(4), ints(4)) == CLEAN
        wrong = each.verify_blocks(cache, ints(3, 1, 2, 4, 4), ints(0, 1, 3, 3, 2), digests[[0, 1, 2, 2, 2]])
        told.append((slots, wrong, *each.gather(cache, ints(12, 5, 11, 19))))
    for found, wanted in zip(*told, strict=True):
        assert type(found) is np.ndarray and np.array_equal(found, wanted)


def test_what_is_wrong_is_reported_and_forgotten(backend):
    cache = backend.new_cache(GEOMETRY, 5, 4)
    key, value = backend.synthesize(np.arange(4, dtype=np.uint64), GEOMETRY)
    assert backend.reshape_and_cache(key, value, cache, ints(1, 99, 1, -1)) == Report((1,), (2,))
    assert backend.reshape_and_cache(key, value, cache, ints(1, 2, 3, -1)) == CLEAN
    with pytest.raises(SlotError):
        backend.gather(cache, ints(20))
    assert backend.copy_blocks(cache, ints(1, 2), ints(2, 3), ints(1, 1)) == Report(conflicts=(1,))


def test_keys_and_values_of_the_host_are_taken(backend):
    digests = np.arange(2, dtype=np.uint64)
    cache = backend.new_cache(GEOMETRY, 5, 4)
    assert (
        backend.reshape_and_cache(*NumpyBackend().synthesize(digests, GEOMETRY), cache, ints(4, 7)) == CLEAN
    )
    assert not backend.verify_blocks(cache, ints(1, 1), ints(0, 3), digests).any()
    sums = backend.fingerprint_blocks(cache, ints(1, 1), ints(0, 3), ints(1, 4))
    assert type(sums) is np.ndarray and sums.shape == (2, 2, 2)


@pytest.mark.parametrize(
    ("capability", "built"),
    [
        *(("80", "sm_80"), ("86", "sm_80"), ("90", "sm_90"), ("100", "sm_100"), ("103", "sm_100")),
        *(("75", "compute_80"), ("120", "compute_80")),
    ],
)
def test_a_gpu_gets_a_cubin_of_its_major_version(capability, built):
    assert architecture_for(capability) == built


def test_parameters_are_one_value():
    packed = parameters_by_value(array("q", [1, -2, 3]))
    assert packed.shape == (1,) and packed.itemsize == 24
    assert np.frombuffer(packed.tobytes(), np.int64).tolist() == [1, -2, 3]


@pytest.mark.parametrize(
    ("value", "kind"), [(0, np.uint64), (2**64 - 1, np.uint64), (7, np.uint16), (1, np.float32)]
)
@pytest.mark.parametrize("shape", [(), (0,), (3, 2)])
def test_an_array_is_filled_without_a_kernel(value, kind, shape):
    made = CupyMemory(StandIn()).full(shape, value, kind)
    assert np.array_equal(made, np.full(shape, value, kind)) and made.dtype == kind


# --- what CI has built ----------------------------------------------------------------------------

NINETY = SimpleNamespace(
    cuda=SimpleNamespace(Device=lambda: SimpleNamespace(compute_capability="90")),
)


def shipped(folder, **others):
    """A folder as CI fills it, but for what is said of the manifest."""
    (folder / "kv_kernels.sm_90.cubin").write_bytes(b"a cubin")
    digests = {"kv_kernels.sm_90.cubin": hashlib.sha256(b"a cubin").hexdigest()}
    manifest = {"source": source_hash(), "options": OPTIONS, "artefacts": digests} | others
    (folder / "manifest.json").write_text(json.dumps(manifest))


def test_a_gpu_loads_what_ci_built_from_this_source(tmp_path):
    shipped(tmp_path)
    assert binary_for(NINETY, tmp_path) == tmp_path / "kv_kernels.sm_90.cubin"


def test_a_folder_without_an_artefact_for_the_gpu_is_refused(tmp_path):
    with pytest.raises(BuildError, match=r"has no kv_kernels\.sm_90"):
        binary_for(NINETY, tmp_path)


@pytest.mark.parametrize(
    ("others", "said"),
    [
        ({"source": "0" * 64}, "another source"),
        ({"options": ["--std=c++17", "--fmad=true"]}, "other options"),
        ({"artefacts": {"kv_kernels.sm_90.cubin": "0" * 64}}, "damaged"),
        ({"artefacts": {}}, "doesn't say"),
        ({"artefacts": None}, "doesn't say"),
    ],
)
def test_an_artefact_that_was_not_made_from_this_source_is_refused(tmp_path, others, said):
    shipped(tmp_path, **others)
    with pytest.raises(BuildError, match=said):
        binary_for(NINETY, tmp_path)


def test_an_artefact_that_was_cut_short_is_refused(tmp_path):
    shipped(tmp_path)
    (tmp_path / "kv_kernels.sm_90.cubin").write_bytes(b"a cu")
    with pytest.raises(BuildError, match="damaged"):
        binary_for(NINETY, tmp_path)


@pytest.mark.parametrize("text", [None, "", "[]", "{}", "no JSON"])
def test_an_artefact_of_which_nobody_says_what_it_is_made_from_is_refused(tmp_path, text):
    shipped(tmp_path)
    (tmp_path / "manifest.json").unlink()
    if text is not None:
        (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(BuildError, match=r"manifest\.json doesn't say"):
        binary_for(NINETY, tmp_path)


@pytest.mark.skipif(find_nvrtc() is None, reason="NVRTC is not installed")
def test_all_artefacts_are_shipped_with_what_they_were_made_from(tmp_path):
    ship(tmp_path)
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert manifest["source"] == source_hash() and manifest["nvrtc"].count(".") == 1
    assert manifest["artefacts"].keys() == {each.name for each in tmp_path.iterdir()} - {"manifest.json"}
    assert len(manifest["artefacts"]) == len(ARCHITECTURES)
    assert binary_for(NINETY, tmp_path).read_bytes()[:4] == b"\x7fELF"


def test_without_cupy_it_is_said(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(BuildError, match="no CuPy"):
        find_cupy()
