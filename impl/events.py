"""What changes in the set of hittable keys, for a router or a second cache to follow (REQ-8).

Replaying the events in order gives exactly the hittable keys: a key is stored when its
first copy appears and removed when its last copy goes.
"""

from array import array
from typing import NamedTuple


class BlockStored(NamedTuple):
    """These keys, a chain in order, became hittable.

    `parent` is the key before the first one, none at the start of a request. `tokens` are
    those of the keys' blocks, `block_size` to each.
    """

    keys: tuple[bytes, ...]
    parent: bytes | None
    tokens: "array[int]"
    block_size: int
    group: int


class BlockRemoved(NamedTuple):
    """This key is hittable no more."""

    key: bytes
    group: int


class AllBlocksCleared(NamedTuple):
    """No key is hittable any more."""


KVCacheEvent = BlockStored | BlockRemoved | AllBlocksCleared


class EventQueue:
    """Events since the last `take`. A pool without events has none of these."""

    def __init__(self) -> None:
        self.events: list[KVCacheEvent] = []

    def take(self) -> list[KVCacheEvent]:
        """Hand the events over, the oldest first."""
        events, self.events = self.events, []
        return events
