"""Controls of the oracle: true histories with one lie in each, and the clause that must fall by it.

The oracle is pure, so the records of a correct run can be forged before they are judged. A true
history holds; whoever weakens a clause has its lies to answer for.
"""

from collections.abc import Sequence
from functools import cache
from typing import Final, NamedTuple

from msgspec.structs import replace

from kvproof.fuzz.adapters.reference import ReferenceAdapter
from kvproof.fuzz.forgeries import (
    Forge,
    answer,
    as_before,
    block,
    both,
    crashed,
    first_row,
    foreign_hit,
    free,
    handed_keyed,
    kept_keys,
    keyed,
    lost_count,
    new_key,
    orphan,
    other_key,
    other_tokens,
    refused,
    rows,
    same,
    seen,
    told_after,
    unkeyed,
    unseen,
    younger_alone,
)
from kvproof.fuzz.histories import (
    AHEAD,
    ASIDE,
    AWAITED,
    BESIDE,
    CHUNKED,
    CONFIG,
    DRAFTED,
    DRAFTING,
    EXACT,
    FILLED,
    FOREIGN,
    HISTORY,
    LEANING,
    LOST,
    LOST_HIT,
    MOVING,
    MOVING_OFF,
    PAIR,
    PENDING,
    RECYCLED,
    REJECTED,
    REUSED,
    SHARED,
    SKETCHED,
    SPARE,
    SPLIT,
    TENANTS,
    THREE,
    TOO_LARGE,
    TRIMMED,
    TWINS,
    UNREAD,
    UNREADING,
    WITHDRAWN,
    History,
)
from kvproof.fuzz.session import Session
from kvproof.spec import operations as op
from kvproof.spec.oracle import Oracle, Violation
from kvproof.spec.vocabulary import CacheConfig, Capabilities


class Lie(NamedTuple):
    """Record `at` of a history, counted from 0, is forged: clause `code` must be the first that falls.

    Without a code what is forged is no lie: it takes a freedom that is declared. `capabilities` are what
    the allocator declares; `policy` says that it is compared with the policy it claims. Where
    `also`, another clause explains more and is named first.
    """

    code: str
    at: int
    forge: Forge
    capabilities: Capabilities
    history: History
    config: CacheConfig = CONFIG
    policy: bool = False
    also: bool = False

    def true(self) -> tuple[op.Record, ...]:
        """The records without the lie."""
        return records_of(self.history, self.config)

    def forged(self) -> list[op.Record]:
        """The records with the lie among them."""
        true = list(self.true())
        return [*true[: self.at], self.forge(true[self.at], true), *true[self.at + 1 :]]

    def judge(self, records: Sequence[op.Record]) -> Violation | None:
        """What the oracle says of records; it is shown no more than the allocator declares."""
        oracle = Oracle(self.config, self.capabilities, compare_policy=self.policy)
        for record in records:
            seen = record.observation if self.capabilities.level >= 2 else None
            if oracle.judge(record.operation, record.answer, seen, record.memory):
                break
        return oracle.violation

    def found(self, violation: Violation | None) -> bool:
        """Whether a judgement is right."""
        if violation is None:
            return not self.code
        return self.code in violation.also if self.also else self.code == violation.code


@cache
def records_of(history: History, config: CacheConfig = CONFIG) -> tuple[op.Record, ...]:
    """What the reference answers and shows along a history."""
    records: list[op.Record] = []
    session = Session(ReferenceAdapter(), config, watch=records.append)
    assert session.run(history).result == "holds", session.violation
    return tuple(records)


SMALL = replace(CONFIG, blocks=3)
MISMATCH = op.Mismatch(1, 0, 0, 4, 5)
STALE_PADDING = rows("host", lambda found: (found[0], replace(found[1], rows=((5, 0, 0, 0, 0, 0),))))
STALE_ON_DEVICE = rows("device", lambda found: (found[0], replace(found[1], rows=((5, 0, 0, 0, 0, 0),))))
UNKNOWN = op.Stored((b"new",), None, (1, 2), 2)
POLICY = Capabilities(3, policy=True)
L1, SWAPS, L3 = Capabilities(1), Capabilities(1, swap=True), Capabilities(3, features=("events",))

EVERYTHING = Capabilities(1, swap=True, idempotent=True)
PADDED = rows("device", lambda found: (found[0], replace(found[1], slots=((5,),))))


LIES: Final = (
    Lie("KV-P-capacity", 1, crashed, L3, TOO_LARGE, replace(CONFIG, blocks=2)),
    Lie("KV-P-crash", 10, crashed, L3, HISTORY),
    Lie("KV-P-refusal", 1, refused, L3, HISTORY),
    Lie("KV-I3-bound", 5, answer(hit=6), L3, HISTORY),
    Lie("KV-I3-optout", 16, answer(hit=2), L3, HISTORY),
    Lie("KV-I3-boundary", 5, answer(hit=3), L3, HISTORY),
    Lie("KV-I3-cover", 5, answer(rows=((1, 2),)), L3, HISTORY),
    Lie("KV-I3-stable", 10, answer(row=(1, 3, 2)), L3, HISTORY),
    Lie("KV-I1-null", 1, answer(rows=((0, 2, 3),)), L3, HISTORY),
    Lie("KV-I1-twice", 1, answer(rows=((1, 1, 3),)), L3, HISTORY),
    Lie("KV-I4-handout", 5, answer(rows=((1, 2, 3),)), L3, HISTORY),
    Lie("KV-I4-release", 12, free(lambda queue: (3, *queue)), L3, HISTORY),
    Lie("KV-I1-exclusive", 9, answer(rows=((1, 2, 3, 4),)), L3, HISTORY),
    Lie("KV-I1-queue", 1, free(lambda queue: (1, *queue)), L3, HISTORY),
    Lie("KV-I1-refcount", 1, block(1, ref_cnt=2), L3, HISTORY),
    Lie("KV-I1-lost", 1, free(lambda queue: queue[1:]), L3, HISTORY),
    Lie("KV-I1-table", 1, seen(rows={}), L3, HISTORY),
    Lie("KV-I6-draft", 1, new_key(3), L3, HISTORY),
    Lie("KV-I6-withdraw", 2, kept_keys, L3, WITHDRAWN),
    Lie("KV-I6-hit", 4, answer(hit=4, rows=((1, 2, 4),)), L1, WITHDRAWN),
    Lie("KV-I4-key", 5, keyed(1, like=2), L3, HISTORY),
    Lie("KV-I2-standing", 9, keyed(1, like=2), L3, HISTORY),
    Lie("KV-I2-key", 16, handed_keyed, L3, HISTORY),
    Lie("KV-I2-boundary", 1, block(1, tokens=1), L3, HISTORY),
    Lie("KV-I2-hit", 5, answer(rows=((2, 1, 4),)), L1, HISTORY),
    Lie("KV-I2-write", 9, answer(rows=((1, 2, 4),)), SWAPS, UNREAD),
    Lie("KV-I2-read", 9, answer(rows=((2, 1, 3),)), SWAPS, UNREAD),
    Lie("KV-I2-bytes", 7, lambda record, _: replace(record, memory=(MISMATCH,)), L3, HISTORY),
    Lie("KV-I5-row", 2, rows("host", first_row(rows=((1, 3, 2, 0, 0, 0),))), L3, HISTORY),
    Lie("KV-I5-device", 7, rows("device", first_row(rows=((1, 3, 2, 0, 0, 0),))), L3, HISTORY),
    Lie("KV-I5-stale", 2, STALE_PADDING, L3, HISTORY),
    Lie("KV-I5-slot", 7, rows("device", first_row(slots=((2, 3, 4, 5, 7),))), L3, HISTORY),
    Lie("KV-P-accounting", 1, seen(metrics=op.Metrics(2, 5)), L3, HISTORY),
    Lie("KV-P-usage", 1, seen(usage=0.9), POLICY, HISTORY),
    Lie("KV-P-atomic", 4, free(lambda queue: queue[::-1]), L3, HISTORY),
    Lie("KV-P-reset", 20, kept_keys, L3, HISTORY),
    Lie("KV-P-isolation", 3, answer(hit=2, rows=((1, 3),)), L1, TENANTS, also=True),
    Lie("KV-P-canonical", 3, other_key, L3, TWINS),
    Lie("KV-P-leak", 14, lost_count, L3, HISTORY),
    Lie("KV-P-events", 1, seen(events=()), L3, HISTORY),
    Lie("KV-P-chain", 1, other_tokens, L3, HISTORY),
    Lie("KV-I2-read", 9, answer(rows=((1, 2, 4),)), EVERYTHING, UNREAD),
    Lie("KV-I2-hit", 5, answer(rows=((1, 3, 4),)), L1, HISTORY),
    Lie("KV-I3-stable", 9, answer(rows=((2, 1, 3),)), L1, UNREAD),
    Lie("KV-I3-cover", 1, answer(rows=((1, 2, 3), (4, 5, 6))), L1, HISTORY),
    Lie("KV-I3-cover", 1, answer(rows=()), L1, HISTORY),
    Lie("KV-I5-slot", 7, PADDED, L3, HISTORY),
    Lie("KV-P-events", 20, seen(events=()), L3, HISTORY),
    Lie("KV-P-chain", 9, orphan, L3, HISTORY),
    Lie("KV-I4-handout", 5, answer(rows=((2,),)), L1, DRAFTED),
    Lie("KV-I3-stable", 4, answer(rows=((1, 2),)), SWAPS, TRIMMED),
    Lie("KV-I2-write", 8, answer(swapped={"b": ((3, 2),)}), SWAPS, SHARED),
    Lie("", 8, answer(swapped={"b": ((3, 4, 2),)}), SWAPS, AHEAD),
    Lie("", 8, answer(swapped={"b": ((3, 6, 5),)}), SWAPS, AHEAD),
    Lie("KV-I2-write", 8, answer(swapped={"b": ((3, 6, 5),)}), SWAPS, DRAFTING),
    Lie("KV-I1-exclusive", 5, answer(rows=((1,),)), L1, THREE),
    Lie("KV-I2-key", 11, keyed(3, like=1), L3, LOST, also=True),
    Lie("KV-I4-key", 14, keyed(3, like=1), L3, LOST, also=True),
    Lie("KV-I2-hit", 13, answer(rows=((3, 4),)), L1, LOST_HIT),
    Lie("KV-I6-hit", 9, answer(hit=2, rows=((2, 3),)), L1, RECYCLED, SMALL),
    Lie("KV-I6-withdraw", 6, both(kept_keys, keyed(2, like=1)), L3, BESIDE),
    Lie("KV-I2-boundary", 3, younger_alone, L3, TWINS),
    Lie("KV-I5-row", 2, rows("host", first_row(rows=((1, 2),))), L3, HISTORY),
    Lie("KV-I5-stale", 7, STALE_ON_DEVICE, L3, HISTORY),
    Lie("", 2, answer(host=None), L3, HISTORY),
    Lie("", 7, answer(device=None), L3, HISTORY),
    Lie("KV-I6-draft", 3, new_key(5), L3, ASIDE),
    Lie("KV-P-crash", 4, crashed, L3, FILLED, SMALL),
    Lie("KV-P-capacity", 7, crashed, L3, FILLED, SMALL),
    Lie("KV-P-capacity", 3, crashed, L3, AWAITED, replace(CONFIG, blocks=2)),
    Lie("KV-P-crash", 1, crashed, L3, CHUNKED, replace(CONFIG, blocks=2)),
    Lie("KV-P-crash", 1, crashed, L3, EXACT, replace(CONFIG, blocks=2)),
    Lie("KV-P-crash", 3, crashed, L3, PAIR, replace(CONFIG, blocks=4)),
    Lie("KV-P-crash", 1, crashed, L3, UNREADING, replace(CONFIG, blocks=1)),
    Lie("KV-P-refusal", 1, refused, L1, EXACT, replace(CONFIG, blocks=2)),
    Lie("", 6, same, L3, REUSED),
    Lie("KV-P-isolation", 7, answer(hit=2, rows=((1, 4),)), L1, FOREIGN, also=True),
    Lie("KV-P-chain", 1, told_after(op.Removed(b"new")), L3, HISTORY),
    Lie("KV-P-chain", 1, told_after(UNKNOWN, after=(op.Removed(b"new"),)), L3, HISTORY),
    Lie("KV-P-index", 1, unkeyed(1), POLICY, HISTORY, policy=True),
    Lie("KV-P-index", 1, unkeyed(1, free=None, rows=None), POLICY, HISTORY, policy=True),
    Lie("", 2, unseen, L3, WITHDRAWN[:3]),
    Lie("KV-I6-withdraw", 7, kept_keys, L3, RECYCLED, SMALL),
    Lie("KV-I6-withdraw", 8, keyed(3, like=1), L3, LOST, also=True),
    Lie("KV-I6-withdraw", 6, keyed(4, like=1), L3, SKETCHED, also=True),
    Lie("KV-I6-hit", 9, answer(hit=2, rows=((3, 4),)), L1, PENDING),
    Lie("KV-I6-hit", 8, answer(hit=4, rows=((3, 4, 5),)), L1, SKETCHED),
    Lie("KV-I2-read", 10, answer(swapped={"a": ((3, 2, 5),)}), SWAPS, LEANING),
    Lie("", 5, answer(rows=((3,),)), L1, SPARE),
    Lie("KV-I2-read", 8, answer(swapped={"a": ((3, 2),)}), EVERYTHING, MOVING),
    Lie("", 8, answer(swapped={"nobody": ((1,),)}), SWAPS, SHARED),
    Lie("", 8, answer(swapped={"b": ()}), SWAPS, SHARED),
    Lie(
        "KV-I6-withdraw",
        16,
        answer(swapped={"a": ((2, 3),)}),
        Capabilities(3, swap=True),
        MOVING_OFF,
        replace(CONFIG, blocks=4),
        also=True,
    ),
    Lie("KV-I6-hit", 9, answer(hit=4, rows=((3, 4, 5),)), L1, REJECTED),
    Lie("KV-I1-refcount", 13, as_before, L3, HISTORY),
    Lie("KV-I2-read", 7, answer(swapped={"a": ((3, 6),)}), SWAPS, SPLIT),
    Lie("KV-I1-null", 1, answer(rows=((1, 2, 3, 9),)), L3, HISTORY),
    Lie("KV-I1-lost", 1, free(lambda queue: (0, *queue[1:])), L3, HISTORY),
    Lie("KV-I1-lost", 1, free(lambda queue: (7, *queue[1:])), L3, HISTORY),
    Lie("KV-I2-standing", 3, foreign_hit, L3, TENANTS, also=True),
    Lie("KV-P-order", 14, free(lambda queue: queue[::-1]), POLICY, HISTORY, policy=True),
    Lie("KV-P-answer", 4, answer(hit=2, rows=((1,),)), POLICY, HISTORY, policy=True),
)
"""Every clause has one at least, and each part of it that could be dropped unnoticed one of its own."""
