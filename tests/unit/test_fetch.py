"""Fetching a target's package: what is kept, what is refused, and that a second time costs nothing."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from kvproof.fuzz.targets import TargetError, TargetSkipped
from kvproof.fuzz.targets import fetch as fetching
from kvproof.fuzz.targets.fetch import cached, fetch, folder_of, manifest_of, parse

WHEEL = {
    "pack/__init__.py": "name = 'pack'\n",
    "pack/core/pool.py": "blocks = 3\n",
    "pack/_C.abi3.so": "machine code",
    "pack/table.json": "{}",
    "pack-1.2.dist-info/METADATA": "Name: pack\n",
    "pack-1.2.dist-info/RECORD": "",
}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("KVPROOF_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def pip(monkeypatch):
    """A pip that has one wheel; it records what it was asked."""
    asked: list[list[str]] = []

    def download(arguments, work):
        asked.append(list(arguments))
        if not arguments[-1].startswith("pack=="):
            return f"No matching distribution found for {arguments[-1]}"
        dest = Path(arguments[arguments.index("--dest") + 1])
        dest.mkdir()
        with zipfile.ZipFile(dest / "pack-1.2-py3-none-any.whl", "w") as wheel:
            for name, text in WHEEL.items():
                wheel.writestr(name, text)
        return ""

    monkeypatch.setattr(fetching, "_pip", download)
    return asked


def test_only_modules_and_metadata_are_kept(cache, pip):
    folder = fetch("pack==1.2")
    kept = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    assert folder == cache / "pack-1.2"
    assert kept == ["manifest.json", "pack-1.2.dist-info/METADATA", "pack/__init__.py", "pack/core/pool.py"]
    manifest = manifest_of(folder)
    assert (manifest.name, manifest.version, manifest.native) == ("pack", "1.2", ("pack._C",))
    assert len(manifest.sha256) == 64
    assert [path.name for path in cache.iterdir()] == ["pack-1.2"], "nothing is left of the download"


def test_a_cached_release_is_not_fetched_again(pip):
    assert fetch("pack==1.2") == fetch("pack==1.2") == folder_of("Pack==1.2")
    assert len(pip) == 1
    assert list(cached()) == ["pack-1.2"]


def test_half_a_folder_is_replaced(cache, pip):
    (cache / "pack-1.2").mkdir(parents=True)
    (cache / "pack-1.2" / "old.py").write_text("")
    assert cached() == {}
    assert not (fetch("pack==1.2") / "old.py").exists()


def test_other_platforms_are_tried_and_the_reason_is_told(cache, pip):
    with pytest.raises(TargetSkipped, match=r"^other==1 cannot be fetched here: No matching .* other==1\.$"):
        fetch("other==1")
    assert pip[0][0] == "--only-binary=:all:"
    assert any("--platform=manylinux_2_28_x86_64" in arguments for arguments in pip)
    assert list(cache.iterdir()) == []


def test_another_failure_is_not_tried_again(monkeypatch):
    calls = []

    def download(arguments, work):
        calls.append(arguments)
        return "the index is away"

    monkeypatch.setattr(fetching, "_pip", download)
    with pytest.raises(TargetSkipped, match="the index is away"):
        fetch("pack==1.2")
    assert len(calls) == 1


def test_a_source_archive_is_kept_although_its_metadata_failed(monkeypatch):
    def download(arguments, work):
        module = work / "pip-download-x" / "vllm_1" / "vllm" / "v1" / "pool.py"
        module.parent.mkdir(parents=True)
        for path in (module, module.parents[1] / "__init__.py", module.parents[2] / "setup.py"):
            path.write_text("")
        return "metadata-generation-failed"

    monkeypatch.setattr(fetching, "_pip", download)
    folder = fetch("vllm==99.0")
    assert (folder / "vllm" / "v1" / "pool.py").exists()
    assert not (folder / "setup.py").exists()
    assert len(manifest_of(folder).sha256) == 64


@pytest.mark.parametrize("wrong", ["pack", "pack>=1", "pack==", "../x==1", "pack==1/..", "-r==1", "==1"])
def test_a_requirement_names_one_version(wrong):
    with pytest.raises(TargetError, match="name==version"):
        parse(wrong)


def test_a_spoilt_manifest_is_an_error(cache):
    (cache / "pack-1.2").mkdir(parents=True)
    (cache / "pack-1.2" / "manifest.json").write_text("{")
    assert cached() == {}
    with pytest.raises(TargetError, match="remove it and fetch anew"):
        manifest_of(cache / "pack-1.2")


def test_pip_is_missing(monkeypatch, tmp_path):
    def run(command, **_):
        return subprocess.CompletedProcess(command, 1, "", f"{sys.executable}: No module named pip\n")

    monkeypatch.setattr(subprocess, "run", run)
    assert "No module named pip" in fetching._pip(["pack==1"], tmp_path)


@pytest.mark.skipif("KVPROOF_NETWORK" not in os.environ, reason="fetches 122 kB; set KVPROOF_NETWORK=1")
def test_a_small_release_is_fetched():
    folder = fetch("tokasaurus==0.0.4")
    assert (folder / "tokasaurus" / "__init__.py").exists()
