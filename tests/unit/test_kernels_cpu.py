"""The device source compiled by g++: equal to numpy bit by bit, whatever the geometry of a launch."""

import numpy as np
import pytest

from kvproof.kernels import builds, differential, twins
from kvproof.kernels.backends.base import SlotError
from kvproof.kernels.backends.choose import choose
from kvproof.kernels.backends.cpu_backend import CpuBackend
from kvproof.kernels.backends.numpy_backend import NumpyBackend
from kvproof.kernels.calls import Counted, Kernels
from kvproof.kernels.faults import of_gate
from kvproof.kernels.layouts import LayoutError
from kvproof.kernels.library import Call, CpuLibrary, Launch, address
from kvproof.kernels.source import read_source
from kvproof.kernels.words import Geometry

GEOMETRY = Geometry(2, 3, 2)
KINDS = len(differential.COMPARISONS)
QUANTIZED = list(differential.COMPARISONS).index("quantized")


@pytest.fixture(scope="module")
def library():
    if builds.compiler() is None:
        pytest.skip("no C++ compiler")
    return CpuLibrary(builds.build_cpu())


@pytest.fixture
def backend(library):
    return CpuBackend(library)


def ints(*values: int):
    return np.array(values, np.int64)


@pytest.mark.parametrize("kind", range(KINDS), ids=list(differential.COMPARISONS))
def test_random_cases_equal_numpy(library, kind):
    seeds = range(kind, 140 * KINDS, KINDS)
    assert [line for seed in seeds for line in differential.differences(seed, library)] == []


@pytest.mark.parametrize("kind", range(KINDS), ids=list(differential.COMPARISONS))
def test_what_torch_can_express_is_equal_too(library, kind):
    pytest.importorskip("torch")
    twins_of_torch = differential.find_torch()
    seeds = range(kind, 20 * KINDS, KINDS)
    lines = [differential.differences(seed, library, torch=twins_of_torch) for seed in seeds]
    assert [line for each in lines for line in each] == []


@pytest.mark.parametrize(
    ("name", "broken"),
    [
        ("contents", lambda digests, geometry: np.zeros(1, np.uint64)),
        ("fingerprints", lambda cache: np.zeros(1, np.uint64)),
        ("slots_of", lambda table, rows, *_, **split: np.full(len(rows), -7)),
        ("write", lambda tokens, cache, slots: None),
        ("read", lambda cache, slots: np.full(1, 7, np.uint8)),
        ("copy", lambda cache, *copies: cache.fill(1)),
        ("zero", lambda cache, blocks: cache.fill(1)),
        ("quantized", lambda tokens, scales: np.zeros(tokens.shape, np.uint8)),
        ("attention", lambda query, *_: query),
    ],
)
def test_torch_takes_part(monkeypatch, library, name, broken):
    pytest.importorskip("torch")
    monkeypatch.setattr(f"kvproof.kernels.torch_twins.{name}", broken)
    lines = [
        line
        for seed in range(10 * KINDS)
        for line in differential.differences(seed, library, torch=differential.find_torch())
    ]
    assert lines and all("torch's" in line for line in lines)


@pytest.mark.parametrize("fault", of_gate("differential"), ids=lambda each: each.name)
def test_a_planted_fault_is_found_by_the_comparison(library, fault):
    # Without optimization: the compiler is what takes the time.
    planted = builds.build(fault.plant(), builds.PRELUDE, (*builds.OPTIONS, "-O0"))
    broken = CpuLibrary(planted, fault.plant())
    assert any(differential.differences(seed, broken) for seed in range(60 * KINDS))


@pytest.mark.parametrize("slots", [[-1], [30], [2**40]])
def test_a_read_outside_is_refused_and_forgotten(backend, slots):
    cache = backend.new_cache(GEOMETRY, 5, 4)
    with pytest.raises(SlotError):
        backend.gather(cache, ints(*slots))
    with pytest.raises(SlotError):
        backend.verify_blocks(cache, ints(*slots), ints(0), np.zeros(1, np.uint64))
    with pytest.raises(SlotError):
        backend.fingerprint_blocks(cache, ints(*slots), ints(0), ints(1))
    backend.gather(cache, ints(3))


@pytest.mark.parametrize(("offset", "column"), [(4, 0), (-1, 0), (0, 3), (0, -1)])
def test_a_token_of_no_block_and_a_result_of_no_column_are_refused(backend, offset, column):
    cache = backend.new_cache(GEOMETRY, 5, 4)
    counts, _ = backend.compare_blocks(cache, ints(1), ints(3), np.zeros(1, np.uint64), ints(2), 3)
    assert [*map(bool, counts.sum(axis=0))] == [False, False, True]
    with pytest.raises(SlotError):
        backend.compare_blocks(cache, ints(1), ints(offset), np.zeros(1, np.uint64), ints(column), 3)


def test_positions_and_slots_have_more_than_32_bits(backend):
    table, lengths = np.array([[5, 7, 9, 2]], np.int32), np.array([4], np.int32)
    positions = 2**32 + 5, 2**33 - 1, 2**31 - 1, 2**32 - 1
    slots = backend.compute_slot_mapping(table, lengths, ints(0, 0, 0, 0), ints(*positions), 2**31)
    row = [5, 7, 9, 2]
    assert slots.tolist() == [row[at // 2**31] * 2**31 + at % 2**31 for at in positions]


@pytest.mark.parametrize(("start", "end"), [(-1, 2), (0, 5)])
def test_a_fingerprint_ends_with_its_block(backend, start, end):
    with pytest.raises(SlotError):
        backend.fingerprint_blocks(backend.new_cache(GEOMETRY, 5, 4), ints(1), ints(start), ints(end))


def test_a_view_of_some_blocks_is_refused_even_after_a_whole_cache_of_its_form(backend):
    whole = backend.new_cache(GEOMETRY, 4, 4)
    key, value = backend.synthesize(np.arange(1, dtype=np.uint64), GEOMETRY)
    backend.reshape_and_cache(key, value, whole, ints(1))
    part = backend.new_cache(GEOMETRY, 5, 4)[:, 1:]
    for call in (
        lambda: backend.reshape_and_cache(key, value, part, ints(1)),
        lambda: backend.gather(part, ints(1)),
        lambda: backend.verify_blocks(part, ints(1), ints(1), ints(1).astype(np.uint64)),
        lambda: backend.copy_blocks(part, ints(1), ints(2), ints(1)),
    ):
        with pytest.raises(ValueError, match="contiguous"):
            call()


def test_arguments_that_do_not_fit_are_refused(backend):
    cache = backend.new_cache(GEOMETRY, 4, 4)
    key, value = backend.synthesize(np.arange(2, dtype=np.uint64), GEOMETRY)
    with pytest.raises(ValueError, match="1 slots for 2 keys"):
        backend.reshape_and_cache(key, value, cache, ints(1))
    with pytest.raises(ValueError, match="64 bits"):
        backend.reshape_and_cache(key.astype(np.int64), value, cache, ints(1, 2))
    with pytest.raises(LayoutError):
        backend.reshape_and_cache(key[:, :1], value[:, :1], cache, ints(1, 2))
    with pytest.raises(ValueError, match="offsets"):
        backend.verify_blocks(cache, ints(1, 2), ints(1), np.zeros(2, np.uint64))
    with pytest.raises(ValueError, match="targets"):
        backend.copy_blocks(cache, ints(1, 2), ints(1), ints(1))
    with pytest.raises(ValueError, match="geometry"):
        backend.synthesize(np.zeros(1, np.uint64), Geometry(1, 4097, 1))


@pytest.mark.parametrize("entry", [-1, -2, -(2**31)])
@pytest.mark.parametrize("size", [1, 4])
def test_an_entry_below_0_is_no_block_and_no_padding(backend, entry, size):
    table, lengths = np.array([[2, entry]], np.int32), np.array([2], np.int32)
    for position in (size, 2 * size - 1):
        for each in (backend, NumpyBackend()):
            with pytest.raises(SlotError):
                each.compute_slot_mapping(table, lengths, ints(0), ints(position), size)
        with pytest.raises(SlotError):
            twins.slot_of(table[0].tolist(), position, size, 1, 1, 0, 1)
    # A rank that doesn't hold the position has nothing to look up.
    split = {"world": 2, "rank": 1, "interleave": size}
    assert backend.compute_slot_mapping(table, lengths, ints(0), ints(2 * size), size, **split).tolist() == [
        -1
    ]


@pytest.mark.parametrize(
    "split",
    [
        {"ratio": 3},
        {"ratio": 0},
        {"world": 2, "interleave": 3},
        {"interleave": 0},
        {"world": 0},
        {"world": 2, "rank": 2},
    ],
)
def test_a_split_that_does_not_divide_a_block_is_refused(backend, split):
    table, lengths = np.ones((1, 1), np.int32), np.ones(1, np.int32)
    with pytest.raises(ValueError, match="no such split"):
        backend.compute_slot_mapping(table, lengths, ints(0), ints(0), 4, **split)


@pytest.mark.parametrize("name", ["cpu", "numpy"])
def test_what_no_backend_can_follow_is_refused_alike(backend, name):
    each = backend if name == "cpu" else NumpyBackend()
    cache, digest = each.new_cache(GEOMETRY, 5, 4), np.zeros(1, np.uint64)
    table, lengths = np.ones((1, 2), np.int32), np.array([9], np.int32)
    for block in (2**62, -(2**62), 5, -1):
        with pytest.raises(SlotError):
            each.verify_blocks(cache, ints(block), ints(0), digest)
    # A length beyond the table.
    with pytest.raises(SlotError):
        each.compute_slot_mapping(table, lengths, ints(0), ints(8), 4)
    for call in (
        lambda: each.verify_blocks(cache, ints(1, 2), ints(1), np.zeros(2, np.uint64)),
        lambda: each.fingerprint_blocks(cache, ints(1, 2), ints(1), ints(2)),
        lambda: each.compute_slot_mapping(table, lengths, ints(0, 0), ints(1), 4),
        lambda: each.compute_slot_mapping(table, lengths[:0], ints(0), ints(1), 4),
        lambda: each.compute_slot_mapping(table, lengths, ints(0), ints(1), 0),
    ):
        with pytest.raises(ValueError, match=r"\d") as refused:
            call()
        assert not isinstance(refused.value, SlotError)


def test_keys_and_values_may_lie_apart_and_differently(backend):
    key, value = backend.synthesize(np.arange(3, dtype=np.uint64), GEOMETRY)
    caches = [backend.new_cache(GEOMETRY, 2, 4) for _ in range(2)]
    backend.reshape_and_cache(key, np.asfortranarray(value), caches[0], ints(0, 5, 2))
    NumpyBackend().reshape_and_cache(key, value, caches[1], ints(0, 5, 2))
    assert np.array_equal(*caches)


def test_claims_of_slots_outlast_their_epochs(backend):
    cache = backend.new_cache(GEOMETRY, 2, 4)
    key, value = backend.synthesize(np.arange(2, dtype=np.uint64), GEOMETRY)
    backend._epoch = 2**32 - 2
    for _ in range(4):
        assert backend.reshape_and_cache(key, value, cache, ints(1, 2)).clean
        assert backend.reshape_and_cache(key, value, cache, ints(1, 1)).conflicts == (1,)


@pytest.mark.parametrize("wrong", [ints(3, 9, 1, 9)[::2], np.array([3, 1], np.int32), ints(3)])
def test_indices_that_a_kernel_would_misread_are_refused(library, wrong):
    kernels, cache = Kernels(library), np.ones((1, 4, 2, 4, 1, 8), np.uint8)
    tokens, right = np.zeros((2, 1, 2, 1, 8), np.uint8), ints(0, 2)
    query, table, one = np.zeros((2, 1, 8), np.float32), np.zeros((2, 4), np.int32), cache[0, :, 0]
    if len(wrong) == 2:
        with pytest.raises(LayoutError):
            kernels.zero_blocks(cache, wrong)
    for call in (
        lambda: kernels.reshape_and_cache(tokens, cache, wrong),
        lambda: kernels.gather_slots(tokens, cache, wrong),
        lambda: kernels.copy_blocks(cache, cache, right, wrong, right),
        lambda: kernels.quantize_and_cache(
            tokens.view(np.float16).repeat(2, axis=4), cache, wrong, np.ones((2, 1), np.float32)
        ),
        lambda: kernels.paged_attention_decode(query, one, one, table, wrong, scale=1.0),
        lambda: kernels.paged_attention_decode(query, one, one, table.T.copy().T, right, scale=1.0),
        lambda: kernels.paged_attention_decode(query, one, one, table.astype(np.int64), right, scale=1.0),
        lambda: kernels.paged_attention_decode(query, one, one, table[:1], right, scale=1.0),
    ):
        with pytest.raises(LayoutError):
            call()
    assert cache.all() and not tokens.any()


def test_no_token_no_block_and_no_row_are_nothing_to_do(library):
    kernels, none = Kernels(library), ints()
    cache, scales = np.ones((1, 4, 2, 4, 2, 8), np.uint8), np.ones((2, 2), np.float32)
    # A layout that an empty array's strides don't tell.
    cache = cache.transpose(0, 1, 2, 4, 3, 5).copy().transpose(0, 1, 2, 4, 3, 5)
    tokens, empty = np.ones((2, 1, 2, 2, 8), np.uint8), cache[:, :0].copy()
    for counted in (
        kernels.quantize_and_cache(tokens[:0].astype(np.float16), cache, none, scales),
        kernels.quantize_and_cache(tokens.astype(np.float16), empty, ints(-1, -1), scales),
        kernels.reshape_and_cache(tokens[:0].copy(), cache, none),
        kernels.reshape_and_cache(tokens, empty, ints(-1, -1)),
        kernels.gather_slots(tokens[:0].copy(), cache, none),
        *(
            kernels.copy_blocks(one, two, none, none, none)
            for one in (cache, empty)
            for two in (cache, empty)
        ),
        *(kernels.zero_blocks(each, none) for each in (cache, empty)),
    ):
        assert counted == Counted()
    query, table = np.ones((0, 2, 8), np.float32), np.zeros((0, 3), np.int32)
    found, counted = kernels.paged_attention_decode(
        query, cache[0, :, 0], cache[0, :, 1], table, none, scale=1.0
    )
    assert found.shape == (0, 2, 8) and counted == Counted()
    assert cache.all()


def test_without_blocks_every_place_is_outside(library, backend):
    kernels, empty = Kernels(library), np.ones((1, 0, 2, 4, 2, 8), np.uint8)
    tokens, scales = np.ones((2, 1, 2, 2, 8), np.uint8), np.ones((2, 2), np.float32)
    query, cache = np.ones((1, 2, 8), np.float32), np.ones((1, 4, 2, 4, 2, 8), np.uint8)
    found, counted = kernels.paged_attention_decode(
        query, empty[0, :, 0], empty[0, :, 1], np.zeros((1, 1), np.int32), ints(1), scale=1.0
    )
    assert not found.any() and counted == Counted(2)
    for outside in (
        kernels.quantize_and_cache(tokens.astype(np.float16), empty, ints(0, 1), scales),
        kernels.reshape_and_cache(tokens, empty, ints(0, 1)),
        kernels.gather_slots(tokens, empty, ints(0, 1)),
        kernels.copy_blocks(cache, empty, ints(0, 1), ints(0, 1), ints(1, 1)),
        kernels.copy_blocks(empty, cache, ints(0, 1), ints(0, 1), ints(1, 1)),
        kernels.zero_blocks(empty, ints(0, 1)),
    ):
        assert outside == Counted(2)
    assert tokens.all() and cache.all()
    with pytest.raises(SlotError):
        backend.gather(backend.new_cache(GEOMETRY, 0, 4), ints(0))


def test_elements_that_a_kernel_would_misread_are_refused(library):
    kernels, slots, scales = Kernels(library), ints(0), np.ones((1, 2), np.float32)
    tokens, cache = np.ones((1, 1, 1, 2, 6), np.float16), np.zeros((1, 2, 1, 4, 2, 6), np.uint8)
    raw = np.zeros(200, np.uint8)
    rows_of_13 = np.ndarray(tokens.shape, np.float16, raw, 0, (60, 60, 60, 13, 2))
    shifted = np.ndarray(tokens.shape, np.float16, raw, 1, (60, 60, 60, 14, 2))
    reversed_scales = np.ndarray((1, 2), np.float32, raw, 0, (8, 6))
    for call in (
        (tokens, cache, slots, scales.astype(np.float64)),
        (tokens, cache, slots, reversed_scales),
        (tokens.astype(np.int16), cache, slots, scales),
        (tokens.astype(np.float64), cache, slots, scales),
        (tokens.astype(">f2"), cache, slots, scales),
        (tokens[..., ::-1], cache, slots, scales),
        (tokens[0], cache, slots, scales),
        (tokens, cache.view(np.int8), slots, scales),
        (tokens, cache[..., ::-1], slots, scales),
        (rows_of_13, cache, slots, scales),
        (shifted, cache, slots, scales),
    ):
        with pytest.raises(LayoutError, match=r"\.$"):
            kernels.quantize_and_cache(*call)
    # The stride of a single one says nothing.
    alone = np.ndarray((1, 1, 1, 2, 6), np.float16, raw, 0, (61, 63, 65, 12, 2))
    assert kernels.quantize_and_cache(alone, cache, slots, scales) == Counted()
    query, table = np.ones((1, 2, 8), np.float32), np.zeros((1, 1), np.int32)
    key = np.ones((2, 4, 2, 8), np.float16)
    apart = np.ndarray(key.shape, np.float16, np.zeros(500, np.uint8), 0, (200, 50, 17, 2))
    for one, two in (
        (key, key.view(np.uint16)),
        (key.astype(np.int8), key.astype(np.int8)),
        *((key.astype(kind), key.astype(kind)) for kind in (np.int16, np.uint32, np.float64)),
        (apart, apart),
        (key, key.transpose(0, 2, 1, 3).copy().transpose(0, 2, 1, 3)),
        (key[:, :0], key[:, :0]),
        (key[:, :, :0], key[:, :, :0]),
    ):
        with pytest.raises(LayoutError, match=r"\.$"):
            kernels.paged_attention_decode(query, one, two, table, slots, scale=1.0)
    with pytest.raises(LayoutError, match="windows"):
        kernels.paged_attention_decode(query, key, key, table, slots, scale=1.0, window=-1)


def test_every_half_and_every_e4m3_byte_is_widened_exactly(library):
    kernels = Kernels(library)
    # Attention over one position is that position's value: all that happens to it is widening.
    for bits, meant in (
        (np.arange(2**16, dtype=np.uint16).view(np.float16), None),
        (np.arange(256, dtype=np.uint8), twins.e4m3_values()),
        (np.arange(2**16, dtype=np.uint16), twins.bf16_values(np.arange(2**16, dtype=np.uint16))),
    ):
        value = bits.reshape(-1, 1, 1, 256)
        wanted = (bits.astype(np.float32) if meant is None else meant).reshape(-1, 1, 256)
        blocks = len(value)
        table = np.arange(blocks, dtype=np.int32)[:, None]
        found, _ = kernels.paged_attention_decode(
            np.zeros((blocks, 1, 256), np.float32),
            np.zeros_like(value),
            value,
            table,
            np.ones(blocks, np.int64),
            scale=1.0,
        )
        assert np.array_equal(found, wanted, equal_nan=True)


POISON = np.full(4, -1, np.int32).view(np.float32)
FAR = np.full(4, -1000, np.float32)
INFINITE = np.array([np.inf, 0, 0, 0], np.float32)


@pytest.mark.parametrize(
    ("keys", "value", "entries", "wanted"),
    [
        ({1: POISON}, 0, [0, 1, 2], [np.nan] * 4),
        ({1: INFINITE}, 0, [0, 1, 2], [np.nan] * 4),
        ({1: -INFINITE}, 0, [0, 1, 2], [4, 5, 6, 7]),
        ({0: -INFINITE, 1: -INFINITE, 2: -INFINITE}, 0, [0, 1, 2], [np.nan] * 4),
        ({}, np.inf, [0, 1, 2], [np.inf, 5, 6, 7]),
        ({}, -np.inf, [0, 1, 2], [-np.inf, 5, 6, 7]),
        ({0: FAR, 1: FAR, 2: FAR}, 0, [-1, 1, 2], [6, 7, 8, 9]),
        ({0: FAR, 1: FAR, 2: FAR}, 0, [0, -1, 2], [4, 5, 6, 7]),
        ({0: FAR, 1: FAR, 2: FAR}, 0, [0, 1, 7], [2, 3, 4, 5]),
        ({0: POISON}, 0, [-1, 1, 2], [6, 7, 8, 9]),
        ({}, 0, [-1, 3, 7], [0, 0, 0, 0]),
    ],
)
@pytest.mark.parametrize("launch", [Launch(), Launch(grid=2, block=5)])
def test_attention_is_the_softmax_over_what_lies_in_the_cache(library, launch, keys, value, entries, wanted):
    key, values = np.zeros((3, 1, 1, 4), np.float32), np.arange(12, dtype=np.float32).reshape(3, 1, 1, 4)
    for block, elements in keys.items():
        key[block] = elements
    values[0, 0, 0, 0] += value
    found, counted = Kernels(library, launch).paged_attention_decode(
        np.ones((1, 1, 4), np.float32), key, values, np.array([entries], np.int32), ints(3), scale=1.0
    )
    assert np.array_equal(found[0, 0], np.array(wanted, np.float32), equal_nan=True)
    inside = [entry for entry in entries if 0 <= entry < 3]
    assert counted.outside == 3 - len(inside)
    read, weighed = (each[inside, 0].astype(np.float64) for each in (key, values))
    by_twin = twins.attention(np.ones((1, 4)), read, weighed, 1.0)
    assert np.array_equal(by_twin[0], wanted, equal_nan=True)


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_quantizing_equals_torch(library, kind):
    torch = pytest.importorskip("torch")
    bits = torch.arange(2**16, dtype=torch.int32).to(torch.int16).view(getattr(torch, kind))
    # Beyond the largest number torch and we differ on purpose: ours saturates.
    values = bits[~(bits.float().abs() > 448)]
    tokens = values.view(torch.int16).numpy().view(np.float16 if kind == "float16" else np.uint16)
    cache = np.zeros((1, 1, 1, 1, 1, len(tokens)), np.uint8)
    scales = np.ones((1, 1), np.float32)
    Kernels(library).quantize_and_cache(tokens.reshape(1, 1, 1, 1, -1), cache, ints(0), scales)
    wanted = values.to(torch.float8_e4m3fn).view(torch.uint8).numpy()
    assert np.array_equal(cache.reshape(-1), wanted)


# Divisions as processors have them: whatever isn't a number becomes this one.
DIVISION = """
static f32 of_processor(f32 a, f32 b) {{ return a / b == a / b ? a / b : float_of({nan}); }}
DEVICE f32 divided("""
RETURNED = "return value != value ? value : float_of(0x7FC00000);"


@pytest.mark.parametrize("nan", ["0x7FFFFFFF", "0xFFC00000"], ids=["GPU", "x86"])
@pytest.mark.parametrize(
    ("returned", "fails_with"),
    [
        (RETURNED, ()),
        ("return float_of(0x7FC00000);", ("0x7FFFFFFF", "0xFFC00000")),
        ("return value != value ? value : quotient;", ("0xFFC00000",)),
    ],
    ids=["as it is", "sign dropped", "sign of the processor"],
)
def test_a_nan_keeps_its_sign_and_one_of_a_division_has_none(nan, returned, fails_with):
    source = read_source()
    for place in (RETURNED, "value / scale", "\nDEVICE f32 divided("):
        assert source.count(place) == 1
    source = source.replace(RETURNED, returned)
    source = source.replace("value / scale", "of_processor(value, scale)")
    source = source.replace("\nDEVICE f32 divided(", DIVISION.format(nan=nan))
    library = CpuLibrary(builds.build(source, builds.PRELUDE, (*builds.OPTIONS, "-O0")), source)
    seeds = range(QUANTIZED, 60 * KINDS, KINDS)
    assert any(differential.differences(seed, library) for seed in seeds) is (nan in fails_with)


@pytest.mark.parametrize("values", [np.arange(9), np.arange(9)[3:], np.zeros((3, 4), np.uint8)[:, 1:].T])
def test_an_address_is_that_of_the_first_element(values):
    assert address(values) == values.__array_interface__["data"][0] == values.ctypes.data


def test_a_call_knows_its_fields(library):
    with pytest.raises(KeyError):
        Call(library, "synthesize", {"blocks": 1})


def test_a_backend_has_a_known_name(library):
    assert choose("numpy", pytest.fail).name == "numpy"
    assert choose("cpu", pytest.fail).name == "cpu"
    assert choose("cpu-checked", pytest.fail).name == "cpu-checked"
    with pytest.raises(ValueError, match="none of"):
        choose("gpu", pytest.fail)


def test_without_a_compiler_numpy_runs_and_one_line_says_so(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    lines: list[str] = []
    assert choose("cpu", lines.append).name == "numpy"
    assert lines == ["device: numpy instead of cpu: no C++ compiler (g++, or what $CXX names)."]
