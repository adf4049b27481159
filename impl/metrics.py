"""Counters of the prefix cache (REQ-10.2)."""

from typing import NamedTuple


class PrefixCacheStats(NamedTuple):
    """Admitted lives that consulted the cache, their tokens, those of them that were hit, and preemptions."""

    requests: int = 0
    queries: int = 0
    hits: int = 0
    preemptions: int = 0


class PrefixCacheMetrics:
    """Counts once per admitted life, never at a look-up or a refusal."""

    def __init__(self) -> None:
        self.requests = self.queries = self.hits = self.preemptions = 0
        self._taken = PrefixCacheStats()

    def count_admission(self, queries: int, hits: int) -> None:
        """A life of `queries` tokens began, `hits` of them from the cache."""
        assert 0 <= hits < queries, "the last token is always computed again"
        self.requests += 1
        self.queries += queries
        self.hits += hits

    def count_preemption(self) -> None:
        """A life ended for want of space."""
        self.preemptions += 1

    @property
    def total(self) -> PrefixCacheStats:
        """Everything since the start."""
        return PrefixCacheStats(self.requests, self.queries, self.hits, self.preemptions)

    def take(self) -> PrefixCacheStats:
        """What was added since the last `take`."""
        total, before = self.total, self._taken
        self._taken = total
        return PrefixCacheStats(*(now - then for now, then in zip(total, before, strict=True)))
