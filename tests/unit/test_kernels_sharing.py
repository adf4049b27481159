"""Torch's memory and streams are used as they are: on the host here, with stand-ins for a GPU's."""

from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest

from kvproof.kernels import builds
from kvproof.kernels.calls import Kernels
from kvproof.kernels.layouts import LayoutError
from kvproof.kernels.library import CpuLibrary

torch = pytest.importorskip("torch")
sharing = pytest.importorskip("kvproof.kernels.sharing")

PLAIN = [torch.float32, torch.float16, torch.int8, torch.uint8, torch.int64]
AS_BITS = [torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2]


def ints(*values: int):
    return np.array(values, np.int64)


@pytest.mark.parametrize("dtype", [*PLAIN, *AS_BITS], ids=str)
def test_a_tensor_and_its_array_are_one_memory(dtype):
    tensor = torch.arange(24).reshape(2, 3, 4).to(dtype).transpose(0, 2)
    array = sharing.array_of(tensor)
    assert array.__array_interface__["data"][0] == tensor.data_ptr()
    assert array.shape == tensor.shape and array.itemsize == tensor.element_size()
    assert [step // array.itemsize for step in array.strides] == list(tensor.stride())
    array[1, 2, 0] = 0
    assert not tensor[1, 2, 0].float().any()
    back = sharing.tensor_of(array, dtype)
    assert back.dtype == dtype and back.data_ptr() == tensor.data_ptr() and back.stride() == tensor.stride()


def test_bits_of_bf16_are_those_that_the_kernels_take():
    assert sharing.array_of(torch.ones(2, dtype=torch.bfloat16)).dtype == np.uint16
    assert sharing.array_of(torch.ones(2, dtype=torch.bfloat16))[0] == 0x3F80


def test_a_tensor_that_is_trained_is_shared_too():
    tensor = torch.ones(3, requires_grad=True)
    assert sharing.array_of(tensor).__array_interface__["data"][0] == tensor.data_ptr()


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.ones(2, 2).to_sparse(),
        lambda: torch.empty(3, device="meta"),
        lambda: torch.ones(2, dtype=torch.complex64).conj(),
        lambda: torch._neg_view(torch.ones(2)),
        lambda: torch.nested.as_nested_tensor([torch.ones(2), torch.ones(3)]),
        lambda: torch.nested.as_nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged),
    ],
    ids=["sparse", "meta", "conjugate", "negative", "nested", "jagged"],
)
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_a_tensor_without_plain_memory_is_refused(make):
    tensor = make()
    with pytest.raises(sharing.SharingError, match="plain"):
        sharing.array_of(tensor)


OTHERS = ["float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn_x2", "complex32"]


@pytest.mark.parametrize("name", OTHERS)
def test_a_tensor_of_elements_that_no_array_has_is_refused(name):
    if not hasattr(torch, name):
        pytest.skip(f"this torch has no {name}")
    tensor = torch.zeros(8, dtype=torch.int32).view(torch.uint8).view(getattr(torch, name))
    with pytest.raises(sharing.SharingError, match=rf"^elements of torch\.{name}, which no array has\.$"):
        sharing.array_of(tensor)


APART = np.dtype({"names": ["number"], "formats": ["f4"], "itemsize": 5})


@pytest.mark.parametrize(
    "array",
    [
        np.arange(4.0)[::-1],
        np.arange(4, dtype=np.uint16)[::-1],
        np.zeros(4, "V16"),
        np.zeros(4, ">i4"),
        np.zeros(4, APART)["number"],
    ],
    ids=["reversed", "reversed bits", "void", "other byte order", "strides between elements"],
)
def test_an_array_that_no_tensor_can_be_is_refused_in_one_sentence(array):
    with pytest.raises(sharing.SharingError, match=r"^no tensor is an array of .* with strides \(.*,\)\.$"):
        sharing.tensor_of(array)


def test_an_array_is_shared_only_where_a_tensor_may_be_it():
    fixed = np.zeros(2, np.float32)
    fixed.flags.writeable = False
    with pytest.raises(sharing.SharingError, match="must not be written"):
        sharing.tensor_of(fixed)
    with pytest.raises(sharing.SharingError, match="widths"):
        sharing.tensor_of(np.zeros(2, np.float32), torch.bfloat16)


@pytest.fixture(scope="module")
def kernels():
    if builds.compiler() is None:
        pytest.skip("no C++ compiler")
    return Kernels(CpuLibrary(builds.build_cpu()))


@pytest.mark.parametrize("dtype", [torch.float32, *AS_BITS], ids=str)
def test_kernels_write_to_the_tensors_of_a_model(kernels, dtype):
    # Keys as a slice of what one matrix product gave, and a cache `[2, blocks, size, heads, dims]`.
    product = torch.arange(5 * 3 * 2 * 8).reshape(5, 3, 2, 8).to(dtype)
    cache = torch.zeros(2, 4, 4, 2, 8).to(dtype)
    slots = ints(3, -1, 9, 0, 14)
    tokens = sharing.array_of(product[:, :2])[:, None]
    kernels.reshape_and_cache(tokens, sharing.array_of(cache).swapaxes(0, 1)[None], slots)
    for token, slot in enumerate(slots.tolist()):
        if slot >= 0:
            written = cache[:, slot // 4, slot % 4].float()
            assert torch.equal(written, product[token, :2].float())
    assert int((cache.float() != 0).any(dim=(0, 3, 4)).sum()) == 4


def test_elements_that_lie_apart_are_moved_as_sources_and_refused_as_blocks(kernels):
    tokens = torch.arange(3 * 2 * 16, dtype=torch.float32).reshape(3, 1, 1, 2, 16)[..., ::2]
    cache = torch.zeros(1, 4, 1, 4, 2, 8)
    kernels.reshape_and_cache(sharing.array_of(tokens), sharing.array_of(cache), ints(1, 2, 3))
    assert torch.equal(cache[0, 0, 0, 1:], tokens[:, 0, 0])
    apart = sharing.array_of(torch.zeros(1, 4, 1, 4, 2, 16)[..., ::2])
    with pytest.raises(LayoutError, match="together"):
        kernels.copy_blocks(apart, apart, ints(1), ints(2), ints(4))


# --- streams ----------------------------------------------------------------------------------------


class Stream:
    """A stream of CuPy: which one is current, what was recorded and what it waits for."""

    current: object = "default"

    def __init__(self, handle, owner=None):
        self.handle, self.owner, self.waits = handle, owner, []

    def __enter__(self):
        self.before, Stream.current = Stream.current, self.handle
        return self

    def __exit__(self, *_):
        Stream.current = self.before

    def record(self):
        return f"all so far on {self.handle}"

    def wait_event(self, event):
        self.waits.append(event)


class NewStream(Stream):
    @classmethod
    def from_external(cls, stream):
        version, handle = stream.__cuda_stream__()
        assert version == 0
        return cls(handle, stream)


NEW = SimpleNamespace(cuda=SimpleNamespace(Stream=NewStream))
OLD = SimpleNamespace(cuda=SimpleNamespace(Stream=Stream, ExternalStream=Stream))
WITH_PROTOCOL = SimpleNamespace(__cuda_stream__=lambda: (0, 77), cuda_stream=77)
WITHOUT = SimpleNamespace(cuda_stream=77)


@pytest.mark.parametrize("cupy", [NEW, OLD], ids=["from CuPy 14", "before"])
@pytest.mark.parametrize("stream", [WITH_PROTOCOL, WITHOUT], ids=["protocol", "handle"])
def test_the_callers_stream_is_current_while_kernels_are_queued(cupy, stream):
    with sharing.on_stream(cupy, stream) as shared:
        assert (Stream.current, shared.handle) == (77, 77)
    assert Stream.current == "default"


def test_without_a_stream_it_is_torchs_current_one(monkeypatch):
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: WITH_PROTOCOL)
    with sharing.on_stream(NEW) as shared:
        assert shared.owner is WITH_PROTOCOL and Stream.current == 77


def test_one_stream_waits_for_another():
    first, second = Stream(1), Stream(2)
    sharing.order(first, second)
    assert (first.waits, second.waits) == ([], ["all so far on 1"])


@pytest.mark.parametrize("stream", [WITH_PROTOCOL, WITHOUT], ids=["protocol", "handle"])
def test_cupy_itself_takes_the_stream(stream):
    cupy = pytest.importorskip("cupy")
    assert sharing.stream_of(cupy, stream).ptr == 77


# --- a GPU's memory -----------------------------------------------------------------------------------


class OnGpu:
    """What is asked of a tensor on a GPU; its memory is the host's."""

    layout, is_meta, is_nested, dtype = torch.strided, False, False, torch.bfloat16
    device = SimpleNamespace(type="cuda", index=1)

    def __init__(self, values):
        self.values = values

    def is_conj(self):
        return False

    is_neg = is_conj

    def detach(self):
        return self

    def view(self, dtype):
        return self.values.view(dtype)


def test_memory_of_a_gpu_goes_to_cupy_as_integers_on_its_device(monkeypatch):
    seen = []

    @contextmanager
    def device(index):
        seen.append(index)
        yield

    def asarray(values):
        assert values.dtype == torch.int16
        return values.numpy()

    cupy = SimpleNamespace(asarray=asarray, cuda=SimpleNamespace(Device=device))
    monkeypatch.setitem(__import__("sys").modules, "cupy", cupy)
    tensor = torch.ones(4, dtype=torch.bfloat16)
    array = sharing.array_of(OnGpu(tensor))
    assert array.dtype == np.uint16 and array.__array_interface__["data"][0] == tensor.data_ptr()
    assert seen == [1]


def test_memory_of_another_device_is_refused():
    tensor = OnGpu(torch.ones(4, dtype=torch.bfloat16))
    tensor.device = SimpleNamespace(type="xpu", index=0)
    with pytest.raises(sharing.SharingError, match="neither"):
        sharing.array_of(tensor)
