"""Any object as plain parts: all that it holds, by value, and which of its parts are one object.

What has no explicit form is compared like this: by every field there is, under the names as
they are. So nothing can be forgotten, and less is merged than could be.
"""

from array import array
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from enum import Enum
from functools import cache, partial
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any, Final
from weakref import WeakKeyDictionary

import numpy as np

Plain = Any
"""Numbers, texts, bytes, and tuples of parts."""

_PLAIN: Final = frozenset((bool, int, float, str, bytes, type(None)))
_NAMED: Final = (type, Enum, FunctionType, BuiltinFunctionType)
_KINDS: Final[dict[type, Callable[[Any], Iterable[Any]]]] = {
    list: iter,
    deque: iter,
    set: lambda found: (frozenset(found),),
    dict: lambda found: found.items(),
    OrderedDict: lambda found: found.items(),
    WeakKeyDictionary: lambda found: found.items(),
    array: lambda found: (found.typecode, found.tobytes()),
    MethodType: lambda found: (found.__func__, found.__self__),
    partial: lambda found: (found.func, found.args, found.keywords),
    np.ndarray: lambda found: (found.dtype.str, found.shape, found.tobytes()),
}
"""What those that Python and numpy have hold, in an order that belongs to it."""


def raw(thing: object, without: Iterable[type] = ()) -> Plain:
    """The parts of a thing, but for objects of the types `without`.

    Equal parts say that two things are equal field by field, in the same order, and share what is
    mutable in the same ways. Raises `TypeError` for what has no parts that could be looked at.
    """
    return _raw(thing, frozenset(without), {})


def _raw(thing: Any, without: frozenset[type], seen: dict[int, int]) -> Plain:
    kind = type(thing)
    if kind in _PLAIN:
        return thing
    if kind is tuple:
        return ("()", *[each if type(each) in _PLAIN else _raw(each, without, seen) for each in thing])
    if kind in without:
        return "…"
    if kind is frozenset:
        return ("{}", *sorted([_raw(each, without, seen) for each in thing], key=repr))
    if isinstance(thing, _NAMED):
        return str(thing) if isinstance(thing, Enum) else thing.__qualname__
    if id(thing) in seen:
        return ("→", seen[id(thing)])
    seen[id(thing)] = len(seen)
    parts = _KINDS[kind](thing) if kind in _KINDS else _fields(thing)
    return (
        kind.__qualname__,
        *[each if type(each) in _PLAIN else _raw(each, without, seen) for each in parts],
    )


def _fields(thing: Any) -> Iterable[Any]:
    """An object's attributes with their names, whatever way it keeps them; of a container, its items too."""
    # What is derived from a container holds items and may have attributes beside.
    items = [part for base, parts in _KINDS.items() if isinstance(thing, base) for part in parts(thing)]
    if isinstance(thing, tuple):
        items = [tuple(thing)]
    elif not items and not _open(thing.__class__) and not hasattr(thing, "__dict__"):
        raise TypeError(f"nobody can look into a {type(thing).__qualname__}")
    slots = [(name, getattr(thing, name)) for name in _slots(thing.__class__) if hasattr(thing, name)]
    return [*items, *slots, *getattr(thing, "__dict__", {}).items()]


@cache
def _slots(kind: type) -> tuple[str, ...]:
    names: list[str] = list(getattr(kind, "__struct_fields__", ()))
    for base in kind.__mro__:
        found = vars(base).get("__slots__", ())
        names.extend([found] if isinstance(found, str) else found)
    return tuple(name for name in dict.fromkeys(names) if name not in ("__weakref__", "__dict__"))


def _open(kind: type) -> bool:
    """Whether all that its objects hold has names."""
    return hasattr(kind, "__struct_fields__") or any("__slots__" in vars(base) for base in kind.__mro__)
