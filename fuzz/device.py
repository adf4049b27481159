"""The harness's own device: real buffers that hold contents made from claims, checked word by word."""

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np

from kvproof.fuzz import devices
from kvproof.kernels import words
from kvproof.kernels.backends.base import Backend, Indices, Report
from kvproof.kernels.checked import Finding, Wrong
from kvproof.kernels.words import Geometry, Words
from kvproof.spec import operations as op
from kvproof.spec.content import Claims, Root
from kvproof.spec.vocabulary import CacheConfig, ConfigError

__all__ = ["SMALL", "Device", "Digests", "Geometry", "extra_bytes", "extras_of", "root_bytes"]

MOST_TOKENS: Final = 1 << 22
"""Positions in all blocks together: half a gigabyte of contents."""

SMALL: Final = Geometry(layers=2, heads=2, words=2)

Place = tuple[int, int, int]
"""A block, an offset in it, and the claim digest that is demanded there."""
Extra = tuple[str, str | int, int]
"""`("item", id, offset inside it)` or `("embedding", content, 0)`, as in the oracle's claims."""


class Device:
    """Memory for a configuration: `blocks + 1` blocks on every layer of the geometry, poisoned at first.

    It runs on the backend of this process unless it is given one. Raises `ConfigError` where the
    memory is more than the machine should hold.
    """

    def __init__(
        self, config: CacheConfig, geometry: Geometry = SMALL, backend: Backend | None = None
    ) -> None:
        tokens = (config.blocks + 1) * config.block_size
        if tokens > MOST_TOKENS:
            raise ConfigError(f"a device holds at most {MOST_TOKENS:,} tokens, not {tokens:,}.")
        self.block_size = config.block_size
        self.geometry = geometry
        self.backend = backend or devices.current()
        self.cache = self.backend.new_cache(geometry, config.blocks + 1, config.block_size)
        self._findings: tuple[Finding, ...] = ()

    def write(self, slots: Sequence[int], digests: Sequence[int]) -> Report:
        """Write each token's contents through the slots, in every layer; −1 is padding.

        Of two tokens for one slot the later stays, on every backend.
        """
        key, value = self.backend.synthesize(_words(digests), self.geometry)
        where = np.array(slots, np.int64)
        report = self._told(self.backend.reshape_and_cache(key, value, self.cache, where))
        for i in report.conflicts:
            # Threads race for the slot. A verdict must not depend on who wins.
            one = slice(i, i + 1)
            self.backend.reshape_and_cache(key[one], value[one], self.cache, where[one])
        return report

    def verify(self, expected: Sequence[Place]) -> tuple[op.Mismatch, ...]:
        """Every token and layer whose words are not those of the demanded digest.

        Raises `SlotError` for a place that the device doesn't have.
        """
        if not expected:
            return ()
        blocks, offsets, digests = zip(*expected, strict=True)
        wrong = self.backend.verify_blocks(
            self.cache, np.array(blocks, np.int64), np.array(offsets, np.int64), _words(digests)
        )
        if not np.count_nonzero(wrong):
            return ()
        return tuple(self._mismatches(expected, wrong))

    def fingerprints(self, blocks: Sequence[int], tokens: Sequence[int]) -> list[list[int]]:
        """What the words of each block's first tokens add up to, layer by layer: it changes with any of them.

        Raises `SlotError` for tokens that the device doesn't have.
        """
        count = len(blocks)
        sums = self.backend.fingerprint_blocks(
            self.cache, np.array(blocks, np.int64), np.zeros(count, np.int64), np.array(tokens, np.int64)
        )
        found: list[list[int]] = sums.transpose(1, 0, 2).reshape(count, -1).tolist()
        return found

    def take_findings(self) -> tuple[Finding, ...]:
        """What kernels did wrong since the last call, where their accesses are watched."""
        found = self._findings + self.backend.take_findings()
        self._findings = ()
        return found

    def copy(self, copies: Iterable[tuple[int, int, int]]) -> Report:
        """Execute copies `(source block, target block, first tokens)`, unordered among themselves."""
        columns = np.array(list(copies), np.int64).reshape(-1, 3)
        return self._told(self.backend.copy_blocks(self.cache, columns[:, 0], columns[:, 1], columns[:, 2]))

    def _told(self, report: Report) -> Report:
        """The report. Threads that were told to write one place are no fault of the kernel's."""
        if report.conflicts:
            others = [each for each in self.backend.take_findings() if each.wrong is not Wrong.RACE]
            self._findings = (*self._findings, *others)
        return report

    def writer(self, block: int, offset: int, layer: int) -> int | None:
        """The digest that all words of a token come from in a layer; none if they don't agree."""
        return self._writers(np.array([block * self.block_size + offset], np.int64))[0][layer]

    def _mismatches(self, expected: Sequence[Place], wrong: Indices) -> list[op.Mismatch]:
        tokens = np.flatnonzero(wrong.sum(axis=0)).tolist()
        slots = np.array([expected[i][0] * self.block_size + expected[i][1] for i in tokens], np.int64)
        counts, found = wrong.T.tolist(), self._writers(slots)
        return [
            op.Mismatch(
                block=expected[i][0],
                layer=layer,
                offset=expected[i][1],
                words=count,
                expected=expected[i][2],
                found=writers[layer],
            )
            for i, writers in zip(tokens, found, strict=True)
            for layer, count in enumerate(counts[i])
            if count
        ]

    def _writers(self, slots: Indices) -> list[list[int | None]]:
        """Per slot and layer the one digest that all words come from."""
        found = words.recover_array(np.stack(self.backend.gather(self.cache, slots)), self.geometry)
        flat = found.transpose(1, 2, 0, 3, 4).reshape(len(slots), self.geometry.layers, -1)
        agree = (flat == flat[:, :, :1]).all(axis=2).tolist()
        first = flat[:, :, 0].tolist()
        return [
            [digest if same else None for digest, same in zip(*layers, strict=True)]
            for layers in zip(first, agree, strict=True)
        ]


def _words(digests: Sequence[int]) -> Words:
    return np.array(digests, np.uint64)


# --- from claims to digests ---------------------------------------------------------------


def _encode(*fields: int | str) -> bytes:
    """Typed and with lengths, so that different fields never give the same bytes."""
    encoded = b""
    for field in fields:
        kind = b"s" if isinstance(field, str) else b"i"
        data = str(field).encode("utf-8", "surrogatepass")
        encoded += b"%s%d:%s" % (kind, len(data), data)
    return encoded


def root_bytes(root: Root) -> bytes:
    """What all contents of a request in a group depend on."""
    return _encode(root.group, root.epoch, root.salt, *(root.adapter or ()))


def extra_bytes(extra: Extra) -> bytes:
    """What the contents of a position depend on besides its token."""
    return _encode(*extra)


def extras_of(extras: op.Extras) -> dict[int, Extra]:
    """The extra of every position that has one; an embedding replaces what an item says."""
    found: dict[int, Extra] = {}
    for item in extras.items:
        found.update({item.offset + i: ("item", item.id, i) for i in range(item.length)})
    found.update({each.position: ("embedding", each.content, 0) for each in extras.embeddings})
    return found


class Digests:
    """Claim digests, from what a worker received or from the oracle's claims; equal for equal claims."""

    def __init__(self) -> None:
        self._roots: dict[Root, int] = {}
        self._extras: dict[Extra, int] = {}
        self._claims: dict[int, int] = {}

    def root(self, root: Root) -> int:
        """The digest in front of a request's first position."""
        digest = self._roots.get(root)
        if digest is None:
            digest = self._roots[root] = words.root_digest(root_bytes(root))
        return digest

    def extend(self, digest: int, token: int, extra: Extra | None = None) -> int:
        """The digest of a position from that of the one before it."""
        if extra is None:
            return words.extend(digest, token)
        part = self._extras.get(extra)
        if part is None:
            part = self._extras[extra] = words.extra_digest(extra_bytes(extra))
        return words.extend(digest, token, part)

    def of(self, claim: int, claims: Claims) -> int:
        """The digest of an interned claim. One instance serves one interner."""
        known = self._claims
        if claim in known:
            return known[claim]
        if claim <= 0:
            raise ValueError(f"{claim} marks a place that no claim allows anybody to read.")
        pending: list[tuple[int, int, Extra | None]] = []
        while claim not in known:
            parent, token, what = claims.origin(claim)
            if isinstance(what, Root):
                known[claim] = self.root(what)
                break
            pending.append((claim, token, what))
            claim = parent
        digest = known[claim]
        for claim, token, extra in reversed(pending):
            digest = known[claim] = self.extend(digest, token, extra)
        return digest
