"""The notation of `logic.py` as Z3 terms: with quantifiers, or spelled out over a few elements."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cache
from itertools import count
from typing import Any

import z3

from kvproof.spec.theorems.logic import Relation, Thing, Truth

SORTS = ("block", "holder", "step")
_fresh = count()


class _Connectives(ABC):
    """What both readings share: each says what its sorts are, and reads quantifiers over them."""

    def both(self, *parts: Truth) -> Truth:
        return z3.And(*parts)

    def either(self, *parts: Truth) -> Truth:
        return z3.Or(*parts)

    def negate(self, part: Truth) -> Truth:
        return z3.Not(part)

    def implies(self, condition: Truth, consequence: Truth) -> Truth:
        return z3.Implies(condition, consequence)

    def choose(self, condition: Truth, then: Thing, otherwise: Thing) -> Thing:
        return z3.If(condition, then, otherwise)

    @abstractmethod
    def sort(self, name: str) -> Any:
        """The Z3 sort of blocks, holders or steps, of truths, or of numbers."""

    @abstractmethod
    def every(self, sort: str, holds: Callable[[Thing], Truth]) -> Truth:
        """That something holds of every element of a sort."""

    @abstractmethod
    def some(self, sort: str, holds: Callable[[Thing], Truth]) -> Truth:
        """That something holds of an element of a sort."""

    def constant(self, name: str, sort: str) -> Thing:
        """An element nothing is known of."""
        return z3.Const(f"{name}.{sort}", self.sort(sort))

    def relation(self, name: str, *sorts: str) -> Relation:
        """A relation nothing is known of; the last sort is the result's."""
        made: Relation = z3.Function(name, *(self.sort(sort) for sort in sorts))
        return made


class Quantified(_Connectives):
    """Any number of blocks, holders and steps."""

    def sort(self, name: str) -> Any:
        if name in SORTS:
            return z3.DeclareSort(name)
        return z3.BoolSort() if name == "truth" else z3.IntSort()

    def every(self, sort: str, holds: Callable[[Thing], Truth]) -> Truth:
        thing = self.constant(f"any{next(_fresh)}", sort)
        return z3.ForAll([thing], holds(thing))

    def some(self, sort: str, holds: Callable[[Thing], Truth]) -> Truth:
        thing = self.constant(f"one{next(_fresh)}", sort)
        return z3.Exists([thing], holds(thing))


@cache
def _elements(sort: str, size: int) -> tuple[Any, tuple[Thing, ...]]:
    made, elements = z3.EnumSort(f"{sort}×{size}", [f"{sort} {i} of {size}" for i in range(size)])
    return made, tuple(elements)


class Bounded(_Connectives):
    """`size` holders and steps, and `size` blocks beside the null block, which is the first.

    Numbers run one further than holders: that no holder has the last one bounds reference counts.
    """

    def __init__(self, size: int) -> None:
        self.size = size

    def elements(self, sort: str) -> tuple[Thing, ...]:
        """The elements of a sort, spelled out."""
        if sort == "number":
            return tuple(z3.IntVal(i) for i in range(1, self.size + 2))
        return _elements(sort, self.size + (sort == "block"))[1]

    def sort(self, name: str) -> Any:
        if name in SORTS:
            return _elements(name, self.size + (name == "block"))[0]
        return z3.BoolSort() if name == "truth" else z3.IntSort()

    def every(self, sort: str, holds: Callable[[Thing], Truth]) -> Truth:
        return z3.And(*(holds(each) for each in self.elements(sort)))

    def some(self, sort: str, holds: Callable[[Thing], Truth]) -> Truth:
        return z3.Or(*(holds(each) for each in self.elements(sort)))

    def universe(self) -> dict[str, tuple[int, ...]]:
        """The same universe for plain Python: elements by their number."""
        sizes = {sort: range(self.size + (sort == "block")) for sort in SORTS}
        return {
            **{sort: tuple(size) for sort, size in sizes.items()},
            "number": tuple(range(1, self.size + 2)),
        }

    def table(self, model: Any, relation: Relation, *sorts: str) -> dict[tuple[int, ...], Any]:
        """A relation of the model as plain values, elements by their number."""
        places: list[tuple[tuple[int, ...], tuple[Thing, ...]]] = [((), ())]
        for sort in sorts:
            first = 1 if sort == "number" else 0
            named = list(enumerate(self.elements(sort), first))
            places = [((*n, i), (*t, thing)) for n, t in places for i, thing in named]
        return {numbers: self.value(model, relation(*things)) for numbers, things in places}

    def value(self, model: Any, term: Thing) -> Any:
        """A plain value: a bool, an int, or an element's number."""
        value = model.eval(term, model_completion=True)
        if z3.is_bool(value):
            return z3.is_true(value)
        if z3.is_int_value(value):
            return value.as_long()
        return next(
            i for i in range(value.sort().num_constructors()) if value.sort().constructor(i)().eq(value)
        )
