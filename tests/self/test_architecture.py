"""Who may import whom, read from every import statement in the source folders."""

import ast
import importlib.util
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("spec", "impl", "kernels", "fuzz")

# What a folder may import of ours. A prefix covers everything below it.
ALLOWED = {
    "spec": ("kvproof.spec",),
    "impl": ("kvproof.impl", "kvproof.spec.vocabulary"),
    "kernels": ("kvproof.kernels",),
    "fuzz": ("kvproof",),
    "tests": ("kvproof",),
}
# The specification is pure: no I/O, clock or randomness.
IMPURE = ("random", "secrets", "time", "datetime", "os", "pathlib", "io", "shutil", "tempfile", "subprocess")
PROVERS = ("kvproof.spec.theorems", "kvproof.fuzz.engines")


def under(name: str, *prefixes: str) -> bool:
    return any(name == prefix or name.startswith(prefix + ".") for prefix in prefixes)


def module_name(path: Path, root: Path) -> str:
    """The dotted name of a file as installed: fuzz/api is the root package itself."""
    parts = path.relative_to(root).with_suffix("").parts
    if parts[0] == "tests":
        return ".".join(parts)
    parts = parts[2:] if parts[:2] == ("fuzz", "api") else parts
    return ".".join(("kvproof", *parts))


def source_files(root: Path, folder: str) -> list[Path]:
    files = sorted((root / folder).rglob("*.py"))
    if not files:
        raise ValueError(f"no modules under {folder}: nothing would be checked")
    return files


def imported_names(module: str, source: str) -> Iterator[str]:
    """Every name that the source imports, in full. `module` ends in __init__ for a package."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=base, names=names, level=level):
                parents = module.split(".")[:-level] if level else []
                origin = [*parents, *([base] if base else [])]
                yield from (".".join([*origin, alias.name]) for alias in names)
            case ast.Call(
                func=ast.Attribute(attr="import_module") | ast.Name(id="import_module" | "__import__"),
                args=[ast.Constant(value=str(name)), *_],
            ):
                yield name


def breach(folder: str, module: str, name: str) -> str | None:
    """Why this module may not import this name, or None."""
    if under(name, *FOLDERS):
        return "bare import of a source folder"
    if under(name, "tests"):
        return "nothing imports tests"
    if under(name, "kvproof") and not under(name, *ALLOWED[folder]):
        return f"{folder} may import of ours only {', '.join(ALLOWED[folder])}"
    if folder == "spec" and under(name, *IMPURE):
        return "spec is pure"
    if folder != "tests" and under(name, "z3") and not under(module, *PROVERS):
        return f"z3 is imported only under {' and '.join(PROVERS)}"
    return None


def breaches(folder: str, module: str, source: str) -> list[str]:
    found = ((name, breach(folder, module, name)) for name in imported_names(module, source))
    return [f"{module} imports {name}: {why}" for name, why in found if why]


@pytest.mark.parametrize("folder", ALLOWED)
def test_imports_keep_to_the_architecture(folder):
    found = [
        line
        for path in source_files(ROOT, folder)
        for line in breaches(folder, module_name(path, ROOT), path.read_text(encoding="utf-8"))
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("folder", "module", "source", "why"),
    [
        ("spec", "kvproof.spec.state", "import kvproof.impl.block", "spec may import"),
        ("spec", "kvproof.spec.state", "import kvproof", "spec may import"),
        ("spec", "kvproof.spec.kinds.full", "from ...impl import block", "spec may import"),
        ("spec", "kvproof.spec.kinds.__init__", "from ...impl import block", "spec may import"),
        ("spec", "kvproof.spec.state", "def f():\n    from time import monotonic", "spec is pure"),
        ("spec", "kvproof.spec.theorems.sizes", "import os.path", "spec is pure"),
        ("spec", "kvproof.spec.state", "import z3", "z3 is imported only"),
        ("kernels", "kvproof.kernels.words", "from kvproof.spec import vocabulary", "kernels may import"),
        ("impl", "kvproof.impl.block", "from kvproof.spec import state", "impl may import"),
        ("impl", "kvproof.impl.block", "from kvproof.spec import *", "impl may import"),
        ("impl", "kvproof.impl.block", "from kvproof import spec", "impl may import"),
        ("impl", "kvproof.impl.block", "from ..spec.state import State", "impl may import"),
        ("impl", "kvproof.impl.block", "import kvproof.spec.vocabulary_extra", "impl may import"),
        ("impl", "kvproof.impl.block", "if TYPE_CHECKING:\n    import kvproof.fuzz", "impl may import"),
        ("impl", "kvproof.impl.block", "importlib.import_module('z3')", "z3 is imported only"),
        ("fuzz", "kvproof.fuzz.session", "from z3 import Int", "z3 is imported only"),
        ("fuzz", "kvproof.fuzz.session", "from spec.state import State", "bare import"),
        ("fuzz", "kvproof.fuzz.session", "import numpy, impl", "bare import"),
        ("fuzz", "kvproof.fuzz.session", "import tests.conftest", "nothing imports tests"),
        ("tests", "tests.unit.test_block", "from tests.conftest import common", "nothing imports tests"),
        ("tests", "tests.unit.test_block", "import kernels.words", "bare import"),
    ],
)
def test_a_bad_import_is_reported(folder, module, source, why):
    [line] = breaches(folder, module, source)
    assert line.startswith(f"{module} imports ") and why in line


@pytest.mark.parametrize(
    ("folder", "module", "source"),
    [
        ("spec", "kvproof.spec.kinds.full", "from ..vocabulary import BlockId\nimport dataclasses"),
        ("spec", "kvproof.spec.__init__", "from . import state\nfrom .state import State"),
        ("spec", "kvproof.spec.theorems.symbolic", "import z3"),
        ("impl", "kvproof.impl.block", "from kvproof.spec.vocabulary import BlockId\nimport timeit"),
        ("impl", "kvproof.impl.block", "from kvproof.spec import vocabulary"),
        ("fuzz", "kvproof.fuzz.engines.solve", "import z3\nimport kvproof.spec.oracle, kvproof.impl.manager"),
    ],
)
def test_a_good_import_is_not_reported(folder, module, source):
    assert breaches(folder, module, source) == []


def test_an_empty_folder_is_an_error(tmp_path):
    (tmp_path / "spec").mkdir()
    with pytest.raises(ValueError, match="nothing would be checked"):
        source_files(tmp_path, "spec")


def test_files_are_named_as_installed():
    assert module_name(ROOT / "fuzz/api/__init__.py", ROOT) == "kvproof.__init__"
    assert module_name(ROOT / "fuzz/cli/__init__.py", ROOT) == "kvproof.fuzz.cli.__init__"
    assert module_name(ROOT / "spec/state.py", ROOT) == "kvproof.spec.state"


def test_every_package_folder_is_listed():
    listed = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"])
    inits = [path for folder in FOLDERS for path in source_files(ROOT, folder) if path.name == "__init__.py"]
    assert {module_name(path, ROOT).removesuffix(".__init__") for path in inits} == listed


def test_no_folder_is_importable_by_its_bare_name():
    found = [folder for folder in FOLDERS if importlib.util.find_spec(folder)]
    assert not found, f"{found} are importable bare: run the pytest executable, not python -m pytest"


def loaded_by(statement: str) -> set[str]:
    """The top-level modules that a fresh interpreter holds after the statement."""
    code = f"{statement}\nimport sys\nprint(*{{name.partition('.')[0] for name in sys.modules}})"
    # -P keeps the working folder off the path.
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_the_manager_loads_no_heavy_module():
    assert not loaded_by("import kvproof.impl.manager") & {"torch", "cupy", "z3"}


def test_a_heavy_module_would_be_seen():
    assert "z3" in loaded_by("import z3")
