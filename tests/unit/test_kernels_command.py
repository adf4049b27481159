"""The kernels' own programs: what they can't begin with is one sentence, and ends with 3."""

import pytest

from kvproof.kernels import builds, differential, nvrtc

needs_compiler = pytest.mark.skipif(builds.compiler() is None, reason="no C++ compiler")
MODULES = {"differential": differential, "nvrtc": nvrtc}


def refused(capsys, name, *arguments):
    """The sentence that a program ends with."""
    with pytest.raises(SystemExit) as ended:
        MODULES[name].main(arguments)
    found = capsys.readouterr()
    assert (ended.value.code, found.out, found.err.count("\n")) == (3, "", 1)
    return found.err.removeprefix(f"python -m kvproof.kernels.{name}: ").rstrip()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--cases", "0"], "argument --cases: 0 is less than 1."),
        (["--cases", "-3"], "argument --cases: -3 is less than 1."),
        (["--seed", "-3"], "argument --seed: -3 is less than 0."),
        (["--build", "cuda"], "argument --build: invalid choice: 'cuda'"),
    ],
)
def test_arguments_that_no_case_can_be_drawn_from_are_said(capsys, arguments, said):
    assert refused(capsys, "differential", *arguments).startswith(said)


@pytest.mark.parametrize("build", ["cpu", "cpu-checked"])
def test_without_a_compiler_it_is_said(capsys, monkeypatch, build):
    monkeypatch.setenv("CXX", "nothing")
    said = refused(capsys, "differential", "--build", build)
    assert said == "no C++ compiler (g++, or what $CXX names)."


@needs_compiler
@pytest.mark.parametrize("build", ["cpu", "cpu-checked"])
def test_cases_are_run_and_counted(capsys, build):
    assert differential.main(["--build", build, "--cases", "7"]) == 0
    assert f"{build}: 7 of 7 cases equal to numpy" in capsys.readouterr().out


@needs_compiler
def test_a_case_that_differs_ends_with_1(capsys, monkeypatch):
    monkeypatch.setitem(differential.COMPARISONS, "backend", lambda case: iter(["something"]))
    assert differential.main(["--cases", "7"]) == 1
    assert "6 of 7 cases equal" in capsys.readouterr().out


def test_artefacts_need_a_folder(capsys, tmp_path):
    assert refused(capsys, "nvrtc") == "the following arguments are required: FOLDER."
    (file := tmp_path / "file").write_text("")
    assert refused(capsys, "nvrtc", str(file)).startswith(
        f"argument FOLDER: cannot write to folder {file}: File"
    )


@pytest.mark.parametrize(
    ("library", "said"),
    [
        ("no-such-library.so", "no-such-library.so can't be loaded: "),
        ("libc.so.6", "libc.so.6 is no NVRTC: "),
    ],
)
def test_an_nvrtc_that_is_none_is_said(capsys, monkeypatch, tmp_path, library, said):
    monkeypatch.setenv("KVPROOF_NVRTC", library)
    assert refused(capsys, "nvrtc", str(tmp_path)).startswith(said)
