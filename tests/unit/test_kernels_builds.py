"""Builds are kept by what they were made from; signatures and faults are those of the source."""

import subprocess
import sys
from collections.abc import Callable
from functools import partial

import pytest

from kvproof.kernels import builds, source
from kvproof.kernels.faults import Fault, all_faults, of_gate
from kvproof.kernels.misuses import MISUSES

TINY = (
    "struct Params1 {\n    i64 count;\n    f64 scale;\n    const u8* bytes;\n};\nKERNEL(tiny, Params1) { }\n"
)
needs_compiler = pytest.mark.skipif(builds.compiler() is None, reason="no C++ compiler")


@pytest.fixture
def folder(monkeypatch, tmp_path):
    monkeypatch.setenv("KVPROOF_KERNEL_CACHE", str(tmp_path))
    prelude = tmp_path / "prelude.h"
    prelude.write_text("// nothing\n")
    return tmp_path


@needs_compiler
def test_an_artefact_is_made_once_and_again_when_anything_differs(folder):
    prelude = folder / "prelude.h"
    first = builds.build("int a;", prelude, ("-fPIC",))
    made = first.stat().st_mtime_ns
    assert builds.build("int a;", prelude, ("-fPIC",)) == first
    assert first.stat().st_mtime_ns == made
    others = {
        builds.build("int b;", prelude, ("-fPIC",)),
        builds.build("int a;", prelude, ("-fPIC", "-O1")),
    }
    prelude.write_text("// something\n")
    others.add(builds.build("int a;", prelude, ("-fPIC",)))
    assert len({first, *others}) == 4
    assert all(path.is_relative_to(folder) for path in others)


CUT: dict[str, Callable[[bytes], bytes]] = {
    "cut short": lambda content: content[:5000],
    "empty": lambda content: b"",
    "one bit flipped": lambda content: content[:-1] + bytes([content[-1] ^ 1]),
}


@needs_compiler
@pytest.mark.parametrize("damage", CUT.values(), ids=CUT)
@pytest.mark.parametrize("build", [builds.build_cpu, builds.build_checked], ids=lambda build: build.__name__)
def test_an_artefact_that_is_damaged_is_made_again(folder, build, damage):
    content = build("int a;").read_bytes()
    build("int a;").write_bytes(damage(content))
    assert build("int a;").read_bytes() == content


@needs_compiler
def test_an_artefact_whose_digest_is_gone_is_made_again(folder):
    built = builds.build_cpu("int a;")
    (digest,) = folder.rglob("*.sha256")
    digest.unlink()
    before = built.stat().st_ino
    assert builds.build_cpu("int a;").stat().st_ino != before and digest.is_file()


@needs_compiler
def test_nothing_but_the_artefact_and_its_digest_is_left(folder):
    built = builds.build_checked("int a;")
    assert {each.name for each in built.parent.iterdir()} == {built.name, f"{built.name}.sha256"}


def test_an_artefact_that_a_loader_would_die_of_is_not_loaded(folder):
    """What the loader maps of a file that was cut short ends the process by a signal."""
    program = "from kvproof.fuzz import devices; print(devices.make('cpu', print).name)"
    run = partial(subprocess.run, [sys.executable, "-c", program], capture_output=True, text=True)
    first = run()
    for built in folder.rglob("*.so"):
        built.write_bytes(built.read_bytes()[:5000])
    second = run()
    assert (second.returncode, second.stdout) == (first.returncode, first.stdout) == (0, first.stdout)


@needs_compiler
def test_a_refused_source_leaves_no_artefact(folder):
    with pytest.raises(builds.BuildError, match="ended with 1"):
        builds.build("int a", folder / "prelude.h", ("-fPIC",))
    assert not list(folder.rglob("*.so"))


@needs_compiler
def test_a_cache_that_cannot_be_written_is_said(folder, monkeypatch):
    (folder / "file").write_text("")
    monkeypatch.setenv("KVPROOF_KERNEL_CACHE", str(folder / "file"))
    with pytest.raises(builds.BuildError, match=r"file.*\$KVPROOF_KERNEL_CACHE names another"):
        builds.build("int a;", folder / "prelude.h", ("-fPIC",))


def test_a_compiler_that_cannot_be_run_is_said(folder, monkeypatch):
    (fake := folder / "c++").write_text("no program")
    fake.chmod(0o755)
    monkeypatch.setenv("CXX", str(fake))
    with pytest.raises(builds.BuildError, match=r"c\+\+ can't be run"):
        builds.build("int a;", folder / "prelude.h", ("-fPIC",))


def test_a_compiler_that_is_missing_is_an_error_of_its_own(folder, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(builds.AbsentError, match=r"no C\+\+ compiler"):
        builds.build("int a;", folder / "prelude.h", ("-fPIC",))


def test_artefacts_are_kept_in_the_users_cache(monkeypatch, tmp_path):
    monkeypatch.delenv("KVPROOF_KERNEL_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert builds.cache_folder() == tmp_path / "kvproof" / "kernels"


def test_a_signature_is_the_struct_of_the_kernel():
    found = source.signatures(TINY)
    fields = ("count", "scale", "bytes")
    pointers = frozenset({"bytes"})
    assert found == {"tiny": source.Signature(fields, frozenset({"scale"}), False, pointers, pointers)}


@pytest.mark.parametrize(
    "text", ["", TINY.replace("f64", "f32"), TINY.replace("i64 count;", "i64 a, b;"), "struct A {\n};\n"]
)
def test_a_source_that_cannot_be_called_is_refused(text):
    with pytest.raises(ValueError, match=r"kernels|wide|field"):
        source.signatures(text)


def test_every_part_belongs_to_the_source_and_none_is_long():
    found = {path.name for path in source.FOLDER.glob("*.cu")}
    assert found == set(source.PARTS) and len(source.PARTS) == len(found)
    assert all(len((source.FOLDER / part).read_text().splitlines()) <= 500 for part in source.PARTS)
    assert all((source.FOLDER / part).read_text() in source.read_source() for part in source.PARTS)


def test_the_source_includes_nothing():
    assert "#include" not in source.read_source()


def test_every_fault_has_its_place_and_a_gate():
    faults = all_faults()
    assert len({fault.name for fault in faults}) == len(faults) > 0
    for fault in faults:
        assert fault.gate in ("differential", "checked", "map", "launch")
        if fault.gate == "launch":
            assert not fault.before and fault.name in MISUSES
        else:
            assert fault.plant() != source.read_source()


def test_a_gate_without_faults_is_refused():
    with pytest.raises(ValueError, match="no fault"):
        of_gate("sanitizer")


@pytest.mark.parametrize("before", ["no such text", "i64"])
def test_a_fault_without_its_one_place_is_refused(before):
    with pytest.raises(ValueError, match="places"):
        Fault("x", "map", "", before, "other").plant()
