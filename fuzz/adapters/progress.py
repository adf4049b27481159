"""What an engine knows of a request beside its blocks; shared by adapters that play the engine."""

from dataclasses import dataclass

from kvproof.spec import operations as op
from kvproof.spec.vocabulary import CacheConfig


@dataclass(slots=True)
class Progress:
    """Tokens known, positions granted, samples under way, and the most tokens that it may have."""

    tokens: list[int]
    limit: int
    scheduled: int = 0
    pending: int = 0

    @classmethod
    def of(cls, submit: op.Submit, config: CacheConfig) -> "Progress":
        """The progress of a request that has just arrived."""
        return cls(op.flatten(submit.tokens), min(submit.options.max_len or config.max_len, config.max_len))

    def stop(self, n: int) -> int:
        """Where a grant of up to `n` more tokens ends."""
        return min(self.scheduled + n, len(self.tokens) + self.pending, self.limit)

    def dispatch(self) -> None:
        """A step takes the grant: it samples a token if it computes the last one."""
        self.pending += self.scheduled == len(self.tokens) + self.pending < self.limit

    def learn(self, sampled: tuple[int, ...]) -> None:
        """The tokens that a step sampled become known."""
        self.tokens.extend(sampled)
        self.pending -= len(sampled)

    def end(self) -> None:
        """The life is over; the request may begin another one."""
        self.scheduled = self.pending = 0
