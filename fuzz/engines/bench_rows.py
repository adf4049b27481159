"""What is measured: the rows of the table, and what passes between the parent and a contender's process."""

from collections.abc import Iterator
from typing import Final

import msgspec

BLOCK_SIZE: Final = 16
POOL: Final = 102_400
"""Usable blocks of the pool wherever its size isn't the row: a multiple of every prompt's blocks."""
DECODING: Final = 256
"""Requests that decode together."""
MAX_LEN: Final = 1 << 20


class Row(msgspec.Struct, frozen=True):
    """One line of the table: an operation of a `kind`, `count` times in each repetition.

    `size` is in blocks for a pool, in tokens for a request; `hit` is the percentage of a prompt
    that is cached before. In an `evicting` row every block that is handed out loses a key.
    """

    name: str
    unit: str
    kind: str
    count: int
    blocks: int = POOL
    size: int = 0
    hit: int = 0
    evicting: bool = False

    @property
    def higher_is_better(self) -> bool:
        """Rates rise, durations and sizes fall."""
        return self.unit.endswith("/s")

    @property
    def once(self) -> bool:
        """Whether a repetition would only say the same again."""
        return self.kind == "memory"

    def value(self, amount: float) -> float:
        """A repetition's seconds, or bytes, in the row's unit."""
        if self.higher_is_better:
            return self.count / amount
        return amount / self.count * {"µs": 1e6, "ms": 1e3, "B/block": 1.0}[self.unit]


class Work(msgspec.Struct, frozen=True):
    """What a repetition did; it must be the same for all contenders.

    Blocks handed out, tokens found in the cache, keys that blocks lost and got, and the blocks
    that were free at the end.
    """

    taken: int = 0
    hit: int = 0
    evicted: int = 0
    keyed: int = 0
    free: int = 0


class Sample(msgspec.Struct, frozen=True):
    """One repetition: seconds of CPU, or bytes, the seconds on the wall, and the work."""

    amount: float
    wall: float
    work: Work


class Ask(msgspec.Struct, frozen=True, omit_defaults=True):
    """To a contender's process: `start` a contender, `prepare` a row, `measure` it, `drop` it."""

    do: str
    contender: str = ""
    row: Row | None = None
    repetition: int = 0


class Said(msgspec.Struct, frozen=True, omit_defaults=True):
    """From a contender's process. `reason` says why it is not done; `skipped`: for no fault of anyone."""

    reason: str = ""
    skipped: bool = False
    sample: Sample | None = None


def rows(quick: bool = False) -> list[Row]:
    """All rows in their order. `quick` makes repetitions smaller and leaves out pools above 100k."""
    return [*_pools(quick), *_decodes(quick), *_prompts(quick), *_hashes(quick), *_sizes(quick)]


def _pools(quick: bool) -> Iterator[Row]:
    pairs, blocks = (5_000, 16_000) if quick else (50_000, 160_000)
    yield Row("get 1 + free 1", "pairs/s", "pool", pairs, size=1)
    yield Row("get 16 + free 16", "blocks/s", "pool", blocks, size=16)
    for name, usable in {"1k": 1_000, "1M": 1_000_000}.items():
        if usable <= POOL or not quick:
            yield Row(f"get 16 + free 16 of {name}", "blocks/s", "pool", blocks, blocks=usable, size=16)
    full = 4_096 if quick else 16_384
    for size in (1, 16):
        name = f"get {size}, each evicting"
        yield Row(name, "blocks/s", "pool", full, blocks=full, size=size, evicting=True)


def _decodes(quick: bool) -> Iterator[Row]:
    count = DECODING * (16 if quick else 64)
    yield Row("decode, allocate only", "calls/s", "decode", count, size=1_024)
    yield Row("decode, whole step", "tokens/s", "step", count, size=1_024)


def _prompts(quick: bool) -> Iterator[Row]:
    tokens = 1 << (16 if quick else 19)
    for k in (2, 8, 32):
        size = k * 1_024
        for hit in (0, 50, 100):
            yield Row(f"prompt {k}k, {hit} % hit", "µs", "prompt", tokens // size, size=size, hit=hit)
        yield Row(f"prompt {k}k, evicting", "µs", "prompt", tokens // size, size=size, evicting=True)
    for name, usable in {"9k": 9_216, "200k": 200_704}.items():
        if usable <= POOL or not quick:
            yield Row(
                f"prompt 32k, evicting of {name}",
                "µs",
                "prompt",
                tokens // size,
                blocks=usable,
                size=size,
                evicting=True,
            )


def _hashes(quick: bool) -> Iterator[Row]:
    for k in (32,) if quick else (32, 128):
        size = k * 1_024
        yield Row(f"hash {k}k tokens", "tokens/s", "hash", size, size=size)


def _sizes(quick: bool) -> Iterator[Row]:
    sizes = {"1k": 1_000, "10k": 10_000, "100k": 100_000, "1M": 1_000_000}
    if quick:
        del sizes["1M"]
    for name, blocks in sizes.items():
        count = max(1, (10_000 if quick else 100_000) // blocks)
        yield Row(f"construct {name} blocks", "ms", "construct", count, blocks=blocks)
    for name, blocks in sizes.items():
        yield Row(f"memory, {name} blocks", "B/block", "memory", blocks, blocks=blocks)
