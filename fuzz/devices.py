"""Where the devices of this process run: one backend for all of them, `cpu` unless somebody says otherwise.

Results don't depend on it: every backend is compared with the plain one in numpy. A backend serves
one thread, and so do the devices of a process.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Final

from kvproof.kernels.backends.base import Backend
from kvproof.kernels.backends.choose import NAMES, choose
from kvproof.kernels.builds import BuildError

__all__ = ["DEFAULT", "NAMES", "DeviceError", "current", "make", "using"]

DEFAULT: Final = "cpu"

_chosen: list[Backend] = []
"""The innermost choice comes last."""


class DeviceError(ValueError):
    """A device that can't be had on this machine. The message is one sentence."""


def _say(line: str) -> None:
    print(f"kvproof: {line}", file=sys.stderr)


def make(name: str, say: Callable[[str], None] = _say) -> Backend:
    """A backend by name; without a compiler it is numpy, and one line says so.

    Compiles the kernels where nobody has yet, which takes seconds. Raises `DeviceError` for `cuda`
    where there is none, and where the kernels can't be compiled, watched or loaded.
    """
    try:
        return choose(name, say)
    except BuildError as error:
        raise DeviceError(f"there is no device {name} here: {str(error).splitlines()[0]}") from None
    except OSError as error:
        raise DeviceError(f"there is no device {name} here: {error}.") from None


@cache
def _default() -> Backend:
    return make(DEFAULT)


def current() -> Backend:
    """What new devices run on."""
    return _chosen[-1] if _chosen else _default()


@contextmanager
def using(backend: Backend) -> Iterator[Backend]:
    """Devices that are made within the block run on this backend."""
    _chosen.append(backend)
    try:
        yield backend
    finally:
        _chosen.pop()
