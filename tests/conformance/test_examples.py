"""The example allocators in C++ and Rust: built here, they hold, and their seeded faults are found."""

import hashlib
import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from kvproof.fuzz import cases
from kvproof.fuzz.engines.soak import Result, soak
from kvproof.fuzz.shrink import shrink
from kvproof.fuzz.targets import make_adapter
from kvproof.fuzz.targets.process import IDLE

EXAMPLES = Path(__file__).parents[1] / "examples"
RUST = EXAMPLES / "rust_allocator"
SOURCES = {
    "C++": (EXAMPLES / "allocator.cpp",),
    "Rust": (RUST / "Cargo.toml", RUST / "src/main.rs"),
}
TOOLS = {"C++": "g++", "Rust": "cargo"}
CLAUSES = {
    # A recycled block is still hit under its old key: its content is another's, or not yet anybody's.
    "C++": {"KV-I2-hit", "KV-I6-hit", "KV-I2-write"},
    # A block is free while it is held: it is handed out again, to somebody else or to its holder.
    "Rust": {"KV-I1-exclusive", "KV-I1-twice"},
}
OPERATIONS = 2_000


def compile_cpp(folder: Path) -> Path:
    program = folder / "allocator"
    flags = ("-O2", "-std=c++17", "-Wall", "-Wextra", "-Werror")
    subprocess.run(["g++", *flags, "-o", program, *SOURCES["C++"]], check=True, timeout=100)
    return program


def compile_rust(folder: Path) -> Path:
    # Cargo writes beside the sources.
    shutil.copytree(RUST, folder / "source")
    words = ["cargo", "build", "--offline", "--release", "--quiet", "--target-dir", str(folder / "target")]
    environment = {**os.environ, "RUSTFLAGS": "-D warnings"}
    subprocess.run(words, cwd=folder / "source", check=True, timeout=100, env=environment)
    return folder / "target/release/rust_allocator"


COMPILERS: dict[str, Callable[[Path], Path]] = {"C++": compile_cpp, "Rust": compile_rust}


@pytest.fixture(scope="module", params=SOURCES)
def example(request: pytest.FixtureRequest) -> tuple[str, str]:
    """A language and the target of its allocator; what was built once is kept by the sources' content."""
    language: str = request.param
    if shutil.which(TOOLS[language]) is None:
        pytest.skip(f"there is no {TOOLS[language]}")
    content = hashlib.sha256(Path(__file__).read_bytes())
    for source in SOURCES[language]:
        content.update(source.read_bytes())
    cache = request.config.cache
    assert cache is not None, "pytest runs with its cache"
    program = cache.mkdir("examples") / f"{TOOLS[language]}-{content.hexdigest()[:16]}"
    if not program.exists():
        with tempfile.TemporaryDirectory(dir=program.parent) as folder:
            # Workers build side by side; the last one that is done replaces the same program.
            os.replace(COMPILERS[language](Path(folder)), program)
    return language, f"cmd:{shlex.quote(str(program))}"


@pytest.fixture(scope="module", autouse=True)
def processes():
    """None is left behind."""
    yield
    IDLE.stop()


def run(target: str, seed: int) -> Result:
    return soak(OPERATIONS, seed, adapter=lambda: make_adapter(target))


def faulty_cases(target: str) -> list[cases.Case]:
    """What each of five seeds finds in the faulty allocator."""
    found = [run(f"{target} --fault", seed).case for seed in range(5)]
    return [case for case in found if case is not None]


@pytest.mark.parametrize("seed", [1, 2])
def test_an_example_holds(example, seed):
    result = run(example[1], seed)
    assert result.case is None and result.operations >= OPERATIONS


def test_its_fault_is_found(example):
    language, target = example
    found = faulty_cases(target)
    assert len(found) == 5 and {case.expected.clause for case in found} <= CLAUSES[language]


def test_its_fault_shrinks_to_a_short_case_that_the_right_one_passes(example):
    language, target = example
    small = shrink(min(faulty_cases(target), key=lambda case: len(case.operations)))
    assert small.expected.clause in CLAUSES[language] and len(small.operations) <= 20
    assert cases.replay(small).recurs(small)
    right = msgspec.structs.replace(small, target=target, expected=cases.Expected("holds"))
    assert cases.replay(right).recurs(right)


@pytest.mark.parametrize("language", SOURCES)
def test_an_example_is_short(language):
    lines = SOURCES[language][-1].read_text(encoding="utf-8").splitlines()
    assert 0 < len(lines) < 150 and max(map(len, lines)) <= 120
