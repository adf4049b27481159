"""Facts about products and quotients that Z3 finds when asked alone and misses in a crowd.

Each is a function of its instance. A theorem that uses one proves it first, for all integers.
"""

from kvproof.spec.theorems.symbolic import Scope, SymBool, SymInt, all_of, implies, integers
from kvproof.spec.theorems.verdict import Goal


def monotone_product(less: SymInt, more: SymInt, block_size: SymInt) -> SymBool:
    """A row that is not longer holds no more tokens."""
    return implies(all_of(block_size >= 1, less <= more), less * block_size <= more * block_size)


def unique_quotient(
    first: SymInt, offset: SymInt, second: SymInt, other: SymInt, block_size: SymInt
) -> SymBool:
    """Block and offset are determined by the slot."""
    inside = all_of(offset >= 0, offset < block_size, other >= 0, other < block_size)
    same = first * block_size + offset == second * block_size + other
    return implies(all_of(block_size >= 1, inside, same), all_of(first == second, offset == other))


def lemma_goals() -> list[Goal]:
    """The lemmas as goals, each for all integers and without assumptions."""
    inputs = x, y, u, v, size = integers("x y u v size")
    nothing = Scope.assuming()
    return [
        Goal.of("lemma: monotone product", nothing, inputs, monotone_product(x, y, size)),
        Goal.of("lemma: unique quotient", nothing, inputs, unique_quotient(x, u, y, v, size)),
    ]
