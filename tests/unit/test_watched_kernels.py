"""What a kernel does wrong under the fuzz engines ends the run, and names kernel, thread and place."""

import re

import pytest
from msgspec.structs import replace
from rich.console import Console

from kvproof.fuzz import devices
from kvproof.fuzz.cli import check, kernel_cases, phases
from kvproof.fuzz.cli.profiles import NAMES, profile
from kvproof.fuzz.device import Device
from kvproof.fuzz.engines.soak import soak
from kvproof.fuzz.session import KernelFault
from kvproof.kernels import builds
from kvproof.kernels.backends.checked_backend import CheckedBackend
from kvproof.kernels.backends.numpy_backend import NumpyBackend
from kvproof.kernels.checked import Finding, Wrong
from kvproof.kernels.differential import case_lines
from kvproof.kernels.faults import all_faults
from kvproof.spec.vocabulary import CacheConfig

CONFIG = CacheConfig(blocks=4, block_size=4)
SOAK_ALONE = replace(profile("ci"), differential={})
pytestmark = pytest.mark.skipif(builds.compiler() is None, reason="no C++ compiler")


def planted(name: str) -> CheckedBackend:
    """A watched build of the source with a fault in it."""
    (fault,) = [each for each in all_faults() if each.name == name]
    return CheckedBackend(source=fault.plant())


@pytest.fixture(scope="module")
def wild() -> CheckedBackend:
    """Padding is written as if it had a slot."""
    return planted(phases.WATCHED)


def test_a_kernel_that_writes_outside_ends_the_run_with_its_name_and_thread(wild):
    with devices.using(wild):
        result = soak(2_000, 0)
    assert result.case is not None
    assert (result.case.expected.result, result.case.expected.clause) == ("errored", "")
    assert result.error.startswith("a kernel of the device goes wrong: ")
    (line,) = [line for line in result.error.splitlines() if "out_of_bounds: " in line]
    assert re.search(
        r"out_of_bounds: reshape_and_cache_\d+, block \d+ thread \d+ writes \d+ bytes outside every array",
        line,
    )


def test_two_runs_with_one_seed_end_with_the_same_words_and_digest():
    results = []
    for _ in range(2):
        with devices.using(planted(phases.WATCHED)):
            results.append(soak(2_000, 0))
    first, second = results
    assert first.error and (first.error, first.digest) == (second.error, second.digest)


def test_the_same_run_without_the_fault_holds():
    with devices.using(CheckedBackend()):
        result = soak(400, 0)
    assert result.case is None and result.error == ""


def test_an_input_that_is_written_to_is_found():
    backend = planted("const-cast-away")
    with devices.using(backend):
        result = soak(100, 0)
    assert "write_to_const: synthesize" in result.error


def test_an_output_that_is_read_before_it_is_written_is_found():
    with devices.using(planted("own-output-read")):
        result = soak(100, 0)
    assert "uninitialised: synthesize" in result.error


def test_a_read_of_a_token_that_nobody_wrote_is_no_fault_of_the_kernel():
    device = Device(CONFIG, backend=CheckedBackend())
    assert {each.found for each in device.verify([(1, 0, 5)])} != {5}
    assert device.copy([(1, 2, 3)]).clean
    assert device.take_findings() == ()


def test_findings_are_taken_once(wild):
    device = Device(CONFIG, backend=wild)
    device.write([-1], [5])
    found = device.take_findings()
    assert {each.wrong for each in found} == {Wrong.OUT_OF_BOUNDS}
    assert device.take_findings() == ()


def test_two_tokens_for_one_slot_are_no_fault_of_the_kernel():
    device = Device(CONFIG, backend=CheckedBackend())
    for _ in range(20):
        assert device.write([7, 7, 8, 7], [1, 2, 3, 4]).conflicts == (1, 3)
        assert device.take_findings() == ()
        assert device.verify([(1, 3, 4), (2, 0, 3)]) == ()
        device.write([7], [9])


def test_what_else_goes_wrong_beside_a_conflict_is_kept(wild):
    device = Device(CONFIG, backend=wild)
    assert device.write([7, 7, -1], [1, 2, 3]).conflicts
    assert {each.wrong for each in device.take_findings()} == {Wrong.OUT_OF_BOUNDS}


def test_nothing_is_found_where_nobody_watches():
    device = Device(CONFIG, backend=NumpyBackend())
    device.write([4], [1])
    assert device.take_findings() == ()


def test_a_fault_names_the_first_finding_of_each_kind():
    race = Finding(Wrong.RACE, "copy", (0, 1), True, 8, 16, "target", ("copy", 2, 3))
    outside = race._replace(wrong=Wrong.OUT_OF_BOUNDS, thread=(9, 9), other=None)
    later = [race._replace(thread=(i, 0)) for i in range(40)]
    fault = KernelFault([race, *later, outside, *later, outside._replace(thread=(1, 1))])
    first = (
        "race: copy, block 0 thread 1 writes 8 bytes at 0x10 of target, unordered with copy, block 2 thread 3"
    )
    assert fault.reason == f"a kernel of the device goes wrong: {first}"
    assert fault.transcript == "out_of_bounds: copy, block 9 thread 9 writes 8 bytes at 0x10 of target"


# --- the phase --------------------------------------------------------------------------------------


def test_the_phase_watches_and_finds_what_is_planted():
    found = phases.run_device(replace(SOAK_ALONE, device=300), 0, lambda text: None)
    assert found.verdict == "holds" and [test.name for test in found.tests] == ["canary", "soak"]
    assert "KV-I2-bytes" in found.exercised


def test_the_phase_is_undecided_where_nothing_was_watched():
    found = phases.run_device(replace(SOAK_ALONE, device=0), 0, lambda text: None)
    assert [test.verdict for test in found.tests] == ["holds", "undecided"]


def test_the_phase_is_blind_if_it_misses_what_is_planted(monkeypatch):
    monkeypatch.setattr(phases, "WATCHED_OPERATIONS", 1)
    found = phases.run_device(replace(SOAK_ALONE, device=1), 0, lambda text: None)
    assert found.verdict == "blind"
    assert [test.message for test in found.tests if test.verdict == "blind"] == [
        f"Watching the kernels is blind: it misses the planted fault {phases.WATCHED}."
    ]


def test_the_phase_reports_a_kernel_that_goes_wrong(monkeypatch, wild):
    monkeypatch.setattr(
        "kvproof.kernels.backends.checked_backend.CheckedBackend", lambda seed=0, source=None: wild
    )
    found = phases.run_device(replace(SOAK_ALONE, device=2_000), 0, lambda text: None)
    assert found.verdict == "violated" and found.failing == ()
    (message,) = [test.message for test in found.tests if test.name == "soak"]
    assert message.startswith("a kernel of the device goes wrong: ") and "reshape_and_cache_" in message
    assert message.endswith("; again: kvproof fuzz --device cpu-checked --ops 2000 --seed 0")


def test_the_phase_watches_the_interleavings_of_the_command_that_it_names(monkeypatch):
    sound: list[int] = []

    class Noting(CheckedBackend):
        def __init__(self, seed: int = 0, source: str | None = None) -> None:
            super().__init__(seed, source)
            sound.extend([seed] if source is None else [])

    monkeypatch.setattr("kvproof.kernels.backends.checked_backend.CheckedBackend", Noting)
    monkeypatch.setattr("kvproof.kernels.backends.choose.CheckedBackend", Noting)
    phases.run_device(replace(SOAK_ALONE, device=20), 7, lambda text: None)
    devices.make("cpu-checked")
    assert sound[0] == sound[1] and len(sound) == 2


def test_without_a_compiler_the_phase_is_skipped(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    found = phases.run_device(replace(SOAK_ALONE, device=300), 0, lambda text: None)
    assert found.verdict == "skipped" and "no C++ compiler" in found.tests[0].message


def test_larger_profiles_watch_the_kernels():
    amounts = [profile(name).device for name in NAMES]
    assert amounts == sorted(amounts) and amounts[1] >= 10_000


# --- its cases ----------------------------------------------------------------------------------------

SMALL = {"cpu": 14, "cpu-checked": 7}


def named(found: phases.Phase) -> dict[str, str]:
    """The verdict of each test of the phase."""
    return {test.name: test.verdict for test in found.tests}


def test_the_phase_compares_both_builds_with_numpy_and_finds_what_is_planted_in_each():
    found = phases.run_device(replace(profile("ci"), device=20, differential=SMALL), 0, lambda text: None)
    names = ("canary", "soak", "cpu canary", "cpu cases", "cpu-checked canary", "cpu-checked cases")
    assert named(found) == dict.fromkeys(names, "holds")
    assert found.count.endswith(" operations, 21 cases")


def test_the_phase_is_blind_if_no_case_shows_what_is_planted(monkeypatch):
    monkeypatch.setattr(kernel_cases, "CONTROL", 0)
    found = phases.run_device(replace(profile("ci"), device=20, differential=SMALL), 0, lambda text: None)
    assert found.verdict == "blind"
    assert [test.message for test in found.tests if test.verdict == "blind"] == [
        f"Comparing the kernels is blind: it misses the planted fault {name}."
        for name in kernel_cases.PLANTED.values()
    ]


def test_a_watched_fault_counts_as_seen_by_its_finding_alone(monkeypatch):
    """A difference would be seen in the other build too: here it is the access that is looked for."""
    monkeypatch.setattr(
        kernel_cases, "case_lines", lambda seed, library: [f"case {seed}: another difference"]
    )
    words = {build: kernel_cases.Compared(build).control().verdict for build in SMALL}
    assert words == {"cpu": "holds", "cpu-checked": "blind"}


@pytest.mark.parametrize("build", SMALL)
def test_a_case_in_which_the_kernels_differ_is_reported_with_the_command_that_repeats_it(build, capsys):
    compared = kernel_cases.Compared(build)
    compared.sound = compared.broken
    test, done = compared.cases(100, 3, lambda text: None)
    assert test.verdict == "violated" and test.clause == "" and 0 < done <= 100
    seed = 300 + done - 1
    again = f"; again: python -m kvproof.kernels.differential --build {build} --seed {seed} --cases 1"
    assert test.message.startswith(f"case {seed}") and test.message.endswith(again)
    assert case_lines(seed, kernel_cases.Compared(build).broken)[0] == test.report.splitlines()[0]


def test_no_case_decides_nothing_and_another_seed_has_other_cases(monkeypatch):
    compared, drawn = kernel_cases.Compared("cpu"), []
    assert compared.cases(0, 0, lambda text: None)[0].verdict == "undecided"
    monkeypatch.setattr(kernel_cases, "case_lines", lambda seed, *_: drawn.append(seed) or [])  # type: ignore[func-returns-value]
    for seed in (-1, 0, 1):
        compared.cases(5, seed, lambda text: None)
    assert len(set(drawn)) == 15 and min(drawn) == 0


def test_the_largest_profile_compares_thousands_of_cases():
    amounts = [profile(name).differential for name in NAMES]
    assert [sum(each.values()) for each in amounts] == sorted(sum(each.values()) for each in amounts)
    assert all(
        each.keys() == SMALL.keys() for each, name in zip(amounts, NAMES, strict=True) if profile(name).device
    )
    assert amounts[-1]["cpu"] >= 5_000 and amounts[-1]["cpu-checked"] >= 1_000


@pytest.mark.parametrize("width", [80, 100])
def test_the_line_of_the_phase_is_as_wide_as_others(width):
    to = Console(width=width)
    counts = ("", "94 and 139 vectors", "200,000 operations, 8,400 cases")
    assert len({len(check._line(to, "device", count, 1.0, "holds")) for count in counts}) == 1
