"""Memory and streams that torch shares with numpy and CuPy: nothing is copied, and whoever calls says
on which stream the kernels run.

A kernel is queued on CuPy's current stream. Inside `on_stream` that is torch's, so that a kernel comes
after what torch queued before and before what it queues next, without an event. What runs on different
streams is ordered by `order`. A tensor's memory is torch's: it must stay referenced until the stream
that reads it has gone past the kernel.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
import torch
from torch.utils.dlpack import from_dlpack

from kvproof.kernels.memory import Array

_BITS: Final[dict[torch.dtype, tuple[torch.dtype, type[np.generic]]]] = {
    torch.bfloat16: (torch.int16, np.uint16),
    torch.float8_e4m3fn: (torch.uint8, np.uint8),
    torch.float8_e5m2: (torch.uint8, np.uint8),
}
"""Elements that arrays can't have, as integers of torch and of numpy."""
_NAMES: Final = (
    "bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64",
    "float16", "float32", "float64", "complex64", "complex128",
)  # fmt: skip
_PLAIN: Final = frozenset(getattr(torch, name) for name in _NAMES if hasattr(torch, name))
"""Elements that arrays have too."""


class SharingError(ValueError):
    """A tensor whose memory no kernel can use."""


def array_of(tensor: torch.Tensor) -> Array:
    """The tensor's memory as an array: of numpy on the host, of CuPy on a GPU.

    Shape and strides are the tensor's; bf16 and fp8 are kept as their bits, as the kernels take them.
    Raises `SharingError` for a tensor without plain memory, or whose elements no array has.
    """
    strided = tensor.layout is torch.strided and not tensor.is_nested
    if not strided or tensor.is_meta or tensor.is_conj() or tensor.is_neg():
        raise SharingError("a tensor that isn't plain, strided memory.")
    if tensor.dtype not in _BITS and tensor.dtype not in _PLAIN:
        raise SharingError(f"elements of {tensor.dtype}, which no array has.")
    plain, kind = tensor.detach(), None
    if tensor.dtype in _BITS:
        wide, kind = _BITS[tensor.dtype]
        plain = plain.view(wide)
    if tensor.device.type == "cpu":
        array: Array = plain.numpy()
    elif tensor.device.type == "cuda":
        import cupy

        # Torch's interface names no stream, so nobody waits here.
        with cupy.cuda.Device(tensor.device.index):
            array = cupy.asarray(plain)
    else:
        raise SharingError(f"memory of {tensor.device}, which is neither the host's nor a GPU's.")
    return array if kind is None else array.view(kind)


def tensor_of(array: Array, dtype: torch.dtype | None = None) -> torch.Tensor:
    """An array's memory as a tensor, of another type of the same width where one is given.

    Raises `SharingError` where the widths differ, for an array that must not be written, and for one whose
    elements or strides no tensor has: it may not be reversed.
    """
    host = isinstance(array, np.ndarray)
    if host and not array.flags.writeable:
        raise SharingError("an array that must not be written; a tensor always may be.")
    # Torch knows unsigned integers of this width, and can do little with them.
    given = array.view(np.int16) if array.dtype == np.uint16 else array
    try:
        tensor = torch.from_numpy(given) if host else from_dlpack(given)
    except (TypeError, ValueError, RuntimeError, BufferError) as error:
        raise SharingError(f"no tensor is an array of {array.dtype} with strides {array.strides}.") from error
    if dtype is None:
        return tensor
    if dtype.itemsize != tensor.dtype.itemsize:
        raise SharingError(f"{tensor.dtype} as {dtype}: their widths differ.")
    return tensor.view(dtype)


# --- streams ------------------------------------------------------------------------------------


class _Handle:
    """A stream of a torch that doesn't speak CUDA's stream protocol yet. It keeps the stream alive."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, int(self._stream.cuda_stream)


def stream_of(cupy: Any, stream: Any) -> Any:
    """CuPy's object for a stream of torch, or of whoever has `__cuda_stream__` or `cuda_stream`."""
    if hasattr(cupy.cuda.Stream, "from_external"):
        given = stream if hasattr(stream, "__cuda_stream__") else _Handle(stream)
        return cupy.cuda.Stream.from_external(given)
    # Before CuPy 14.
    _, handle = stream.__cuda_stream__() if hasattr(stream, "__cuda_stream__") else (0, stream.cuda_stream)
    return cupy.cuda.ExternalStream(handle)


@contextmanager
def on_stream(cupy: Any, stream: Any = None) -> Iterator[Any]:
    """Kernels are queued on this stream of torch; on its current one, if none is given."""
    shared = stream_of(cupy, torch.cuda.current_stream() if stream is None else stream)
    with shared:
        yield shared


def order(first: Any, second: Any) -> None:
    """What CuPy's stream `second` is given from now on comes after what `first` was given so far."""
    second.wait_event(first.record())
