"""Claims: what the K/V of a position may depend on, interned exactly.

A claim is an integer. It stands for a whole prefix: the root (group, epoch, adapter, salt)
and every token with its extras up to one position (REQ-3.1). Equal claims are equal
prefixes, without any digest. Claims of a run of consecutive token ids are consecutive
integers, so a long prefix is a few runs and a block, not a token, is the unit of cost.

A content says what a block holds, as runs `(claim, count)` from offset 0; the values below
zero and `POISON` are places that no claim allows anybody to read.
"""

from bisect import bisect_right
from collections.abc import Iterable
from typing import Final, NamedTuple

from kvproof.spec.operations import Extras, runs_of

POISON: Final = 0
"""Never written."""
PENDING: Final = -1
"""To be written for a token that is not sampled yet."""
DRAFT: Final = -2
"""Written for a draft token that was not accepted."""
LOST: Final = -3
"""Written by a life that ended before its token became known."""

Runs = tuple[tuple[int, int], ...]
"""`(claim, count)` pairs in order; a run of a special value repeats it, any other counts up."""

Extra = tuple[str, str | int, int] | None
"""What a position depends on beside its token: `("item", id, offset in it)`, `("embedding", content, 0)`."""

_SPAN: Final = 1 << 32
_NO_TOKEN: Final = -(1 << 62)


class Root(NamedTuple):
    """The start of a chain of claims."""

    group: int
    epoch: int
    adapter: tuple[str, int, str] | None
    salt: str


class Claims:
    """The interner. A node holds the first position of a run; position `j` of it is `node + j`."""

    def __init__(self) -> None:
        self._nodes: list[tuple[int, int, Extra | Root]] = [(0, _NO_TOKEN, None)]
        self._ids: dict[tuple[int, int, Extra | Root], int] = {}
        self._backs: dict[tuple[int, int], Runs] = {}

    def _intern(self, parent: int, token: int, what: Extra | Root) -> int:
        key = (parent, token, what)
        claim = self._ids.get(key)
        if claim is None:
            claim = self._ids[key] = len(self._nodes) * _SPAN
            self._nodes.append(key)
        return claim

    def root(self, root: Root) -> int:
        """The claim of the empty prefix under `root`."""
        return self._intern(0, _NO_TOKEN, root)

    def after(self, parent: int, token: int, extra: Extra = None) -> int:
        """The claim of `parent`'s prefix followed by `token`."""
        if extra is None and self._nodes[parent // _SPAN][1] + parent % _SPAN == token - 1:
            return parent + 1
        return self._intern(parent, token, extra)

    def origin(self, claim: int) -> tuple[int, int, Extra | Root]:
        """`(parent claim, token, extra)` of a position, or `(0, …, root)` of an empty prefix."""
        offset = claim % _SPAN
        parent, token, what = self._nodes[claim // _SPAN]
        return (claim - 1, token + offset, None) if offset else (parent, token, what)

    def back(self, claim: int, count: int) -> Runs:
        """The claims of the last `count` positions of a prefix that ends with `claim`."""
        known = self._backs.get((claim, count))
        if known is None:
            known = self._backs[claim, count] = self._walk_back(claim, count)
        return known

    def _walk_back(self, claim: int, count: int) -> Runs:
        runs: list[tuple[int, int]] = []
        while count:
            length = min(claim % _SPAN + 1, count)
            runs.append((claim - length + 1, length))
            count -= length
            claim = self._nodes[claim // _SPAN][0] if length == claim % _SPAN + 1 else claim - length
        return tuple(reversed(runs))

    def tokens_back(self, claim: int, count: int) -> list[int]:
        """The token ids of those positions."""
        tokens: list[int] = []
        for first, length in self.back(claim, count):
            start = self.origin(first)[1]
            tokens.extend(range(start, start + length))
        return tokens


class Path:
    """The claims of one request in one group, position by position, kept as runs."""

    def __init__(self, claims: Claims, root: Root, tokens: Iterable[int | tuple[int, int]], extras: Extras):
        self._claims = claims
        self._starts: list[int] = []
        self._bases: list[int] = []
        self._last = claims.root(root)
        self._known: dict[tuple[int, int], Runs] = {}
        """Runs of known positions that were asked for: these never change."""
        self.length = 0
        special = _extras_by_position(extras)
        for start, count in runs_of(tokens):
            if special:
                for i in range(count):
                    self._append(start + i, 1, special.get(self.length))
            else:
                self._append(start, count, None)

    def _append(self, token: int, count: int, extra: Extra) -> None:
        first = self._claims.after(self._last, token, extra)
        if first != self._last + 1 or not self.length:
            self._starts.append(self.length)
            self._bases.append(first)
        self._last = first + count - 1
        self.length += count

    def append(self, token: int) -> None:
        """A sampled token becomes known; sampled tokens have no extras."""
        self._append(token, 1, None)

    def at(self, position: int) -> int:
        """The claim of a known position."""
        i = bisect_right(self._starts, position) - 1
        return self._bases[i] + position - self._starts[i]

    def runs(self, start: int, stop: int) -> Runs:
        """The claims of positions `start … stop−1`; beyond the known ones they are `PENDING`."""
        if stop > self.length:
            return self._walk(start, stop)
        found = self._known.get((start, stop))
        if found is None:
            found = self._known[start, stop] = self._walk(start, stop)
        return found

    def _walk(self, start: int, stop: int) -> Runs:
        known = min(stop, self.length)
        out: list[tuple[int, int]] = []
        position = start
        i = bisect_right(self._starts, start) - 1
        while position < known:
            end = self._starts[i + 1] if i + 1 < len(self._starts) else self.length
            end = min(end, known)
            out.append((self._bases[i] + position - self._starts[i], end - position))
            position = end
            i += 1
        if position < stop:
            out.append((PENDING, stop - position))
        return tuple(out)


def _extras_by_position(extras: Extras) -> dict[int, Extra]:
    special: dict[int, Extra] = {}
    for item in extras.items:
        for i in range(item.length):
            special[item.offset + i] = ("item", item.id, i)
    for embedding in extras.embeddings:
        special[embedding.position] = ("embedding", embedding.content, 0)
    return special


def root_of(extras: Extras, group: int, epoch: int = 0) -> Root:
    """The root of a request's chain in a group."""
    adapter = extras.adapter
    identity = None if adapter is None else (adapter.name, adapter.id, adapter.path)
    return Root(group, epoch, identity, extras.salt)


def cut(runs: Runs, start: int, stop: int) -> Runs:
    """The part of a content at offsets `start … stop−1`."""
    out: list[tuple[int, int]] = []
    offset = 0
    for claim, count in runs:
        a, b = max(start, offset), min(stop, offset + count)
        if a < b:
            out.append((claim if claim <= POISON else claim + a - offset, b - a))
        offset += count
    return tuple(out)


def overwrite(runs: Runs, offset: int, new: Runs, size: int) -> Runs:
    """The content of a block of `size` tokens after `new` was written at `offset`."""
    stop = offset
    for _, count in new:
        stop += count
    if offset == 0 and stop == size:
        return new
    before = cut(runs, 0, offset) if offset else ()
    out: list[tuple[int, int]] = []
    last, length, after = POISON, 0, None
    for claim, count in (*before, *new, *cut(runs, stop, size)):
        # `after` is the claim that would go on from the run before.
        if claim == after:
            length += count
        else:
            if length:
                out.append((last, length))
            last, length = claim, count
        after = claim if claim <= POISON else last + length
    return (*out, (last, length))


def first_difference(found: Runs, wanted: Runs) -> tuple[int, int, int] | None:
    """`(offset, claim found, claim wanted)` where two equally long contents first differ."""
    if found == wanted:
        return None
    a = [claim if claim <= POISON else claim + i for claim, count in found for i in range(count)]
    b = [claim if claim <= POISON else claim + i for claim, count in wanted for i in range(count)]
    for offset, (x, y) in enumerate(zip(a, b, strict=True)):
        if x != y:
            return offset, x, y
    return None
