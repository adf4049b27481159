"""What a backend does: the kernels' calls, arrays in and arrays out.

A cache is one array `uint64 [layers, blocks, 2, block_size, heads, words]`, where `blocks`
counts the null block and the axis of 2 is key and value; a single layer's cache is the same
with `layers` 1. It lives where the backend keeps it. Keys and values of `n` tokens are
`[n, layers, heads, words]`. All calls take every layer at once: on tiny pools and in decode
the launches are what costs.
"""

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from kvproof.kernels.checked import Finding
from kvproof.kernels.words import Geometry, Words

Indices = npt.NDArray[np.int64]
Cache = Any


class SlotError(ValueError):
    """A read or a mapping outside the cache or the table. Nothing was done."""


class Report(NamedTuple):
    """What was wrong with a write, as indices into its arguments.

    `outside`: beyond the cache, or negative and not padding; never executed. `conflicts`: a
    target that the same call uses before; executed in an order that nobody may rely on.
    """

    outside: tuple[int, ...] = ()
    conflicts: tuple[int, ...] = ()

    @property
    def clean(self) -> bool:
        """Whether nothing was wrong."""
        return not self.outside and not self.conflicts


CLEAN = Report()


class Backend(ABC):
    """Runs the kernels somewhere."""

    name: str

    @abstractmethod
    def new_cache(self, geometry: Geometry, blocks: int, block_size: int) -> Cache:
        """A cache of `blocks` blocks, null block included, every byte 0xFF."""

    @abstractmethod
    def synthesize(self, digests: Words, geometry: Geometry) -> tuple[Words, Words]:
        """Keys and values made from claim digests."""

    @abstractmethod
    def reshape_and_cache(self, key: Words, value: Words, cache: Cache, slot_mapping: Indices) -> Report:
        """Write each token to its slot, `block · block_size + offset`; −1 is padding and writes nothing."""

    @abstractmethod
    def gather(self, cache: Cache, slots: Indices) -> tuple[Words, Words]:
        """Keys and values that lie in `slots`. Raises `SlotError` for a slot outside the cache."""

    @abstractmethod
    def verify_blocks(self, cache: Cache, blocks: Indices, offsets: Indices, digests: Words) -> Indices:
        """How many words of each token differ from what its digest demands, `[layers, n]`.

        Raises `SlotError` for a place outside the cache.
        """

    @abstractmethod
    def fingerprint_blocks(self, cache: Cache, blocks: Indices, starts: Indices, ends: Indices) -> Words:
        """The 128-bit sum over tokens `starts[i] … ends[i] − 1` of block `blocks[i]`, `[layers, n, 2]`.

        Additive over tokens, each half modulo 2^64. Raises `SlotError` for tokens outside the cache.
        """

    def take_findings(self) -> tuple[Finding, ...]:
        """What kernels did wrong since the last call: nothing is seen where nobody watches."""
        return ()

    @abstractmethod
    def copy_blocks(self, cache: Cache, sources: Indices, targets: Indices, tokens: Indices) -> Report:
        """Copy the first `tokens[i]` tokens of `sources[i]` to `targets[i]` on every layer.

        The copies of a call are unordered: a block that another copy of the call writes is a
        conflict, as source or as target.
        """

    @abstractmethod
    def compute_slot_mapping(
        self,
        table: npt.NDArray[np.int32],
        num_blocks: npt.NDArray[np.int32],
        rows: Indices,
        positions: Indices,
        block_size: int,
    ) -> Indices:
        """The slot of each (row, position); row −1 is padding and gives −1.

        Raises `SlotError` for a row outside the table, for a position behind its row's end, and where
        the row's entry is below 0.
        """
