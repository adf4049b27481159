"""Slots: positions of a row and slots of its blocks correspond one to one (REQ-5.3)."""

from collections.abc import Mapping

from kvproof.spec.theorems.functions import Functions
from kvproof.spec.theorems.lemmas import lemma_goals, unique_quotient
from kvproof.spec.theorems.symbolic import Number, Scope, SymBool, all_of, integers
from kvproof.spec.theorems.verdict import Control, Goal, Theorem, boxed_models, raises_nothing


def cells(row: list[int], block_size: int) -> list[int]:
    """The definition: the slots of a row's blocks, block after block; position `p` lives in the p-th."""
    return [block * block_size + offset for block in row for offset in range(block_size)]


def disagrees(functions: Functions, numbers: Mapping[str, int]) -> bool:
    """Whether the mapping of a row with these blocks at these positions differs from the definition."""
    block_size = numbers["block_size"]
    places = {numbers["position"] // block_size: numbers["block"]}
    places.setdefault(numbers["position_2"] // block_size, numbers["block_2"])
    unused = iter(set(range(1, 3 + max(places) + len(places))) - set(places.values()))
    row = [places[i] if i in places else next(unused) for i in range(max(places) + 1)]
    for position, cell in enumerate(cells(row, block_size)):
        index = functions.block_index(position, block_size)
        if not 0 <= index < len(row) or functions.slot(row[index], position, block_size) != cell:
            return True
    return False


def goals(functions: Functions) -> list[Goal]:
    """Both ways, for two positions whose blocks are equal exactly where their row says so."""
    inputs = integers("block_size position block position_2 block_2 offset")
    block_size, p, x, q, y, offset = inputs
    scope = Scope.assuming(
        all_of(block_size >= 1, p >= 0, q >= 0, x >= 1, y >= 1, offset >= 0, offset < block_size)
    )
    i = scope.call(functions.block_index, p, block_size)
    j = scope.call(functions.block_index, q, block_size)
    first = scope.call(functions.slot, x, p, block_size)
    second = scope.call(functions.slot, y, q, block_size)
    # The witness of the way back: the position that a slot of the row's block at index i stands for.
    back = i * block_size + offset
    back_index = scope.call(functions.block_index, back, block_size)
    reached = scope.call(functions.slot, x, back, block_size)

    inside = all_of(x * block_size <= first, first < (x + 1) * block_size)
    inside_2 = all_of(y * block_size <= second, second < (y + 1) * block_size)
    index_right = all_of(i * block_size <= p, p < (i + 1) * block_size)
    index_right_2 = all_of(j * block_size <= q, q < (j + 1) * block_size)
    same_block = unique_quotient(x, first - x * block_size, y, second - y * block_size, block_size)
    same_index = unique_quotient(back_index, back - back_index * block_size, i, offset, block_size)
    row_of_distinct_blocks = (i == j) == (x == y)

    def goal(name: str, claim: SymBool, *uses: SymBool) -> Goal:
        return Goal.of(name, scope, inputs, claim, *uses)

    return [
        *lemma_goals(),
        raises_nothing(scope, inputs),
        goal("index: the block that holds the position", index_right),
        goal("inside: the slot lies in its block", inside),
        goal("apart: never in the null block, never padding", first >= block_size),
        goal(
            "injective: two positions of one row",
            first != second,
            row_of_distinct_blocks,
            p != q,
            *(inside, inside_2, index_right, index_right_2, same_block),
        ),
        goal("injective: rows with no common block", first != second, x != y, inside, inside_2, same_block),
        goal("surjective: the way back stays in the block", back_index == i, same_index),
        goal("surjective: each slot is reached", reached == x * block_size + offset, same_index),
    ]


# --- wrong variants -----------------------------------------------------------------------


def quotient_offset(block: Number, position: Number, block_size: Number) -> Number:
    """The offset is taken for the logical block."""
    return block * block_size + position // block_size


def wide_offset(block: Number, position: Number, block_size: Number) -> Number:
    """The block is thought to be one token wider."""
    return block * block_size + position % (block_size + 1)


def second_block_late(block: Number, position: Number, block_size: Number) -> Number:
    """The first position of the second block goes one slot too far: an `==` branch must be seen."""
    if position == block_size:
        return block * block_size + 1
    return block * block_size + position % block_size


def index_rounded_up(position: Number, block_size: Number) -> Number:
    """Positions inside a block are thought to lie in the next one."""
    return -(-position // block_size)


def theorem(functions: Functions) -> Theorem[Functions]:
    """The theorem about these functions."""
    return Theorem(
        id="slots",
        title=(
            "Different positions of rows of distinct blocks get different slots, each slot lies inside "
            "its block, and each slot of a row's blocks is reached."
        ),
        bound="all sizes",
        subject=functions,
        goals=goals,
        models=lambda subject: boxed_models(goals(subject)),
        disagrees=disagrees,
        controls=(
            Control("quotient for remainder", functions._replace(slot=quotient_offset)),
            Control("block one token wider", functions._replace(slot=wide_offset)),
            Control("== branch at the second block", functions._replace(slot=second_block_late)),
            Control("index rounded up", functions._replace(block_index=index_rounded_up)),
        ),
    )
