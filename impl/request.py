"""A request as the manager sees it: tokens, what else K/V depends on, progress, keys."""

from array import array
from collections.abc import Iterable, Sequence

from kvproof.impl import arithmetic
from kvproof.impl.errors import InvalidCount, InvalidExtras
from kvproof.impl.hashing import AdapterId, BlockHasher, EmbeddingAt, ItemSpan


class Request:
    """Inputs and progress of one request.

    `num_tokens` tokens are known; `num_pending_tokens` more will be sampled by steps in
    flight. `num_computed_tokens` is the scheduled boundary of the current life, 0 without one; the
    manager sets both. `block_hashes` has the key of every full block of known tokens, or is
    empty without a hasher.
    """

    __slots__ = (
        "_extras",
        "_hasher",
        "_root",
        "block_hashes",
        "max_tokens",
        "num_computed_tokens",
        "num_pending_tokens",
        "num_tokens",
        "priority",
        "read_cache",
        "request_id",
        "tokens",
    )

    def __init__(
        self,
        request_id: str,
        tokens: Iterable[int],
        *,
        hasher: BlockHasher | None,
        max_tokens: int,
        adapter: AdapterId | None = None,
        cache_salt: str = "",
        items: Sequence[ItemSpan] = (),
        embeddings: Sequence[EmbeddingAt] = (),
        read_cache: bool = True,
        priority: int = 0,
        block_hashes: Sequence[bytes] | None = None,
    ) -> None:
        """`max_tokens` caps all tokens. `block_hashes` are the prompt's keys, if known from before."""
        self.request_id = request_id
        self.tokens = array("q", tokens)
        self.num_tokens = len(self.tokens)
        self.max_tokens = max_tokens
        if not 1 <= self.num_tokens <= max_tokens:
            raise InvalidCount("the number of prompt tokens", self.num_tokens, f"1…{max_tokens}")
        check_extras(items, embeddings)
        self.read_cache = read_cache
        self.priority = priority
        self.num_computed_tokens = 0
        self.num_pending_tokens = 0
        self.block_hashes: list[bytes] = []
        self._hasher = hasher
        if hasher is not None:
            self._root = hasher.root(adapter, cache_salt)
            self._extras = hasher.block_extras(items, embeddings)
            self.block_hashes += self._checked(hasher, block_hashes or ())
            hasher.extend(self.block_hashes, self._root, self.tokens, self._extras)

    def append_tokens(self, ids: Iterable[int]) -> None:
        """A step's output is known: its tokens are no longer pending, and filled blocks get keys."""
        new = list(ids)
        num_tokens = self.num_tokens + len(new)
        pending = arithmetic.still_pending(self.num_pending_tokens, len(new))
        if num_tokens + pending > self.max_tokens:
            raise InvalidCount("the number of tokens", num_tokens + pending, f"at most {self.max_tokens}")
        self.tokens.fromlist(new)
        self.num_tokens = num_tokens
        self.num_pending_tokens = pending
        hasher, keys = self._hasher, self.block_hashes
        if hasher is not None and arithmetic.full_blocks(num_tokens, hasher.block_size) > len(keys):
            hasher.extend(keys, self._root, self.tokens, self._extras)

    def _checked(self, hasher: BlockHasher, block_hashes: Sequence[bytes]) -> Sequence[bytes]:
        """Keys from before, if the prompt has as many full blocks."""
        full = arithmetic.full_blocks(self.num_tokens, hasher.block_size)
        if len(block_hashes) > full:
            raise InvalidCount("the number of given keys", len(block_hashes), f"at most {full}")
        return block_hashes

    def __repr__(self) -> str:
        return f"Request({self.request_id!r}, computed={self.num_computed_tokens} of {self.num_tokens})"


def check_extras(items: Sequence[ItemSpan], embeddings: Sequence[EmbeddingAt]) -> None:
    """Raise InvalidExtras unless items are in order and apart, and embeddings rise."""
    end = 0
    for identity, offset, length in items:
        if offset < end or length < 1:
            raise InvalidExtras(
                f"item {identity!r} must have a length and begin at {end} or later; sort items."
            )
        end = offset + length
    place = -1
    for position, _ in embeddings:
        if position <= place:
            raise InvalidExtras(f"embedding positions must rise, but {position} follows {place}; sort them.")
        place = position
