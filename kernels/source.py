"""The device source as text, and what the host must know of it: its kernels and their parameters."""

import re
from collections.abc import Mapping
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Final, NamedTuple

FOLDER: Final = Path(__file__).parent
PARTS: Final = ("kv_kernels.cu", "kv_moves.cu", "kv_slots.cu", "kv_numbers.cu", "kv_attention.cu")
"""In the order in which they are one source."""

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
    addresses: frozenset[str] = frozenset()
    """All that hold an address."""


def read_source() -> str:
    """The source that every build is made from: all parts as one text."""
    return "\n".join((FOLDER / part).read_text(encoding="utf-8") for part in PARTS)


def source_hash() -> str:
    """What an artefact says that it was made from."""
    return sha256(read_source().encode()).hexdigest()


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
            addresses = frozenset(field for field, kind in kinds.items() if kind.endswith("*"))
            found[name] = Signature(tuple(kinds), floating, bool(barriers), constant, addresses)
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
