"""Soak: however long it runs, memory stays flat, every history drains, and equal seeds are equal runs."""

import gc
import statistics
import tracemalloc

from kvproof.fuzz.adapters.reference import ReferenceAdapter
from kvproof.fuzz.engines.soak import EPISODE, soak


def at_level_2() -> ReferenceAdapter:
    return ReferenceAdapter(level=2)


def test_memory_does_not_grow_with_the_operations() -> None:
    sizes: list[int] = []

    def note(_: int) -> None:
        gc.collect()
        sizes.append(tracemalloc.get_traced_memory()[0])

    soak(2 * EPISODE, 1, adapter=at_level_2, execute=False)
    tracemalloc.start()
    try:
        soak(12 * EPISODE, 1, adapter=at_level_2, execute=False, progress=note)
    finally:
        tracemalloc.stop()
    early, late = sizes[3:7], sizes[-4:]
    assert len(sizes) >= 11
    assert statistics.median(late) < 1.3 * statistics.median(early)


def test_every_history_drains_to_quiescence() -> None:
    # With seed 3 no history is so short that nothing is ever held.
    result = soak(5 * EPISODE, 3, adapter=at_level_2, execute=False)
    assert result.case is None
    assert result.situations["drained"] == result.histories >= 4
    assert result.exercised["KV-P-leak"] > 0


def test_a_seed_is_a_run_and_another_seed_is_another() -> None:
    runs = [soak(2 * EPISODE, seed, adapter=at_level_2, execute=False).digest for seed in (3, 3, 4)]
    assert runs[0] == runs[1] != runs[2]


def test_the_mix_counts_what_was_granted_hit_refused_and_evicted() -> None:
    granted: list[bool] = []

    class Noting(ReferenceAdapter):
        def admit(self, request: str, n: int, lookahead: int) -> object:  # type: ignore[override]
            answer = super().admit(request, n, lookahead)
            granted.append(type(answer).__name__ == "Granted")
            return answer

        def extend(self, request: str, n: int, lookahead: int) -> object:  # type: ignore[override]
            answer = super().extend(request, n, lookahead)
            granted.append(type(answer).__name__ == "Granted")
            return answer

    result = soak(3 * EPISODE, 5, adapter=lambda: Noting(level=2), execute=False)
    assert result.mix.allocations == sum(granted)
    assert result.mix.refusals >= len(granted) - sum(granted)
    assert result.mix.hits > 0 and result.mix.evictions > 0
