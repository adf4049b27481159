"""The words of the specification: identifiers, sizes, configuration, capabilities.

Everything here is a plain value. `impl` shares these words and nothing else of `spec`.
"""

from typing import Final, NewType

import msgspec

BlockId = NewType("BlockId", int)
"""A physical block of device memory, 0…N. Id 0 is the null block (REQ-1.5)."""
GroupId = NewType("GroupId", int)
"""A cache group: the layers with equal cache semantics, 0…G−1."""
SlotIndex = NewType("SlotIndex", int)
"""A token's place in device memory, `block · B + offset`; −1 is padding (REQ-5.3)."""
TokenCount = NewType("TokenCount", int)
"""A number of tokens, or equally the boundary after that many tokens."""
LifeNumber = NewType("LifeNumber", int)
"""One admission of a request until finish, abort or preemption, numbered by the session from 1."""
StepNumber = NewType("StepNumber", int)
"""One dispatched forward, numbered by the session from 1."""

NULL_BLOCK: Final = BlockId(0)
PADDING_SLOT: Final = SlotIndex(-1)

BlockIds = tuple[int, ...]
"""A row: the block ids of one request in one group, by logical index; or any list of blocks."""
GroupRows = tuple[BlockIds, ...]
"""One row per group; the nesting stays with a single group (REQ-1.1)."""

HASHES: Final = ("sha256", "blake2b", "weak")
"""Hash functions of the reference: the canonical default, a faster one, a few-bit one for tests."""


MOST: Final = {
    "blocks": 1 << 24,
    "block_size": 1 << 16,
    "depth": 64,
    "max_requests": 1 << 12,
    "max_len": 1 << 24,
}
"""The largest sizes that are taken: beyond them a machine runs out of memory before anything is judged."""


class ConfigError(ValueError):
    """A configuration that cannot be met. The message is one sentence."""


class GroupConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A cache group. `kind` says what a query reads (REQ-1.3), `layers` how many layers share the row."""

    kind: str = "full"
    layers: int = 1


class CacheConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a manager is built for.

    `blocks` counts usable blocks; the null block comes on top. `depth` is the largest
    number of steps in flight. `max_len` bounds the tokens of a request and with
    `block_size` the width of a worker row; `max_requests` is the number of worker rows.
    """

    blocks: int
    block_size: int
    groups: tuple[GroupConfig, ...] = (GroupConfig(),)
    prefix_caching: bool = True
    depth: int = 1
    max_requests: int = 8
    max_len: int = 64
    hash: str = "sha256"
    events: bool = True

    def validate(self) -> "CacheConfig":
        """Return this configuration, or raise `ConfigError` with the first thing that is wrong."""
        for name in ("blocks", "block_size", "depth", "max_requests", "max_len"):
            value = getattr(self, name)
            if not 1 <= value <= MOST[name]:
                bound = "at least 1" if value < 1 else f"at most {MOST[name]:,}"
                raise ConfigError(f"'{name}' must be {bound}, not {value:,}.")
        if len(self.groups) != 1:
            raise ConfigError(f"exactly one cache group is supported, not {len(self.groups)}.")
        for group in self.groups:
            if group.kind != "full":
                raise ConfigError(f"group kind 'full' is supported, not '{group.kind}'.")
            if group.layers < 1:
                raise ConfigError(f"a group needs at least 1 layer, not {group.layers}.")
        if self.hash not in HASHES:
            raise ConfigError(f"'hash' must be one of {', '.join(HASHES)}, not '{self.hash}'.")
        return self


OPERATIONS: Final = ("lookup", "abort", "preempt", "evict", "reset", "table")
"""Operations that an allocator may lack; submit, admit, extend, row, retire and finish are essential."""

FEATURES: Final = (
    "chunks",
    "lookahead",
    "ahead",
    "discards",
    "adapters",
    "salts",
    "items",
    "spans",
    "embeddings",
    "opt_out",
    "events",
)
"""What an allocator may lack besides: grants of a part of what is left; slots for drafts; grants of
a token that a step in flight is still sampling; ending a life whose grant was not dispatched; the
extras of the key; items whose length their id does not decide; requests that do not read the
cache; an event stream."""


class PolicyChoices(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """In what a claimed policy may differ from the reference's, which is the default.

    Released blocks go to the back of the free queue, the deepest first; `unkeyed` says where those
    without a key go instead, and `uncached` all of them while prefix caching is off, where
    "back-in-order" is the back with the deepest last. `retired` says how far a life's blocks are
    keyed when a step retires: "known" tokens, as far as they are scheduled; or "settled" ones,
    fewer by those that were granted to be sampled and have not come.
    """

    unkeyed: str = "front"
    uncached: str = "front"
    retired: str = "known"


CHOICES: Final = {
    "unkeyed": ("front", "back"),
    "uncached": ("front", "back", "back-in-order"),
    "retired": ("known", "settled"),
}
"""What each choice of a policy may be."""


class Capabilities(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What an allocator lets be seen, what it can do, and which freedoms it takes; others it must not take.

    `level` 0…3 is what can be observed (answers; rows; structures; memory). `policy` says
    that it claims the reference policy to the letter but for `choices`, so that every answer is
    compared.
    `publish` is the earliest moment of a key: at the "grant" or at "retire".
    `stream_ordered` allows a block to be handed out while a step in flight touches it, when
    the new user comes later on the same stream. `idempotent` allows a shared slot to be
    rewritten with equal content. `swap` allows a row entry to be replaced by a block of
    equal content. `max_hit` is the largest hit: "len-1" or "len". `depth` is the most steps
    in flight, `block_sizes` the only block sizes (none: any), `operations` and `features`
    are of `OPERATIONS` and `FEATURES`.
    """

    level: int = 1
    policy: bool = False
    choices: PolicyChoices = PolicyChoices()
    publish: str = "grant"
    stream_ordered: bool = False
    idempotent: bool = False
    swap: bool = False
    max_hit: str = "len-1"
    depth: int = 1
    block_sizes: tuple[int, ...] = ()
    operations: tuple[str, ...] = ()
    features: tuple[str, ...] = ()

    def has(self, name: str) -> bool:
        """Whether it has an optional operation or feature."""
        return name in self.operations or name in self.features
