"""What the manager raises: every misuse has a type, a stable code and one sentence.

An operation that raises one of these has changed nothing. Internal inconsistencies are
assertions instead.
"""

from typing import ClassVar


class CacheError(Exception):
    """Base of the errors. The message says what was expected, what was seen and what to do."""

    code: ClassVar[str] = "KV-E-cache"


class DoubleFree(CacheError):
    """A block is released that has no holder, is in the queue already, or is named twice (REQ-4.2, 4.5)."""

    code = "KV-E-double-free"

    def __init__(self, block_id: int) -> None:
        super().__init__(f"block {block_id} has no holder left to release it; release each row entry once.")


class NotFree(CacheError):
    """A block is taken out of the free queue that is not in it (REQ-4.2)."""

    code = "KV-E-not-free"

    def __init__(self, block_id: int) -> None:
        super().__init__(f"block {block_id} is not in the free queue; remove only free blocks, once.")


class OutOfBlocks(CacheError):
    """More blocks are demanded than the free queue holds; the capacity check was skipped (REQ-2.4)."""

    code = "KV-E-out-of-blocks"

    def __init__(self, wanted: int, free: int) -> None:
        super().__init__(f"{wanted} blocks are demanded and {free} are free; compare the demand first.")


class UnknownRequest(CacheError):
    """A request that has no living life is named."""

    code = "KV-E-unknown-request"

    def __init__(self, request_id: str) -> None:
        super().__init__(f"request {request_id!r} holds no blocks; admit it with allocate_slots first.")


class AlreadyAllocated(CacheError):
    """A life of this request id has begun, so it can't be looked up or admitted again."""

    code = "KV-E-already-allocated"

    def __init__(self, request_id: str) -> None:
        super().__init__(f"request {request_id!r} is admitted already; take hits before that.")


class NullBlockMisuse(CacheError):
    """The null block is used as an ordinary one (REQ-1.5)."""

    code = "KV-E-null-block"

    def __init__(self, what: str) -> None:
        super().__init__(f"the null block can't be {what}; leave id 0 out.")


class UnknownBlock(CacheError):
    """A block id lies outside the pool."""

    code = "KV-E-unknown-block"

    def __init__(self, block_id: int, num_usable: int) -> None:
        super().__init__(f"block ids are 1…{num_usable}, not {block_id}; name a block of a row.")


class StaleHit(CacheError):
    """A hit lost its key between look-up and allocation, or is no hit of this request (REQ-2.4)."""

    code = "KV-E-stale-hit"

    def __init__(self, request_id: str) -> None:
        super().__init__(f"the hit of request {request_id!r} no longer carries its keys; look it up again.")


class HeldPromise(CacheError):
    """A life can't end while others rest on its undispatched writes (REQ-2.10)."""

    code = "KV-E-held-promise"

    def __init__(self, request_id: str, block_id: int) -> None:
        super().__init__(
            f"block {block_id} of request {request_id!r} was hit before its write was dispatched; "
            "preempt the lives that hit it first."
        )


class InvalidCount(CacheError):
    """A number of tokens or blocks, or a position, is outside its range."""

    code = "KV-E-invalid-count"

    def __init__(self, what: str, value: int, expected: str) -> None:
        super().__init__(f"{what} must be {expected}, not {value}.")


class InvalidExtras(CacheError):
    """Inputs beside the tokens contradict each other (REQ-3.1)."""

    code = "KV-E-invalid-extras"


class UnknownHash(CacheError):
    """There is no such hash function (REQ-3.2)."""

    code = "KV-E-unknown-hash"

    def __init__(self, name: str, digest_size: int) -> None:
        super().__init__(
            f"there is no hash {name!r} of {digest_size} bytes; use sha256 of 32, or blake2b of 16 or 32."
        )


class StepOrder(CacheError):
    """Steps are dispatched in rising order, with each request once, and retire in that order."""

    code = "KV-E-step-order"
