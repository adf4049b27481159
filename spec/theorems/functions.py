"""The functions under proof, as a theorem receives them."""

from collections.abc import Callable
from typing import Any, NamedTuple

from kvproof.spec.theorems.symbolic import Number

Function = Callable[..., Any]
"""A pure function over integers and named tuples of integers."""


class Functions(NamedTuple):
    """What an allocator computes its sizes with. The names say what each must mean."""

    scheduled_tokens: Function
    """(computed, num_new, num_tokens) → the boundary after the grant."""
    slots_end: Function
    """(scheduled, lookahead, max_len) → the boundary up to which slots are needed."""
    demand: Function
    """(slots, block_size, owned, hits, evictable) → a tuple with `fresh` and `evictable`."""
    fits: Function
    """(demand, free) → whether the allocation is granted."""
    block_index: Function
    """(position, block_size) → the position's logical block."""
    slot: Function
    """(block, position, block_size) → the position's slot in that block."""


class Taken(NamedTuple):
    """What a wrong variant of `demand` answers."""

    fresh: Number
    evictable: Number
