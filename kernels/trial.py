"""A trial of the kernels on a device: the same seeds as everywhere, equal bytes and digests, and figures.

Each check gives one row. Where a device isn't a GPU the same checks run on its processor, so that
what is asked of a GPU has been answered once before.
"""

import shutil
import subprocess
import traceback
from collections.abc import Callable, Iterator
from hashlib import blake2b
from typing import Final, NamedTuple

import numpy as np

from kvproof.kernels import beyond, differential, twins
from kvproof.kernels.backends.numpy_backend import NumpyBackend
from kvproof.kernels.compare_numbers import TOLERANCE
from kvproof.kernels.library import Library
from kvproof.kernels.mirror import MirrorLibrary
from kvproof.kernels.places import HostCopies, NotHereError, Place
from kvproof.kernels.words import Geometry
from kvproof.kernels.works import Work, computing, moving, plain_copy

ROUNDS: Final = 20
"""Of two streams that write to one cache."""


class Row(NamedTuple):
    """What came of one check: `passed`, `failed`, `skipped` or `measured`."""

    name: str
    state: str
    figure: str


Check = Callable[[], Iterator[Row]]


def _row(name: str, holds: bool, figure: str) -> Row:
    return Row(name, "passed" if holds else "failed", figure)


class _Silent:
    """A build whose kernels do nothing: whatever finds it equal to another one sees nothing."""

    watch = None

    def __init__(self, library: Library) -> None:
        self.signatures = library.signatures

    def launch(self, *_: object) -> None:
        """Nothing."""


def differences(place: Place, cases: int) -> Iterator[Row]:
    """Random cases, and as many again by a build that does nothing."""
    library = place.mirrored()
    lines = [line for seed in range(cases) for line in differential.differences(seed, library)]
    kinds = len(differential.COMPARISONS)
    silent = MirrorLibrary(_Silent(place.library), HostCopies())
    seen = sum(bool(differential.differences(seed, silent)) for seed in range(kinds * 4))
    yield _row("random cases equal numpy", not lines, lines[0] if lines else f"{cases:,} of {cases:,}")
    yield _row("control: kernels that do nothing", seen >= kinds, f"found in {seen} of {kinds * 4} cases")


def digests(place: Place) -> Iterator[Row]:
    """A cache is written, copied, added up and verified; one wrong bit is found."""
    geometry, blocks, size, target = Geometry(8, 8, 32), 48, 16, 40
    random = np.random.default_rng(3)
    claims = random.integers(0, 2**64, 512, np.uint64)
    slots = random.permutation(blocks * size)[: len(claims)].astype(np.int64)
    whole = np.arange(blocks), np.zeros(blocks, np.int64), np.full(blocks, size)
    sums, caches = [], []
    for backend in (place.backend(), NumpyBackend()):
        cache = backend.new_cache(geometry, blocks, size)
        key, value = backend.synthesize(claims, geometry)
        backend.reshape_and_cache(key, value, cache, slots)
        backend.copy_blocks(cache, *(np.array([each], np.int64) for each in (3, target, 11)))
        caches.append(cache)
        sums.append(backend.fingerprint_blocks(cache, *whole))
    digest = blake2b(sums[0].tobytes(), digest_size=8).hexdigest()
    yield _row(
        "bytes equal numpy's",
        np.array_equal(place.memory.host(caches[0]), caches[1]),
        f"{caches[1].nbytes >> 20} MiB",
    )
    yield _row("digests equal numpy's", np.array_equal(sums[0], sums[1]), digest)
    ours, kept = place.backend(), np.array([slot // size != target for slot in slots])
    at = slots[kept] // size, slots[kept] % size, claims[kept]
    clean = ours.verify_blocks(caches[0], *at).sum()
    broken = caches[1].copy()
    broken[5, at[0][7], 1, at[1][7], 3, 30] ^= np.uint64(1)
    found = np.argwhere(ours.verify_blocks(place.memory.taken(broken), *at)).tolist()
    yield _row(
        "one wrong bit is found, and nothing else", not clean and found == [[5, 7]], f"{kept.sum():,} tokens"
    )


def attention(place: Place) -> Iterator[Row]:
    """Long rows of every element against float64."""
    random, kernels = np.random.default_rng(4), place.kernels()
    lengths, size, dims, heads = np.array([1, 700, 2000]), 16, 64, 2
    table = random.permutation(400)[: 3 * 125].reshape(3, 125).astype(np.int32)
    query = random.standard_normal((3, 4 * heads, dims)).astype(np.float32)
    values = random.standard_normal((2, 400, size, heads, dims)).astype(np.float32)
    for name, given, meant in _elements(values):
        taken = place.memory.taken
        output, _ = kernels.paged_attention_decode(
            taken(query), taken(given[0]), taken(given[1]), table, lengths, scale=dims**-0.5
        )
        found, worst = place.memory.host(output), 0.0
        for row, length in enumerate(lengths.tolist()):
            positions = np.arange(length)
            read = meant[:, table[row, positions // size], positions % size].astype(np.float64)
            wanted = twins.attention(query[row].astype(np.float64), read[0], read[1], dims**-0.5)
            worst = max(worst, float(np.abs(found[row] - wanted).max() / np.abs(wanted).max()))
        yield _row(f"attention over {name}", worst <= TOLERANCE, f"{worst:.1e} of the largest output")


def _elements(values: np.ndarray) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    half, brain = values.astype(np.float16), (values.view(np.uint32) >> 16).astype(np.uint16)
    eight = twins.e4m3_of(values)
    yield "fp32", values, values
    yield "fp16", half, half
    yield "bf16", brain, twins.bf16_values(brain)
    yield "e4m3", eight, twins.e4m3_values()[eight]


def beyond_32_bits(place: Place) -> Iterator[Row]:
    """Tokens at both ends of a cache of more than 2^31 elements."""
    right = beyond.written_right(place.kernels(), beyond.cache_in(place.huge()))
    yield _row("slots beyond 2^31 elements", right == beyond.TOKENS, f"{right} of {beyond.TOKENS} tokens")


def streams(place: Place) -> Iterator[Row]:
    """Two streams write to one cache, with an event and without."""
    seen = {event: place.torn(ROUNDS, event=event) for event in (True, False)}
    yield _row("two streams with an event", seen[True] == 0, f"torn in {seen[True]} of {ROUNDS} rounds")
    yield _row("two streams without one", seen[False] > 0, f"torn in {seen[False]} of {ROUNDS} rounds")


def sharing(place: Place) -> Iterator[Row]:
    """Torch's memory and stream."""
    yield Row("memory and stream of torch", "passed", place.share())


def bandwidth(place: Place) -> Iterator[Row]:
    """What each kernel moves, as a share of a plain copy in the same run."""
    kernels = place.kernels(waits=False)
    plain = plain_copy(kernels, place.size, place.copy)
    ceiling = plain.moved / place.seconds(plain.call)
    yield Row("a plain copy", "measured", f"{ceiling / 1e9:,.1f} GB/s")
    for works in (moving, computing):
        for work in works(kernels, place.size):
            yield _measured(place, work, ceiling)


def _measured(place: Place, work: Work, ceiling: float) -> Row:
    rate = work.moved / place.seconds(work.call)
    return Row(
        f"{work.kernel} {work.form}", "measured", f"{rate / 1e9:,.4g} GB/s, {rate / ceiling:.1%} of a copy"
    )


def memory_checker(command: list[str]) -> Iterator[Row]:
    """The vendor's memory checker over a run of the random cases in a process of its own."""
    tool = shutil.which("compute-sanitizer")
    if tool is None:
        raise NotHereError("compute-sanitizer is not installed")
    # CuPy asks the driver for what it may not have: errors of such calls say nothing of a kernel's memory.
    options = ["--tool", "memcheck", "--report-api-errors", "no", "--error-exitcode", "9"]
    checked = [tool, *options, *command]
    try:
        done = subprocess.run(checked, capture_output=True, text=True, check=False, timeout=120)
    except subprocess.TimeoutExpired:
        yield Row("compute-sanitizer memcheck", "failed", "took more than 120 s")
        return
    said = (done.stdout + done.stderr).strip().splitlines() or [""]
    if "Device not supported" in done.stdout + done.stderr:
        raise NotHereError("compute-sanitizer doesn't support this device")
    summary = next((line for line in reversed(said) if "ERROR SUMMARY" in line), said[-1])
    yield _row("compute-sanitizer memcheck", done.returncode == 0, summary.strip("= "))


def rows_of(name: str, check: Check) -> Iterator[Row]:
    """A check's rows; one that breaks is a failed row, one that can't be made here a skipped one."""
    try:
        yield from check()
    except NotHereError as error:
        yield Row(name, "skipped", str(error))
    except Exception as error:
        traceback.print_exc()
        said = str(error).splitlines() or [""]
        yield Row(name, "failed", f"{type(error).__name__}: {said[0]}")
