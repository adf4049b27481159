"""A backend by its name, and what is said where it can't be had."""

from collections.abc import Callable
from typing import Final

from kvproof.kernels.backends.base import Backend
from kvproof.kernels.backends.checked_backend import CheckedBackend
from kvproof.kernels.backends.cpu_backend import CpuBackend
from kvproof.kernels.backends.cupy_backend import CupyBackend
from kvproof.kernels.backends.numpy_backend import NumpyBackend
from kvproof.kernels.builds import AbsentError

NAMES: Final = ("numpy", "cpu", "cpu-checked", "cuda")


def choose(name: str, say: Callable[[str], None]) -> Backend:
    """The backend of this name. Without a compiler it is numpy, and one line says so.

    Raises `BuildError` where the compiler refuses the source or doesn't let accesses be watched, and for
    `cuda` where CuPy, a GPU or NVRTC is missing: who asks for a device means it.
    """
    if name not in NAMES:
        raise ValueError(f"{name!r} is none of {', '.join(NAMES)}.")
    if name == "numpy":
        return NumpyBackend()
    if name == "cuda":
        return CupyBackend()
    try:
        return CpuBackend() if name == "cpu" else CheckedBackend()
    except AbsentError as error:
        say(f"device: numpy instead of {name}: {error}")
        return NumpyBackend()
