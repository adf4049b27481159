"""Every size formula of the manager and the worker, as pure functions over integers.

They are written to run unchanged on symbolic integers: `//`, `%`, comparisons and named
tuples, no bit tricks, no `isinstance`. Nothing else in `impl` computes a size.
Contracts are in PEP 316 form (`pre:` / `post:`); `kvproof prove` checks them.
"""

from typing import Final, NamedTuple


def cdiv(numerator: int, divisor: int) -> int:
    """Blocks needed for `numerator` tokens: the quotient rounded up.

    pre: numerator >= 0
    pre: divisor >= 1
    post: __return__ * divisor >= numerator
    post: (__return__ - 1) * divisor < numerator
    """
    return -(-numerator // divisor)


def full_blocks(tokens: int, block_size: int) -> int:
    """Blocks that `tokens` tokens fill completely (REQ-3.3).

    pre: tokens >= 0
    pre: block_size >= 1
    post: __return__ * block_size <= tokens < (__return__ + 1) * block_size
    """
    return tokens // block_size


def scheduled_tokens(computed: int, num_new: int, num_tokens: int) -> int:
    """The boundary after a grant of at most `num_new` tokens; only existing tokens are granted.

    pre: 0 <= computed <= num_tokens
    pre: num_new >= 0
    post: computed <= __return__ <= num_tokens
    post: __return__ <= computed + num_new
    """
    if computed + num_new < num_tokens:
        return computed + num_new
    return num_tokens


def slots_end(scheduled: int, lookahead: int, max_len: int) -> int:
    """The boundary up to which slots are needed: drafts may follow, never beyond `max_len` (REQ-2.1).

    pre: 0 <= scheduled <= max_len
    pre: lookahead >= 0
    post: scheduled <= __return__ <= max_len
    """
    if scheduled + lookahead < max_len:
        return scheduled + lookahead
    return max_len


def max_hit_blocks(num_tokens: int, block_size: int) -> int:
    """The longest hit in blocks: the last token is always computed again (REQ-3.5).

    pre: num_tokens >= 1
    pre: block_size >= 1
    post: __return__ * block_size <= num_tokens - 1
    post: (__return__ + 1) * block_size > num_tokens - 1
    """
    return (num_tokens - 1) // block_size


def new_blocks(slots: int, block_size: int, owned: int) -> int:
    """Blocks that a full-attention row of `owned` blocks must gain to hold `slots` tokens (REQ-2.2, 2.11).

    pre: slots >= 0
    pre: block_size >= 1
    pre: owned >= 0
    post: __return__ >= 0
    post: (owned + __return__) * block_size >= slots
    post: __return__ == 0 or (owned + __return__ - 1) * block_size < slots
    """
    need = cdiv(slots, block_size) - owned
    if need > 0:
        return need
    return 0


class Demand(NamedTuple):
    """What an allocation takes from the free queue: fresh blocks and hits that lie in it (REQ-2.3)."""

    fresh: int
    evictable: int


NOTHING: Final = Demand(0, 0)
"""The demand of a row that has room, as most rows that decode have: made once."""


def demand(slots: int, block_size: int, owned: int, hits: int, evictable: int) -> Demand:
    """Demand of one full-attention group; hits count as owned, evictable ones leave the queue too.

    pre: slots >= 0
    pre: block_size >= 1
    pre: owned >= 0
    pre: 0 <= evictable <= hits
    post: __return__.fresh >= 0
    post: __return__.evictable == evictable
    """
    fresh = new_blocks(slots, block_size, owned + hits)
    if fresh == 0 and evictable == 0:
        return NOTHING
    return Demand(fresh, evictable)


def fits(wanted: Demand, free: int) -> bool:
    """Whether the free queue can serve a demand (REQ-2.3, 2.4).

    pre: free >= 0
    pre: wanted.fresh >= 0 and wanted.evictable >= 0
    post: __return__ == (wanted.fresh + wanted.evictable <= free)
    """
    return wanted.fresh + wanted.evictable <= free


def publishable_blocks(scheduled: int, num_tokens: int, block_size: int) -> int:
    """Blocks that may carry a key: full of tokens that are scheduled and known (REQ-2.8).

    pre: scheduled >= 0
    pre: num_tokens >= 0
    pre: block_size >= 1
    post: __return__ * block_size <= scheduled
    post: __return__ * block_size <= num_tokens
    post: (__return__ + 1) * block_size > scheduled or (__return__ + 1) * block_size > num_tokens
    """
    if scheduled < num_tokens:
        return full_blocks(scheduled, block_size)
    return full_blocks(num_tokens, block_size)


def block_index(position: int, block_size: int) -> int:
    """The logical block of a position.

    pre: position >= 0
    pre: block_size >= 1
    post: __return__ * block_size <= position < (__return__ + 1) * block_size
    """
    return position // block_size


def block_offset(position: int, block_size: int) -> int:
    """The place of a position inside its block.

    pre: position >= 0
    pre: block_size >= 1
    post: 0 <= __return__ < block_size
    """
    return position % block_size


def slot(block: int, position: int, block_size: int) -> int:
    """The slot of a position whose logical block is `block` (REQ-5.3).

    pre: block >= 0
    pre: position >= 0
    pre: block_size >= 1
    post: __return__ // block_size == block
    post: __return__ % block_size == position % block_size
    """
    return block * block_size + block_offset(position, block_size)


def row_width(max_len: int, block_size: int) -> int:
    """Columns of a worker row.

    pre: max_len >= 1
    pre: block_size >= 1
    post: __return__ * block_size >= max_len
    """
    return cdiv(max_len, block_size)


def block_tokens(blocks: int, block_size: int) -> int:
    """The boundary behind `blocks` full blocks.

    pre: blocks >= 0
    pre: block_size >= 1
    post: __return__ // block_size == blocks
    post: __return__ % block_size == 0
    """
    return blocks * block_size


def positions_in_block(position: int, end: int, block_size: int) -> int:
    """How many of the positions `position … end−1` lie in the block of the first one.

    pre: 0 <= position < end
    pre: block_size >= 1
    post: 1 <= __return__ <= end - position
    post: (position + __return__ - 1) // block_size == position // block_size
    post: position + __return__ == end or (position + __return__) % block_size == 0
    """
    room = block_size - block_offset(position, block_size)
    if position + room < end:
        return room
    return end - position


def joint_demand(first: Demand, second: Demand) -> Demand:
    """Demand of two groups together (REQ-2.4).

    pre: first.fresh >= 0 and first.evictable >= 0
    pre: second.fresh >= 0 and second.evictable >= 0
    post: __return__.fresh == first.fresh + second.fresh
    post: __return__.evictable == first.evictable + second.evictable
    """
    return Demand(first.fresh + second.fresh, first.evictable + second.evictable)


def dispatched_tokens(scheduled: int, undispatched: int) -> int:
    """The boundary up to which dispatched steps promise a life's content (REQ-2.10).

    pre: 0 <= undispatched <= scheduled
    post: 0 <= __return__ <= scheduled
    """
    return scheduled - undispatched


def samples(scheduled: int, undispatched: int, expected: int, max_len: int) -> bool:
    """Whether a step that computes up to `scheduled` yields a token: it reaches the end of the
    `expected` tokens, known and pending, and there is room for one more.

    pre: 0 <= undispatched <= scheduled <= expected <= max_len
    post: not __return__ or (undispatched > 0 and expected + 1 <= max_len)
    """
    return undispatched > 0 and scheduled == expected and expected < max_len


def still_pending(pending: int, sampled: int) -> int:
    """Tokens that are still to be sampled when one step's output of `sampled` tokens is known.

    pre: pending >= 0
    pre: sampled >= 0
    post: 0 <= __return__ <= pending
    """
    if pending > 0 and sampled > 0:
        return pending - 1
    return pending
