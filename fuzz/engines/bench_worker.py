"""One contender in a process of its own: prepares a row, measures a repetition when asked.

Seconds are of CPU time, so that whoever else uses the cores is not counted. The collector is
on; what exists after the set-up is frozen, as an engine does after its start.
"""

import gc
import os
import sys
import time
import tracemalloc
import zlib
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec
import numpy as np

from kvproof.fuzz.engines.bench_drivers import Driver, driver
from kvproof.fuzz.engines.bench_rows import BLOCK_SIZE, DECODING, Ask, Row, Said, Sample, Work
from kvproof.fuzz.targets import TargetError, TargetSkipped

VOCABULARY: Final = 128_000
FILLING: Final = 256
"""Blocks of each prompt that fills a pool with keys."""

Measure = Callable[[int], Sample]
"""Measures a repetition by its number; 0 is the one before those that count."""


class Clock:
    """Adds up the time that is spent inside it."""

    def __init__(self) -> None:
        self.cpu = self.wall = 0.0
        gc.collect()

    def __enter__(self) -> "Clock":
        self._wall = time.perf_counter()
        self._cpu = time.process_time()
        return self

    def __exit__(self, *exc: object) -> None:
        self.cpu += time.process_time() - self._cpu
        self.wall += time.perf_counter() - self._wall

    def sample(self, work: Work) -> Sample:
        """The repetition."""
        return Sample(self.cpu, self.wall, work)


class Draw:
    """Token ids at random, the same in every process for a row and a repetition."""

    def __init__(self, row: Row, repetition: int) -> None:
        self._random = np.random.default_rng([zlib.crc32(row.name.encode()), repetition])

    def __call__(self, count: int) -> list[int]:
        tokens: list[int] = self._random.integers(0, VOCABULARY, count).tolist()
        return tokens


def keyed(manager: Any) -> int:
    """Blocks that carry a key."""
    return sum(block.block_hash is not None for block in manager.block_pool.blocks)


def taken(new: Any) -> int:
    """Blocks that an allocation handed out."""
    if new is None:
        raise AssertionError("an allocation was refused")
    return len(getattr(new, "blocks", (new,))[0])


def reset(manager: Any) -> None:
    """Forget all keys."""
    if not manager.reset_prefix_cache():
        raise AssertionError("the prefix cache cannot be reset")


def serve(made: Driver, manager: Any, requests: Sequence[Any]) -> list[tuple[int, Any]]:
    """Requests one after the other, from look-up to free."""
    answers = []
    for request in requests:
        answers.append(made.admit(manager, request))
        made.free(manager, request)
    return answers


def fill(made: Driver, manager: Any, row: Row, draw: Draw) -> None:
    """Free blocks only, and all with keys."""
    reset(manager)
    for number in range(row.blocks // FILLING):
        serve(made, manager, [made.request(manager, f"filling-{number}", draw(FILLING * BLOCK_SIZE))])
    if keyed(manager) != row.blocks:
        raise AssertionError(f"{keyed(manager)} of {row.blocks} blocks have a key")


# --- rows ---------------------------------------------------------------------------------


def _pool(made: Driver, row: Row) -> Measure:
    manager = made.build(row.blocks)
    pool = manager.block_pool
    get, free, size, rounds = pool.get_new_blocks, pool.free_blocks, row.size, row.count // row.size
    tried = get(size)
    free(tried)

    def measure(repetition: int) -> Sample:
        with Clock() as clock:
            for _ in range(rounds):
                free(get(size))
        return clock.sample(Work(taken=rounds * len(tried), free=pool.get_num_free_blocks()))

    def measure_evicting(repetition: int) -> Sample:
        fill(made, manager, row, Draw(row, repetition))
        with Clock() as clock:
            held = [get(size) for _ in range(rounds)]
        evicted = row.blocks - keyed(manager)
        for blocks in held:
            free(blocks)
        return clock.sample(Work(sum(map(len, held)), evicted=evicted, free=pool.get_num_free_blocks()))

    return measure_evicting if row.evicting else measure


def _decode(made: Driver, row: Row) -> Measure:
    """Requests that decode a token a step; in a whole step the driver's part counts, too."""
    manager = made.build(row.blocks)
    draw, pool = Draw(row, 0), manager.block_pool
    requests = [made.request(manager, f"r{number}", draw(row.size)) for number in range(DECODING)]
    for request in requests:
        made.admit(manager, request)
        made.append(request, 0)

    def measure(repetition: int) -> Sample:
        free, keys = pool.get_num_free_blocks(), keyed(manager)
        allocate, complete, whole = manager.allocate_slots, made.complete, row.kind == "step"
        clock = Clock()
        for token in range(row.count // DECODING):
            with clock:
                for request in requests:
                    allocate(request, 1)
                if whole:
                    complete(manager, requests, token)
            if not whole:
                complete(manager, requests, token)
        left = pool.get_num_free_blocks()
        return clock.sample(Work(free - left, keyed=keyed(manager) - keys, free=left))

    return measure


def _prompt(made: Driver, row: Row) -> Measure:
    manager = made.build(row.blocks)
    if row.evicting:
        fill(made, manager, row, Draw(row, 0))

    def measure(repetition: int) -> Sample:
        draw = Draw(row, repetition + 1)
        if not row.evicting:
            reset(manager)
        shared = draw(row.size * row.hit // 100)
        if shared:
            serve(made, manager, [made.request(manager, "producer", shared)])
        prompts = [shared + draw(row.size - len(shared)) for _ in range(row.count)]
        requests = [made.request(manager, f"r{number}", tokens) for number, tokens in enumerate(prompts)]
        before = keyed(manager)
        with Clock() as clock:
            answers = serve(made, manager, requests)
        blocks = sum(taken(new) for _, new in answers)
        # Prompts are a multiple of the block size: each block that was taken has got a key.
        evicted = before + blocks - keyed(manager)
        free = manager.block_pool.get_num_free_blocks()
        return clock.sample(Work(blocks, sum(hit for hit, _ in answers), evicted, blocks, free))

    return measure


def _hash(made: Driver, row: Row) -> Measure:
    def measure(repetition: int) -> Sample:
        call = made.hashing(Draw(row, repetition)(row.size))
        with Clock() as clock:
            keys = call()
        return clock.sample(Work(keyed=keys))

    return measure


def _construct(made: Driver, row: Row) -> Measure:
    def measure(repetition: int) -> Sample:
        with Clock() as clock:
            built = [made.build(row.blocks) for _ in range(row.count)]
        sample = clock.sample(Work(free=sum(each.block_pool.get_num_free_blocks() for each in built)))
        built.clear()
        gc.collect()
        return sample

    return measure


def _memory(made: Driver, row: Row) -> Measure:
    """What Python has allocated for an empty manager; the first one is small and fills caches."""

    def measure(repetition: int) -> Sample:
        gc.collect()
        started = time.perf_counter()
        tracemalloc.start()
        try:
            before, _ = tracemalloc.get_traced_memory()
            manager = made.build(row.blocks if repetition else 1)
            gc.collect()
            size = tracemalloc.get_traced_memory()[0] - before
        finally:
            tracemalloc.stop()
        free = manager.block_pool.get_num_free_blocks()
        return Sample(size, time.perf_counter() - started, Work(free=free))

    return measure


KINDS: Final = {
    "pool": _pool,
    "decode": _decode,
    "step": _decode,
    "prompt": _prompt,
    "hash": _hash,
    "construct": _construct,
    "memory": _memory,
}


# --- the process --------------------------------------------------------------------------


class Worker:
    """Answers what it is asked. A row that fails is a reason, and the next one begins anew."""

    def __init__(self) -> None:
        self._driver: Driver | None = None
        self._measure: Measure | None = None

    def answer(self, ask: Ask) -> Said:
        """Do it."""
        try:
            return self._do(ask)
        except TargetError as why:
            return Said(str(why).rstrip("."), isinstance(why, TargetSkipped))
        except Exception as error:
            return Said(f"{type(error).__name__}: {error}".rstrip(". "))

    def _do(self, ask: Ask) -> Said:
        match ask.do:
            case "start":
                self._driver = driver(ask.contender)
            case "prepare":
                assert self._driver is not None and ask.row is not None, "a contender and a row"
                self._measure = KINDS[ask.row.kind](self._driver, ask.row)
                self._measure(0)
                gc.collect()
                gc.freeze()
            case "measure":
                assert self._measure is not None, "a row is prepared"
                return Said(sample=self._measure(ask.repetition))
            case "drop":
                self._measure = None
                gc.unfreeze()
                gc.collect()
        return Said()


def main() -> None:
    """Answer line by line. What a contender's package prints goes to stderr."""
    out = os.dup(1)
    os.dup2(2, 1)
    worker = Worker()
    for line in sys.stdin.buffer:
        said = worker.answer(msgspec.json.decode(line, type=Ask))
        os.write(out, msgspec.json.encode(said) + b"\n")


if __name__ == "__main__":
    main()
