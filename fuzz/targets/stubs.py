"""Stub loader: a few modules of a fetched package run for real, everything around them is a stand-in.

A cache manager needs a dozen modules of a package that imports hundreds. A meta-path finder
serves the package with an empty `__init__`, loads the modules that are asked for from the
fetched folder, unpatched, and answers the package's other modules and all third-party ones
with stand-ins. A module that the release lacks is an ImportError, as it would be in reality.

Stand-ins replace third-party modules for the package's imports only, also installed ones:
what the package sees does not depend on what else is installed. One release per process.
"""

import importlib
import importlib.util
import re
import sys
import threading
import types
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any, Final, NoReturn

from kvproof.fuzz.targets import TargetError

KEPT: Final = ("kvproof", "msgspec", "numpy", "typing_extensions")
"""Besides the standard library, what a package gets for real: light, and installed with kvproof."""


class _Base:
    """The base class of a class that inherits from a stand-in."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        return None

    def __init_subclass__(cls, **kwargs: object) -> None:
        return None


class StandIn:
    """Usable as base, decorator, callable, type argument, module attribute; false, empty, no number.

    Attributes are stand-ins, one per name. A call with one class or function gives that back,
    any other call a stand-in. Nothing is an instance of it.
    """

    def __init__(self, name: str) -> None:
        self.__name__ = self.__qualname__ = name

    def __getattr__(self, name: str) -> "StandIn":
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        made = StandIn(f"{self.__name__}.{name}")
        setattr(self, name, made)
        return made

    def __call__(self, *args: object, **kwargs: object) -> object:
        if len(args) == 1 and not kwargs and isinstance(args[0], type | types.FunctionType | classmethod):
            return args[0]
        return self

    def __mro_entries__(self, bases: tuple[object, ...]) -> tuple[type, ...]:
        first = next(base for base in bases if isinstance(base, StandIn))
        real = any(isinstance(base, type) for base in bases)
        return (_Base,) if first is self and not real else ()

    def __instancecheck__(self, instance: object) -> bool:
        return False

    def __subclasscheck__(self, subclass: type) -> bool:
        return False

    def __getitem__(self, key: object) -> "StandIn":
        return self

    def __or__(self, other: object) -> object:
        return Any

    __ror__ = __or__

    def __bool__(self) -> bool:
        return False

    def __iter__(self) -> Iterator[object]:
        return iter(())

    def __contains__(self, key: object) -> bool:
        return False

    def __enter__(self) -> "StandIn":
        return self

    def __exit__(self, *exc: object) -> None:
        return None

    def __lt__(self, other: object) -> bool:
        return False

    __le__ = __gt__ = __ge__ = __lt__

    def __repr__(self) -> str:
        return f"<stand-in {self.__name__}>"


class StandInModule(types.ModuleType):
    """A module whose attributes are stand-ins, or submodules that were imported."""

    __version__ = "0"

    def __getattr__(self, name: str) -> object:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        made = StandIn(f"{self.__name__}.{name}")
        setattr(self, name, made)
        return made


class _StandInLoader(Loader):
    def create_module(self, spec: ModuleSpec) -> types.ModuleType:
        return StandInModule(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        return None


class Finder(MetaPathFinder):
    """Answers for one package for good, and for third-party modules while `importing`."""

    def __init__(self, folder: Path, package: str, wanted: Sequence[str], native: Sequence[str]) -> None:
        self.folder, self.package = folder, package
        self._wanted = re.compile("|".join(f"(?:{pattern})" for pattern in wanted))
        self._native = frozenset(native)
        self._thread: int | None = None

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> ModuleSpec | None:
        top = _top(name)
        if top == self.package:
            return self._own(name)
        if self._thread != threading.get_ident() or self.kept(top):
            return None
        return ModuleSpec(name, _StandInLoader(), is_package=True)

    def kept(self, top: str) -> bool:
        """Whether a top-level module is left alone."""
        return top in sys.stdlib_module_names or top in KEPT or top == self.package

    def _own(self, name: str) -> ModuleSpec | None:
        base = self.folder.joinpath(*name.split("."))
        package, module = base / "__init__.py", base.with_suffix(".py")
        source = package if package.exists() else module if module.exists() else None
        if source is not None and self._wanted.fullmatch(name):
            places = [str(base)] if source is package else None
            return importlib.util.spec_from_file_location(name, source, submodule_search_locations=places)
        if source is None and not base.is_dir() and name not in self._native:
            return None
        spec = ModuleSpec(name, _StandInLoader(), is_package=source is not module)
        if spec.submodule_search_locations is not None:
            spec.submodule_search_locations.append(str(base))
        return spec

    @contextmanager
    def importing(self) -> Iterator[None]:
        """Inside, this thread's third-party imports are stand-ins; outside, all is as before."""
        hidden = {name: sys.modules[name] for name in list(sys.modules) if _top(name) in _HIDDEN}
        for name in hidden:
            del sys.modules[name]
        self._thread = threading.get_ident()
        try:
            yield
        finally:
            self._thread = None
            for name in [name for name, module in sys.modules.items() if self._is_foreign(name, module)]:
                del sys.modules[name]
            sys.modules.update(hidden)

    def _is_foreign(self, name: str, module: object) -> bool:
        return isinstance(module, StandInModule) and _top(name) not in _loaded


def _top(name: str) -> str:
    return name.partition(".")[0]


_HIDDEN: Final = frozenset({"torch", "transformers", "packaging", "regex", "psutil", "pydantic", "triton"})
"""Third-party modules that may be loaded already, and are hidden from a package all the same."""

_loaded: dict[str, Finder] = {}


def load(
    folder: Path, package: str, wanted: Sequence[str], modules: Sequence[str], native: Sequence[str] = ()
) -> dict[str, types.ModuleType]:
    """Import `modules` of the package that lies in `folder`, by name.

    `wanted` are patterns of module names that run for real; `native` are compiled modules that
    the release has. A module that the release lacks is left out. Raises `TargetError` for a
    second release of one package, and where a module cannot be loaded.
    """
    finder = _loaded.get(package)
    if finder is None:
        if package in sys.modules:
            raise TargetError(f"{package} is loaded already from elsewhere; use a process of its own.")
        finder = _loaded[package] = Finder(folder, package, wanted, native)
        sys.meta_path.insert(0, finder)
    elif finder.folder != folder:
        raise TargetError(
            f"one release of {package} per process: this one has loaded {finder.folder.name}, "
            f"not {folder.name}."
        )
    found = {}
    with finder.importing():
        for name in modules:
            try:
                found[name] = importlib.import_module(name)
            except Exception as error:
                if not (isinstance(error, ModuleNotFoundError) and error.name == name):
                    _fail(folder, name, error)
    return found


def _fail(folder: Path, name: str, error: Exception) -> NoReturn:
    reason = f"{type(error).__name__}: {error}".rstrip(".")
    raise TargetError(f"{name} of {folder.name} cannot be loaded: {reason}.") from error
