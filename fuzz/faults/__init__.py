"""Seeded faults: data, planted into a running implementation and taken out again.

A fault names a function and says what is different in it, either as one text that is
replaced (`find`, which must occur exactly once in the function's source) or as a whole
new `source`. Nothing on disk changes.
"""

import importlib
import inspect
import linecache
import sys
import textwrap
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib import resources
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, Final

import msgspec

from kvproof.spec.oracle import BY_CODE
from kvproof.spec.properties import REFINEMENT

OTHERS: Final = ("corpus.toml", "survivors.toml")
"""Files beside those of faults: the bugs of the corpus, and mutants that nothing kills."""


class FaultError(ValueError):
    """A fault that cannot be read or planted. The message is one sentence."""


class Edit(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A function by its dotted name, and what is different in it."""

    target: str
    find: str = ""
    replace: str = ""
    source: str = ""


class Fault(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A mistake, the clause that it must bring down, and the real bugs that it resembles.

    `also` are further edits that the mistake takes, such as an assertion that shares it.
    """

    id: str
    title: str
    clause: str
    target: str
    find: str = ""
    replace: str = ""
    source: str = ""
    also: tuple[Edit, ...] = ()
    corpus: tuple[str, ...] = ()
    features: tuple[str, ...] = ()

    @property
    def against_policy(self) -> bool:
        """Whether only the comparison with the reference policy is expected to see it."""
        return self.clause in REFINEMENT


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    fault: tuple[Fault, ...]


def parse(text: str, name: str) -> tuple[Fault, ...]:
    """The faults of a TOML text of `[[fault]]` tables. Raises `FaultError`."""
    try:
        faults = msgspec.convert(tomllib.loads(text), _File).fault
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise FaultError(f"{name} is not a file of faults: {error}.") from None
    if not faults:
        raise FaultError(f"{name} holds no fault.")
    ids = [fault.id for fault in faults]
    for fault in faults:
        if ids.count(fault.id) > 1:
            raise FaultError(f"{name} has two faults {fault.id}.")
        if fault.clause not in BY_CODE:
            raise FaultError(f"fault {fault.id} in {name} names no clause: {fault.clause!r}.")
        if any(bool(edit.find) == bool(edit.source) for edit in edits(fault)):
            raise FaultError(f"fault {fault.id} in {name} needs either 'find' and 'replace' or 'source'.")
    return faults


def edits(fault: Fault) -> tuple[Edit, ...]:
    """All edits of a fault."""
    return (Edit(fault.target, fault.find, fault.replace, fault.source), *fault.also)


def seeded() -> tuple[Fault, ...]:
    """The faults that ship with kvproof."""
    files = sorted(resources.files(__name__).iterdir(), key=lambda file: file.name)
    texts = [(file.name, file.read_text()) for file in files if file.name.endswith(".toml")]
    texts = [(name, text) for name, text in texts if name not in OTHERS]
    return tuple(fault for name, text in texts for fault in parse(text, name))


def load(path: Path) -> tuple[Fault, ...]:
    """The faults of a file that ships elsewhere."""
    try:
        return parse(path.read_text(), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise FaultError(f"cannot read {path}: {getattr(error, 'strerror', error)}.") from None


def by_id(name: str) -> Fault:
    """A shipped fault by its id."""
    for fault in seeded():
        if fault.id == name:
            return fault
    raise FaultError(f"there is no seeded fault {name!r}; 'kvproof faults --list' names them.")


@contextmanager
def planted(faults: Sequence[Fault]) -> Iterator[None]:
    """Run with these faults in place, also in modules that have taken a function over by name."""
    # Whoever is imported later would take the fault over and keep it.
    importlib.import_module("kvproof.fuzz.adapters.reference")
    with ExitStack() as stack:
        for fault in faults:
            for edit in edits(fault):
                owner, name = _resolve(fault.id, edit.target)
                original = inspect.getattr_static(owner, name)
                replacement = _rebuild(fault.id, edit, name, original)
                for place in (owner, *_borrowers(original, owner)):
                    stack.callback(setattr, place, name, original)
                    setattr(place, name, replacement)
        yield


def _borrowers(original: object, owner: object) -> list[ModuleType]:
    """The loaded modules that have taken a function over by its name."""
    if not isinstance(owner, ModuleType):
        return []
    name = getattr(original, "__name__", "")
    loaded = [module for path, module in list(sys.modules.items()) if path.startswith("kvproof.")]
    return [module for module in loaded if module is not owner and vars(module).get(name) is original]


def _resolve(fault: str, target: str) -> tuple[Any, str]:
    """The module or class that has the target, and the target's name."""
    parts = target.split(".")
    for cut in range(len(parts) - 1, 0, -1):
        try:
            owner: Any = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        try:
            for part in parts[cut:-1]:
                owner = getattr(owner, part)
            inspect.getattr_static(owner, parts[-1])
        except AttributeError:
            break
        return owner, parts[-1]
    raise FaultError(f"fault {fault}: there is no {target}.")


def _rebuild(fault: str, edit: Edit, name: str, original: Any) -> Any:
    wrapper = type(original) if isinstance(original, staticmethod | classmethod | property) else None
    function = original.fget if isinstance(original, property) else getattr(original, "__func__", original)
    if not isinstance(function, FunctionType):
        raise FaultError(f"fault {fault}: {edit.target} is not a Python function.")
    source = edit.source or _edited(fault, edit, function)
    source = textwrap.dedent(source)
    file = f"<fault {fault} in {edit.target}>"
    # Known to inspect and tracebacks, so that another fault can be planted on top.
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    space: dict[str, Any] = {}
    try:
        exec(compile(source, file, "exec"), function.__globals__, space)
    except SyntaxError as error:
        raise FaultError(f"fault {fault} is not Python: {error.msg}.") from None
    except (Exception, SystemExit) as error:
        what = " ".join(f"{type(error).__name__}: {error}".split())
        raise FaultError(f"fault {fault}: its source cannot be run: {what}.") from None
    made: Any = space.get(name)
    if not (callable(made) or isinstance(made, classmethod | property)):
        raise FaultError(f"fault {fault}: its source does not define {name} as a function.")
    return wrapper(made) if wrapper and not isinstance(made, wrapper) else made


def _edited(fault: str, edit: Edit, function: FunctionType) -> str:
    source = textwrap.dedent(inspect.getsource(function))
    find = textwrap.dedent(edit.find).strip("\n")
    count = source.count(find)
    if count != 1:
        raise FaultError(f"fault {fault}: its text occurs {count} times in {edit.target}, not once.")
    return source.replace(find, textwrap.dedent(edit.replace).strip("\n"))
