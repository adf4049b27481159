"""The device source as text, and what the host must know of it: its kernels and their parameters."""

import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Final, NamedTuple

SOURCE: Final = Path(__file__).with_name("kv_kernels.cu")

_STRUCT: Final = re.compile(r"^struct (\w+) \{\n(.*?)^\};", re.MULTILINE | re.DOTALL)
_FIELD: Final = re.compile(r"^    (.+?)(\w+);$")
_KERNEL: Final = re.compile(r"^(BLOCK_)?KERNEL\((\w+), (\w+)\)", re.MULTILINE)


class Signature(NamedTuple):
    """A kernel's parameters: one struct whose fields are all 8 bytes wide, in this order.

    `floating` are those that hold a double; all others hold an integer or an address.
    """

    fields: tuple[str, ...]
    floating: frozenset[str]
    barriers: bool
    """Whether its threads wait for each other."""
    constant: frozenset[str] = frozenset()
    """Addresses that are only read from."""


def read_source() -> str:
    """The source that every build is made from."""
    return SOURCE.read_text(encoding="utf-8")


@lru_cache(maxsize=8)
def signatures(source: str) -> Mapping[str, Signature]:
    """Every kernel of a source. Raises `ValueError` for one whose parameters can't be packed."""
    bodies = dict(_STRUCT.findall(source))
    found = {}
    for barriers, name, params in _KERNEL.findall(source):
        # The macros are defined with a parameter of this name.
        if params != "Params":
            kinds = _fields(params, bodies[params])
            floating = frozenset(field for field, kind in kinds.items() if kind == "f64")
            constant = frozenset(field for field, kind in kinds.items() if kind.startswith("const "))
            found[name] = Signature(tuple(kinds), floating, bool(barriers), constant)
    if not found:
        raise ValueError("a source without kernels.")
    return found


def _fields(name: str, body: str) -> dict[str, str]:
    lines = [_FIELD.match(line) for line in body.splitlines()]
    if not all(lines):
        raise ValueError(f"a line of {name} is no field.")
    kinds = {line[2]: line[1].strip() for line in lines if line}
    if wrong := [f"{kind} {field}" for field, kind in kinds.items() if not _is_wide(kind)]:
        raise ValueError(f"fields of {name} that aren't 8 bytes wide: {', '.join(wrong)}.")
    return kinds


def _is_wide(kind: str) -> bool:
    return kind in ("i64", "u64", "f64") or kind.endswith("*")
