"""NVRTC compiles the source for every architecture, without a driver."""

import re

import pytest

from kvproof.kernels import nvrtc
from kvproof.kernels.builds import BuildError
from kvproof.kernels.source import read_source, signatures

needs_nvrtc = pytest.mark.skipif(
    nvrtc.find_nvrtc() is None, reason="NVRTC is not installed; the extra cuda12 brings it"
)


@pytest.fixture
def folder(monkeypatch, tmp_path):
    monkeypatch.setenv("KVPROOF_KERNEL_CACHE", str(tmp_path))
    return tmp_path


@needs_nvrtc
@pytest.mark.parametrize("architecture", nvrtc.ARCHITECTURES)
def test_every_kernel_is_built_for_every_architecture(architecture):
    built = nvrtc.build_gpu(architecture)
    content = built.read_bytes()
    assert content.startswith(b"\x7fELF") == (architecture in nvrtc.CUBINS)
    assert [name for name in signatures(read_source()) if name.encode() not in content] == []
    made = built.stat().st_mtime_ns
    assert nvrtc.build_gpu(architecture).stat().st_mtime_ns == made


@needs_nvrtc
def test_wide_rows_are_moved_16_bytes_at_a_time():
    text = nvrtc.build_gpu(nvrtc.FALLBACK).read_text().rstrip("\0")
    body = text[text.index(".entry reshape_and_cache_16(") :]
    body = body[: body.index("\n}")]
    assert re.search(r"ld\.global(\.nc)?\.v4\.u32|ld\.v4", body) and re.search(r"st(\.global)?\.v4", body)
    assert ".local" not in body


@needs_nvrtc
def test_a_refused_source_is_said_and_leaves_no_artefact(folder):
    with pytest.raises(BuildError, match="expected a"):
        nvrtc.build_gpu("compute_80", "int a")
    assert not list(folder.rglob("*.ptx"))


@needs_nvrtc
@pytest.mark.parametrize("suffix", [".ptx", ".log"])
def test_an_artefact_that_is_damaged_is_made_again(folder, suffix):
    built = nvrtc.build_gpu("compute_80")
    (damaged := built.with_suffix(suffix)).write_bytes((content := damaged.read_bytes())[:100])
    assert nvrtc.build_gpu("compute_80") == built and damaged.read_bytes() == content


def test_without_nvrtc_it_is_said(monkeypatch):
    monkeypatch.setattr(nvrtc, "find_nvrtc", lambda: None)
    with pytest.raises(BuildError, match="cuda12"):
        nvrtc.build_gpu("sm_90")


def test_a_library_that_is_none_is_said(monkeypatch, tmp_path):
    (tmp_path / "libnvrtc.so").write_text("no library")
    monkeypatch.setenv("KVPROOF_NVRTC", str(tmp_path / "libnvrtc.so"))
    with pytest.raises(BuildError, match="can't be loaded"):
        nvrtc.build_gpu("sm_90")
