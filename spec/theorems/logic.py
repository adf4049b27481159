"""One notation for statements over blocks, holders and steps, read in three ways.

`Plain` evaluates over a finite universe in plain Python; `Quantified` builds Z3 terms with
quantifiers, for any number of each sort; `Bounded` spells the quantifiers out over a few
elements, which is how counterexamples become readable. Only the last two need Z3, and they
live in `quantified.py`, so that a refinement check loads none.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

Truth: TypeAlias = Any
"""A `bool`, or the Z3 term of one."""
Thing: TypeAlias = Any
"""An element of a sort, or the Z3 term of one. `==`, `<` and `+` work on both."""
Relation: TypeAlias = Callable[..., Any]
"""A function from elements to a truth value, a number or an element."""


class Logic(Protocol):
    """The connectives. `sort` is "block", "holder", "step" or "number" (1 … holders + 1)."""

    def both(self, *parts: Truth) -> Truth: ...
    def either(self, *parts: Truth) -> Truth: ...
    def negate(self, part: Truth) -> Truth: ...
    def implies(self, condition: Truth, consequence: Truth) -> Truth: ...
    def choose(self, condition: Truth, then: Thing, otherwise: Thing) -> Thing: ...
    def every(self, sort: str, holds: Callable[[Thing], Truth]) -> Truth: ...
    def some(self, sort: str, holds: Callable[[Thing], Truth]) -> Truth: ...


class Plain:
    """Truth over a finite universe, in plain Python."""

    def __init__(self, universe: Mapping[str, Sequence[Hashable]]) -> None:
        self.universe = universe

    def both(self, *parts: Truth) -> Truth:
        return all(parts)

    def either(self, *parts: Truth) -> Truth:
        return any(parts)

    def negate(self, part: Truth) -> Truth:
        return not part

    def implies(self, condition: Truth, consequence: Truth) -> Truth:
        return not condition or consequence

    def choose(self, condition: Truth, then: Thing, otherwise: Thing) -> Thing:
        return then if condition else otherwise

    def every(self, sort: str, holds: Callable[[Thing], Truth]) -> Truth:
        return all(holds(each) for each in self.universe[sort])

    def some(self, sort: str, holds: Callable[[Thing], Truth]) -> Truth:
        return any(holds(each) for each in self.universe[sort])


def update(logic: Logic, relation: Relation, place: tuple[Thing, ...], value: Thing) -> Relation:
    """The relation with one place changed."""

    def changed(*things: Thing) -> Thing:
        here = logic.both(*(thing == wanted for thing, wanted in zip(things, place, strict=True)))
        return logic.choose(here, value, relation(*things))

    return changed
