"""One integer as an endless supply of small choices, the same on every machine."""

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")

_MASK = (1 << 64) - 1
_ASIDE = 0xD1B54A32D192ED03
"""Bits by which a stream aside differs."""


class Choices:
    """A splitmix64 stream: two seeds that differ in one bit share nothing visible."""

    __slots__ = ("_state",)

    def __init__(self, seed: int) -> None:
        self._state = seed & _MASK

    def aside(self) -> "Choices":
        """A stream of its own, derived from where this one stands: what this one gives stays the same."""
        return Choices(self._state ^ _ASIDE)

    def word(self) -> int:
        """64 fresh bits."""
        self._state = (self._state + 0x9E3779B97F4A7C15) & _MASK
        z = self._state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
        return z ^ (z >> 31)

    def below(self, n: int) -> int:
        """A number 0…n−1."""
        return self.word() % n

    def between(self, low: int, high: int) -> int:
        """A number low…high, both included."""
        return low + self.word() % (high - low + 1)

    def chance(self, percent: int) -> bool:
        """True in so many of a hundred cases."""
        return self.word() % 100 < percent

    def pick(self, options: Sequence[T]) -> T:
        """One of the options."""
        return options[self.word() % len(options)]
