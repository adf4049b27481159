"""What a clause is, and what it may look at.

A clause is one named function whose docstring is its sentence. It is given a `Moment` and
returns nothing, or the `Evidence` against the allocator. Its code is stable; its level says
how much an adapter must show before the clause can be judged.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import msgspec

from kvproof.spec import operations as op
from kvproof.spec.content import DRAFT, PENDING, POISON, Runs, first_difference
from kvproof.spec.state import State
from kvproof.spec.transitions import Effects


class Evidence(msgspec.Struct, frozen=True):
    """What was expected and observed, and the block and request that it is about."""

    expected: str
    observed: str
    block: int | None = None
    request: str | None = None


@dataclass(slots=True)
class Keys:
    """What the allocator's keys stand for, learnt from where they first appeared.

    A full block's key stands for the claim of the block's last position.
    """

    claim_of: dict[tuple[int, bytes], int] = field(default_factory=dict)
    key_of: dict[int, bytes] = field(default_factory=dict)
    announced: set[tuple[int, bytes]] = field(default_factory=set)
    """Keys hittable by the events alone."""
    listed: list[tuple[op.IndexEntry, int, Runs]] = field(default_factory=list)
    """The index as it was last seen: a key, a block under it, and what the block must hold.

    Keys of which nothing is known are left out.
    """


@dataclass(slots=True)
class Moment:
    """One record in context: the state after it, what it did, what was seen before and after.

    `new_keys` are `(entry, block)` pairs that were not in the index before, `memory` the wrong
    places of the device.
    """

    operation: op.Operation
    answer: op.Answer
    state: State
    effects: Effects
    keys: Keys
    seen: op.Observation | None
    previous: op.Observation | None
    memory: tuple[op.Mismatch, ...] = ()
    new_keys: list[tuple[op.IndexEntry, int]] = field(default_factory=list)
    _wrong_keys: "list[WrongKey] | None" = None

    def wrong_keys(self) -> "list[WrongKey]":
        """The index entries whose block does not hold what the key stands for, found in one pass."""
        if self._wrong_keys is None:
            self._wrong_keys = list(self._audit()) if self.seen is not None else []
        return self._wrong_keys

    def _audit(self) -> "Iterator[WrongKey]":
        state, written, writes = self.state, self.state.written, self.state.writes
        for entry, block, wanted in self.keys.listed:
            if written.get(block) == wanted and block not in writes:
                continue
            found = state.content(block)
            if found != wanted and (reason := cause(state, block, found, wanted)):
                yield WrongKey(entry, block, reason, found, wanted)


class WrongKey(NamedTuple):
    """A key, a block under it, and why the block's content is not what the key stands for."""

    entry: op.IndexEntry
    block: int
    reason: str
    found: Runs
    wanted: Runs


Check = Callable[[Moment], Evidence | None]


@dataclass(frozen=True, slots=True)
class Clause:
    """A checkable sentence. `on` are the operations after which it can fall; empty means all."""

    code: str
    level: int
    sentence: str
    check: Check
    on: tuple[type[op.Operation], ...]

    @property
    def invariant(self) -> str:
        """`I1`…`I6`, or `P` for the properties beside them."""
        return self.code.split("-")[1]


def clause(code: str, level: int, *on: type[op.Operation]) -> Callable[[Check], Clause]:
    """Make a clause of a function; its docstring's first line is the sentence."""

    def make(check: Check) -> Clause:
        assert check.__doc__, f"{code} has no sentence"
        return Clause(code, level, check.__doc__.strip().splitlines()[0], check, on)

    return make


def cause(state: State, block: int, found: Runs, wanted: Runs) -> str | None:
    """Why a content does not satisfy a claim, or none: the name decides which clause falls.

    `pending`, `draft` and `unwritten` content was never committed; `withdrawn` content was
    promised by a life that ended first; `stale` content is somebody else's.
    """
    difference = first_difference(found, wanted)
    if difference is None:
        return None
    claim = difference[1]
    if block in state.withdrawn:
        return "withdrawn"
    if claim > POISON:
        return "stale"
    return {PENDING: "pending", DRAFT: "draft", POISON: "unwritten"}.get(claim, "lost")


UNCOMMITTED: Final = ("pending", "draft", "unwritten", "withdrawn")


def describe(state: State, claim: int) -> str:
    """A claim in words: whose prefix it ends, as far as the history knows."""
    special = {POISON: "nothing written", PENDING: "a token not sampled yet", DRAFT: "a rejected draft token"}
    if claim <= POISON:
        return special.get(claim, "a token that nobody learned")
    for name, request in reversed(state.requests.items()):
        path = request.paths[0]
        for position in range(path.length):
            if path.at(position) == claim:
                return f"position {position} of {name}"
    _, token, _ = state.claims.origin(claim)
    return f"token {token} of a request that is gone"
