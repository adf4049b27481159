"""Builds are kept by what they were made from; signatures and faults are those of the source."""

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


@needs_compiler
def test_a_refused_source_leaves_no_artefact(folder):
    with pytest.raises(builds.BuildError, match="ended with 1"):
        builds.build("int a", folder / "prelude.h", ("-fPIC",))
    assert not list(folder.rglob("*.so"))


@needs_compiler
def test_a_cache_that_cannot_be_written_is_said(folder, monkeypatch):
    (folder / "file").write_text("")
    monkeypatch.setenv("KVPROOF_KERNEL_CACHE", str(folder / "file"))
    with pytest.raises(builds.BuildError, match="file"):
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
