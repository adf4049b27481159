"""A symbolic integer on which shipped Python functions run unchanged.

`SymInt` stands for every integer at once. Arithmetic builds Z3 terms with Python's meaning
(`//` and `%` round down, also for negative divisors); a comparison gives a `SymBool`, and
asking a `SymBool` for its truth value forks: `lift` runs the function again for each
decision until all paths are explored, and `Scope.call` joins them into one value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NoReturn, TypeAlias

import z3

Term: TypeAlias = Any
"""A Z3 term; z3 ships no types."""
Number: TypeAlias = Any
"""An `int` or a `SymInt`: what a liftable function takes."""

EFFORT = 20_000_000
"""Z3's resource limit for one question: deterministic, unlike a time limit."""
MOST_PATHS = 256
MOST_DECISIONS = 64

# Floor quotient and remainder by a symbolic positive divisor. Z3's own division by a variable is
# an obstacle to its nonlinear solver; these two are pinned down by `_division` where they are used.
_quotient = z3.Function("quotient", z3.IntSort(), z3.IntSort(), z3.IntSort())
_remainder = z3.Function("remainder", z3.IntSort(), z3.IntSort(), z3.IntSort())


class NotLiftable(Exception):
    """The function needs something that a symbolic value can't give."""


def solver(*terms: Term) -> Any:
    """A solver with the fixed effort, holding these terms."""
    made = z3.Solver()
    made.set("rlimit", EFFORT)
    made.add(*terms)
    return made


def term_of(value: object) -> Term:
    """The Z3 term of a symbolic or plain integer or truth value."""
    if isinstance(value, (SymInt, SymBool)):
        return value.term
    if isinstance(value, bool):
        return z3.BoolVal(value)
    if isinstance(value, int):
        return z3.IntVal(value)
    raise NotLiftable(f"a {type(value).__name__} has no symbolic form.")


class SymBool:
    """A truth value that depends on symbolic integers. Asking for it forks the run."""

    __slots__ = ("term",)
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, term: Term) -> None:
        self.term = term

    def __bool__(self) -> bool:
        return _current().decide(self.term)

    def __eq__(self, other: object) -> SymBool:  # type: ignore[override]
        return SymBool(self.term == term_of(other))

    def __ne__(self, other: object) -> SymBool:  # type: ignore[override]
        return SymBool(self.term != term_of(other))

    def __and__(self, other: SymBool | bool) -> SymBool:
        return SymBool(z3.And(self.term, term_of(other)))

    def __or__(self, other: SymBool | bool) -> SymBool:
        return SymBool(z3.Or(self.term, term_of(other)))

    def __invert__(self) -> SymBool:
        return SymBool(z3.Not(self.term))

    __rand__, __ror__ = __and__, __or__


class SymInt:
    """Any integer. Not a subclass of `int`: a missed operation must fail, not run on a stand-in."""

    __slots__ = ("term",)
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, term: Term) -> None:
        self.term = term

    def __add__(self, other: Number) -> SymInt:
        return SymInt(self.term + term_of(other))

    def __radd__(self, other: Number) -> SymInt:
        return SymInt(term_of(other) + self.term)

    def __sub__(self, other: Number) -> SymInt:
        return SymInt(self.term - term_of(other))

    def __rsub__(self, other: Number) -> SymInt:
        return SymInt(term_of(other) - self.term)

    def __mul__(self, other: Number) -> SymInt:
        return SymInt(self.term * term_of(other))

    def __rmul__(self, other: Number) -> SymInt:
        return SymInt(term_of(other) * self.term)

    def __neg__(self) -> SymInt:
        return SymInt(-self.term)

    def __floordiv__(self, other: Number) -> SymInt:
        return _divide(self, other)[0]

    def __rfloordiv__(self, other: Number) -> SymInt:
        return _divide(SymInt(term_of(other)), self)[0]

    def __mod__(self, other: Number) -> SymInt:
        return _divide(self, other)[1]

    def __rmod__(self, other: Number) -> SymInt:
        return _divide(SymInt(term_of(other)), self)[1]

    def __lt__(self, other: Number) -> SymBool:
        return SymBool(self.term < term_of(other))

    def __le__(self, other: Number) -> SymBool:
        return SymBool(self.term <= term_of(other))

    def __gt__(self, other: Number) -> SymBool:
        return SymBool(self.term > term_of(other))

    def __ge__(self, other: Number) -> SymBool:
        return SymBool(self.term >= term_of(other))

    def __eq__(self, other: object) -> SymBool:  # type: ignore[override]
        return SymBool(self.term == term_of(other))

    def __ne__(self, other: object) -> SymBool:  # type: ignore[override]
        return SymBool(self.term != term_of(other))

    def __bool__(self) -> bool:
        return bool(self != 0)

    def _concrete(self) -> NoReturn:
        raise NotLiftable("a symbolic integer has no single value: no range, index or conversion.")

    __index__ = __int__ = __float__ = _concrete


def _divide(numerator: SymInt, divisor: Number) -> tuple[SymInt, SymInt]:
    """Python's quotient and remainder, by the divisor's sign; zero raises as in Python."""
    if divisor == 0:
        raise ZeroDivisionError("integer division or modulo by zero")
    if divisor < 0:
        quotient, remainder = _divide(-numerator, -divisor)
        return quotient, -remainder
    top, bottom = numerator.term, term_of(divisor)
    if z3.is_int_value(bottom):  # linear: Z3's own division, which rounds down for positive divisors
        return SymInt(top / bottom), SymInt(top % bottom)
    quotient, remainder = SymInt(_quotient(top, bottom)), SymInt(_remainder(top, bottom))
    facts = (top == quotient.term * bottom + remainder.term, remainder.term >= 0, remainder.term < bottom)
    _current().learn(z3.And(*facts))
    return quotient, remainder


class _Run:
    """One run of a function: it follows `plan`, then takes every open decision as true."""

    def __init__(self, plan: Sequence[bool], assumed: Iterable[Term]) -> None:
        self.plan, self.taken = plan, list[bool]()
        self.open: list[list[bool]] = []
        self.conditions: list[Term] = []
        self.facts: list[Term] = []
        self.solver = solver(*assumed)

    def decide(self, term: Term) -> bool:
        if len(self.taken) < len(self.plan):
            choice = self.plan[len(self.taken)]
        else:
            choice = self.feasible(term)
            if choice and self.feasible(z3.Not(term)):
                self.open.append([*self.taken, False])
            if len(self.taken) >= MOST_DECISIONS:
                raise NotLiftable(f"more than {MOST_DECISIONS} decisions: cut the loop by an invariant.")
        self.taken.append(choice)
        condition = term if choice else z3.Not(term)
        self.conditions.append(condition)
        self.solver.add(condition)
        return choice

    def feasible(self, term: Term) -> bool:
        """False only if the path is certainly impossible; an undecided one is kept."""
        return bool(self.solver.check(term) != z3.unsat)

    def learn(self, fact: Term) -> None:
        self.facts.append(fact)
        self.solver.add(fact)


_runs: list[_Run] = []


def _current() -> _Run:
    if not _runs:
        raise NotLiftable("the truth of a symbolic value was asked for outside `lift`.")
    return _runs[-1]


@contextmanager
def _active(run: _Run) -> Iterator[None]:
    _runs.append(run)
    try:
        yield
    finally:
        _runs.pop()


@dataclass(frozen=True)
class Path:
    """One way through a function: when it is taken, what its divisions define, what comes out."""

    condition: Term
    facts: Term
    result: Any
    error: ArithmeticError | AssertionError | None = None


def lift(function: Callable[..., Any], *arguments: Any, assume: Iterable[Term] = ()) -> list[Path]:
    """All paths of a function on symbolic arguments; errors of the arithmetic are outcomes too."""
    assumed, plans, paths = list(assume), [list[bool]()], list[Path]()
    while plans:
        run = _Run(plans.pop(), assumed)
        result, error = None, None
        with _active(run):
            try:
                result = function(*arguments)
            except (ArithmeticError, AssertionError) as raised:
                error = raised
        paths.append(Path(z3.And(*run.conditions), z3.And(*run.facts), result, error))
        plans.extend(run.open)
        if len(paths) > MOST_PATHS:
            raise NotLiftable(f"more than {MOST_PATHS} paths: split the function.")
    return paths


def join(paths: Sequence[Path]) -> Any:
    """One value from the results of all paths; named tuples keep their type."""
    results = [path.result for path in paths]
    if isinstance(results[0], tuple):
        columns = ([Path(p.condition, p.facts, p.result[i]) for p in paths] for i in range(len(results[0])))
        return getattr(type(results[0]), "_make", tuple)(join(column) for column in columns)
    terms = [term_of(result) for result in results]
    joined = terms[-1]
    for path, term in zip(reversed(paths[:-1]), reversed(terms[:-1]), strict=True):
        joined = z3.If(path.condition, term, joined)
    return SymBool(joined) if z3.is_bool(joined) else SymInt(joined)


@dataclass
class Scope:
    """Assumptions, and what the functions called under them came to."""

    given: list[Term]
    failures: list[Term] = field(default_factory=list)

    @classmethod
    def assuming(cls, *given: SymBool | bool) -> Scope:
        return cls([term_of(each) for each in given])

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """The function's value as one expression. Paths that raise are kept as failures."""
        paths = lift(function, *arguments, assume=self.given)
        self.failures += [z3.And(path.condition, path.facts) for path in paths if path.error]
        returned = [path for path in paths if not path.error]
        if not returned:
            raise NotLiftable("the function raises on every path.")
        self.given += [z3.Implies(path.condition, path.facts) for path in paths]
        return join(returned)


def integers(names: str) -> list[SymInt]:
    """Symbolic integers with these names."""
    return [SymInt(z3.Int(name)) for name in names.split()]


def all_of(*values: SymBool | bool) -> SymBool:
    """Whether all of these hold, without forking."""
    return SymBool(z3.And(*map(term_of, values)))


def implies(condition: SymBool, consequence: SymBool) -> SymBool:
    """Whether the consequence follows, without forking."""
    return SymBool(z3.Implies(condition.term, consequence.term))
