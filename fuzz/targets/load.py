"""Loading: single modules of a fetched package, apart from everything that is installed.

A released package seldom imports here: its `__init__` wants a tokenizer, a server, a GPU.
`load` takes the few modules that hold the allocator. The packages above them are empty,
what the modules import of their own package is read from the same folder, and what is
named as absent is replaced by a module of empty classes. Afterwards `sys.modules` is as
it was, so two releases of one package can stand side by side.

A module that is loaded so can't import later, inside a function: it finds what is installed.
"""

import importlib
import importlib.machinery
import importlib.util
import re
import sys
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from kvproof.fuzz.targets import TargetError

PREFIX: Final = "loaded"
"""Loaded modules stay importable as `loaded.<folder>.<module>`: that is how a fault names them."""

_LOCK: Final = threading.RLock()


class Absent(ModuleType):
    """Stands for a module that is not here: every name is an empty class, fit for imports and annotations."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__ = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        made = type(name, (), {"__module__": self.__name__})
        setattr(self, name, made)
        return made


def module(name: str, **attributes: Any) -> ModuleType:
    """A module made of these attributes, to be given in place of one."""
    made = ModuleType(name)
    made.__dict__.update(attributes)
    return made


def load(
    folder: Path,
    names: Sequence[str],
    *,
    absent: Collection[str] = (),
    given: Mapping[str, ModuleType] | None = None,
) -> list[ModuleType]:
    """The named modules of the package in `folder`, in order.

    `absent` are modules, with all below them, that are replaced by `Absent` ones; `given` replaces
    single modules. Both may belong to the package or to others. Raises `TargetError`.
    """
    finder = _Finder(folder, names, absent, dict(given or {}))
    with _LOCK, _apart(finder):
        try:
            loaded = [importlib.import_module(name) for name in names]
        except Exception as error:
            reason = f"{type(error).__name__}: {error}".rstrip(".")
            raise TargetError(f"{', '.join(names)} cannot be loaded from {folder}: {reason}.") from error
        alias = f"{PREFIX}.{re.sub(r'[^0-9A-Za-z_]', '_', folder.name)}"
        own = {name: each for name, each in sys.modules.items() if finder.belongs(name)}
    sys.modules.update({f"{alias}.{name}": each for name, each in own.items()})
    return loaded


@contextmanager
def _apart(finder: "_Finder") -> Iterator[None]:
    """Import through `finder` first, and forget afterwards what came through it."""
    saved = {name: each for name, each in sys.modules.items() if finder.owns(name)}
    for name in saved:
        del sys.modules[name]
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name in [name for name in sys.modules if finder.owns(name)]:
            del sys.modules[name]
        sys.modules.update(saved)


class _Finder(MetaPathFinder):
    """Finds what a load may see of the package and of everything that is replaced."""

    def __init__(
        self, folder: Path, names: Sequence[str], absent: Collection[str], given: dict[str, ModuleType]
    ) -> None:
        self._folder = folder
        self._absent = tuple(absent)
        self._given = given
        self._tops = {name.partition(".")[0] for name in names}
        self._above = {name[: match.start()] for name in names for match in re.finditer(r"\.", name)}

    def belongs(self, name: str) -> bool:
        """Whether a module of this name is of the package."""
        return name.partition(".")[0] in self._tops

    def owns(self, name: str) -> bool:
        """Whether a module of this name comes from here."""
        return self.belongs(name) or name in self._given or self._is_absent(name)

    def _is_absent(self, name: str) -> bool:
        return any(name == each or name.startswith(each + ".") for each in self._absent)

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name in self._given:
            return _ready(name, self._given[name])
        if self._is_absent(name):
            return _ready(name, Absent(name))
        if not self.belongs(name):
            return None
        place = self._folder.joinpath(*name.split("."))
        if name in self._above:
            spec = _ready(name, ModuleType(name))
            spec.submodule_search_locations = [str(place)]
            return spec
        return importlib.machinery.PathFinder.find_spec(name, [str(place.parent)])


class _Ready(Loader):
    """Gives a module that exists already."""

    def __init__(self, ready: ModuleType) -> None:
        self._module = ready

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        return None


def _ready(name: str, made: ModuleType) -> importlib.machinery.ModuleSpec:
    return importlib.machinery.ModuleSpec(name, _Ready(made), is_package=True)
