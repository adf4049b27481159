"""Copies of a session: frozen to bytes, thawed into a session that goes on where it was.

Everything that an object of a session holds is copied, whatever it is, but for what no
operation changes. The history is left out: who explores keeps it once, as a tree.
"""

import copyreg
import io
import pickle
import sys
from collections.abc import Iterable, Iterator
from dataclasses import is_dataclass
from types import BuiltinFunctionType, FunctionType
from typing import Any, Final
from weakref import WeakKeyDictionary

from kvproof.fuzz.contents import Contents
from kvproof.fuzz.device import Digests
from kvproof.fuzz.session import Session
from kvproof.spec.clauses import Clause

PROTOCOL: Final = 3
"""The newest pickle protocol that says where in the memo an object goes: later ones only count, and
CPython's unpickler counts from 0 whatever its memo holds already."""


def _weakly(kept: Any) -> tuple[Any, ...]:
    return WeakKeyDictionary, (), None, None, iter(kept.items())


class _Pickler(pickle.Pickler):
    """Knows how to copy what is kept by weak references: whoever else holds a key is copied as well."""

    dispatch_table = copyreg.dispatch_table | {WeakKeyDictionary: _weakly}


class Freezer:
    """Freezes and thaws copies of one session, which must not have begun. They share `constants`, too.

    Sharing goes by the memo of the pickle format, the first places of which the shared objects
    take on both sides.
    """

    def __init__(self, session: Session, constants: Iterable[object] = ()) -> None:
        shared = _distinct((*_shared(session), *_named(session), *constants))
        self._ending = _Pickler(io.BytesIO(), PROTOCOL)
        self._ending.memo = _memo(shared)
        # A pickle that fetches each shared object, memoizes it and drops it again.
        fetch = [b"M%bQr%b0" % (n.to_bytes(2, "little"), n.to_bytes(4, "little")) for n in range(len(shared))]
        self._beginning = pickle.Unpickler(io.BytesIO(b"\x80\x03%bN." % b"".join(fetch)))
        self._beginning.persistent_load = shared.__getitem__  # type: ignore[method-assign]
        self._beginning.load()

    def freeze(self, session: Session) -> bytes:
        """The session as bytes, without its history."""
        file = io.BytesIO()
        pickler = _Pickler(file, PROTOCOL)
        pickler.memo = self._ending.memo
        pickler.dump({name: value for name, value in vars(session).items() if name != "operations"})
        return file.getvalue()

    def thaw(self, data: bytes) -> Session:
        """A session of its own that has the frozen one's future, and no history."""
        # Buffered: from a file that can't be peeked into, bytes are read one by one.
        unpickler = pickle.Unpickler(io.BufferedReader(io.BytesIO(data)))
        unpickler.memo = self._beginning.memo
        session = object.__new__(Session)
        vars(session).update(unpickler.load(), operations=[])
        return session


def _distinct(objects: Iterable[Any]) -> list[Any]:
    return list({id(each): each for each in objects}.values())


def _memo(shared: Iterable[Any]) -> dict[int, tuple[int, Any]]:
    return {id(each): (place, each) for place, each in enumerate(shared)}


def _shared(session: Session) -> Iterator[Any]:
    """What all copies share: constants, the interner of claims, which only ever grows, and the counts of
    operations and situations, which so are those of all copies."""
    oracle = session.oracle
    yield from (session.config, session.capabilities, oracle.state.claims, oracle.ignore)
    yield from (oracle.operations, oracle.watch)
    yield from (value for value in vars(oracle).values() if _holds_clauses(value))
    # Whoever watches the session watches all copies.
    yield from (value for value in vars(session).values() if callable(value))
    for name, module in list(sys.modules.items()):
        if name.startswith(("kvproof.spec.", "kvproof.impl.")):
            yield from _constants(vars(module).values())


def _holds_clauses(value: object) -> bool:
    """Whether a container is one of clauses, or of such containers by operation."""
    while isinstance(value, dict | list | tuple) and value:
        value = next(iter(value.values() if isinstance(value, dict) else value))
    return isinstance(value, Clause)


def _constants(values: Iterable[object]) -> Iterator[object]:
    """Types, with the names of what their objects have, and frozen values."""
    for value in values:
        if isinstance(value, type):
            yield value
            yield from copyreg._slotnames(value)  # type: ignore[attr-defined]
        elif is_dataclass(value) and getattr(value, "__dataclass_params__").frozen:  # noqa: B009
            yield value


def _named(session: Session) -> Iterator[Any]:
    """Types, functions and strings of a session that has done nothing: every copy has them. And what is
    remembered of claims and the words that they demand: it is so in every copy."""
    pickler = _Pickler(io.BytesIO(), PROTOCOL)
    pickler.memo = _memo(_distinct(_shared(session)))
    pickler.dump(vars(session))
    for _, each in pickler.memo.copy().values():
        if isinstance(each, type | str | BuiltinFunctionType | FunctionType | Digests | Contents):
            yield each
