"""Targets: allocators under test, by name.

`reference`, `vllm==0.27.0`, `python:package.module:Class`, `cmd:./my-allocator --flag`:
a family, and what the family makes of the rest. A family is one function that gives an
adapter; it is imported when it is asked for, so that nobody's packages load otherwise.
"""

import importlib
import re
from collections.abc import Callable
from typing import Final, cast

from kvproof.fuzz.adapters.port import Adapter


class TargetError(ValueError):
    """A target that cannot be had. The message is one sentence."""


class TargetSkipped(TargetError):
    """A target that cannot run here for a reason that is nobody's fault: no compiler, no package."""


FAMILIES: Final = {
    "reference": "kvproof.fuzz.adapters.reference:target",
    "variant": "kvproof.fuzz.adapters.variants:target",
    "vllm": "kvproof.fuzz.adapters.vllm:target",
    "tokasaurus": "kvproof.fuzz.adapters.tokasaurus:target",
    "nano-vllm-voxcpm": "kvproof.fuzz.adapters.voxcpm:target",
    "transformers": "kvproof.fuzz.adapters.transformers:target",
    "python": "kvproof.fuzz.targets.python:target",
    "cmd": "kvproof.fuzz.adapters.stdio:target",
}
"""Family → `module:function`; the function takes what follows the family's name, `==` or `:`."""


def split(target: str) -> tuple[str, str]:
    """A target's family and the rest. Raises `TargetError`."""
    match = re.fullmatch(r"([a-z][a-z0-9-]*)(?:==|:|$)(.*)", target, re.DOTALL)
    if match is None or match[1] not in FAMILIES:
        raise TargetError(f"there is no target {target!r}; families are {', '.join(FAMILIES)}.")
    if match[1] == "cmd" and not match[2].strip():
        raise TargetError("a command is needed: cmd:./my-allocator --flag.")
    return match[1], match[2]


def named(target: str) -> None:
    """Raise `TargetError` for a name that can't be a target's, before anything is fetched or started."""
    family, rest = split(target)
    if family == "variant":
        make_adapter(target)
    elif family not in ("reference", "python", "cmd") and rest:
        from kvproof.fuzz.targets.fetch import parse

        parse(f"{family}=={rest.partition('+')[0]}")


def make_adapter(target: str) -> Adapter:
    """A fresh adapter for a target. Raises `TargetError`."""
    family, rest = split(target)
    module, function = FAMILIES[family].split(":")
    make = cast(Callable[[str], Adapter], getattr(importlib.import_module(module), function))
    adapter = make(rest)
    adapter.name = target
    return adapter
