"""The cubins' machine code moves 16 bytes at a time where the source does, and keeps all in registers."""

from functools import lru_cache

import pytest

from kvproof.kernels import nvrtc, sass
from kvproof.kernels.builds import BuildError
from kvproof.kernels.source import read_source, signatures

needs_nvrtc = pytest.mark.skipif(
    nvrtc.find_nvrtc() is None, reason="NVRTC is not installed; the extra dev brings it"
)
needs_both = pytest.mark.skipif(
    nvrtc.find_nvrtc() is None or sass.find_disassembler() is None,
    reason="NVRTC or nvdisasm is not installed; the extra dev brings both",
)
MOVING = ("reshape_and_cache", "gather_slots", "copy_blocks")
# Two registers of 8 bytes, as the unit would be if it were written as a plain struct.
NARROW = "typedef uint4 u128;", "struct u128 { u64 low, high; };"

# An array whose places are only known when it runs can't lie in registers.
SPILLING = """
struct Few {
    const i64* places;
    f32* values;
};
KERNEL(spilling, Few) {
    f32 kept[64];
    for (i64 i = 0; i < 64; i++) kept[i] = p.values[i];
    for (i64 i = 0; i < 64; i++) kept[p.places[i]] += p.values[64 + i];
    for (i64 i = 0; i < 64; i++) p.values[i] = kept[p.places[64 + i]];
}
"""


@lru_cache(maxsize=8)
def machine(architecture: str, source: str | None = None):
    return sass.disassemble(nvrtc.build_gpu(architecture, source))


@needs_both
@pytest.mark.parametrize("architecture", nvrtc.CUBINS)
def test_a_unit_of_16_bytes_is_one_access(architecture):
    found = machine(architecture)
    for name in MOVING:
        assert found[f"{name}_16"].wide_loads and found[f"{name}_16"].wide_stores


@needs_both
@pytest.mark.parametrize("architecture", nvrtc.CUBINS)
@pytest.mark.parametrize("unit", [1, 2, 4, 8])
def test_a_narrower_unit_never_is(architecture, unit):
    found = machine(architecture)
    for name in MOVING:
        # The parameters of a launch are read by loads of their own, not from the device's memory.
        assert found[f"{name}_{unit}"].wide_stores == 0


@needs_both
def test_a_unit_that_the_compiler_splits_is_seen():
    before, after = NARROW
    assert read_source().count(before) == 1
    found = machine("sm_90", read_source().replace(before, after))
    assert all(found[f"{name}_16"].wide_stores == 0 for name in MOVING)


@needs_both
@pytest.mark.parametrize("architecture", nvrtc.CUBINS)
def test_no_kernel_loads_or_stores_local_memory(architecture):
    found = machine(architecture)
    assert found.keys() == signatures(read_source()).keys()
    assert [name for name, each in found.items() if each.local] == []


@needs_both
def test_a_kernel_that_spills_is_seen():
    assert machine("sm_90", read_source() + SPILLING)["spilling"].local > 0


# --- where there is no disassembler: what the compiler says ------------------------------------------


@needs_nvrtc
@pytest.mark.parametrize("architecture", nvrtc.CUBINS)
def test_no_kernel_needs_local_memory(architecture):
    usage = nvrtc.resource_usage(architecture)
    assert usage.keys() == signatures(read_source()).keys()
    assert [name for name, (_, local) in usage.items() if local] == []
    assert max(registers for registers, _ in usage.values()) <= 128


@needs_nvrtc
def test_a_kernel_that_needs_local_memory_is_seen():
    usage = nvrtc.resource_usage("sm_90", read_source() + SPILLING)
    assert usage["spilling"][1] > 0


# --- listings ----------------------------------------------------------------------------------------

LISTING = """
//--------------------- .text.first           --------------------------
.text.first:
        /*0000*/                   LDC R1, c[0x0][0x28] ;
        /*0010*/              @!P0 LDG.E.128.CONSTANT R4, desc[UR4][R2.64] ;
.L_x_1:
        /*0020*/             @UP1 STG.E.128 desc[UR4][R2.64], R4 ;
//--------------------- .text.second          --------------------------
.text.second:
        /*0000*/                   STL.64 [R1], R2 ;
"""


def test_a_listing_is_read_kernel_by_kernel():
    found = sass.kernels_of(LISTING)
    assert found["first"].instructions == ("LDC", "LDG.E.128.CONSTANT", "STG.E.128")
    assert (found["first"].wide_loads, found["first"].wide_stores, found["first"].local) == (1, 1, 0)
    assert (found["second"].wide_loads, found["second"].local) == (0, 1)


@pytest.mark.parametrize("listing", ["", ".text.first:\n.L_x_1:\n"])
def test_a_listing_without_instructions_is_refused(listing):
    with pytest.raises(BuildError, match="without"):
        sass.kernels_of(listing)


def test_a_missing_disassembler_is_said(monkeypatch, tmp_path):
    monkeypatch.setattr(sass, "find_disassembler", lambda: None)
    with pytest.raises(BuildError, match="nvidia-cuda-nvdisasm"):
        sass.disassemble(tmp_path)


@needs_both
def test_what_is_no_cubin_is_refused(tmp_path):
    (tmp_path / "a.cubin").write_text("no cubin")
    with pytest.raises(BuildError, match="nvdisasm ended with"):
        sass.disassemble(tmp_path / "a.cubin")


def test_a_disassembler_that_is_none_is_said(monkeypatch, tmp_path):
    monkeypatch.setenv("KVPROOF_NVDISASM", str(tmp_path / "none"))
    with pytest.raises(BuildError, match="can't be run"):
        sass.disassemble(tmp_path)
