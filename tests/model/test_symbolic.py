"""The symbolic integer means what Python's does."""

import random
from typing import NamedTuple

import pytest
import z3

from kvproof.spec.theorems.symbolic import (
    NotLiftable,
    Scope,
    SymInt,
    all_of,
    integers,
    join,
    lift,
    solver,
    term_of,
)

CASES = 1_080


class Everything(NamedTuple):
    quotient: int
    remainder: int
    product: int
    difference: int
    negated: int
    less: bool
    most: bool
    more: bool
    least: bool
    same: bool
    other: bool


def everything(a, b):
    return Everything(a // b, a % b, a * b, 3 - a - b + 1, -a, a < b, a <= b, a > b, a >= b, a == b, a != b)


def truncating(a, b):
    """Everything, with the division of C."""
    quotient = abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
    return everything(a, b)._replace(quotient=quotient, remainder=a - b * quotient)


def signed_cases():
    draw = random.Random(8)
    near = [(a, b) for a in range(-7, 8) for b in range(-4, 5) if b]
    divisors = [draw.choice((-1, 1)) * draw.randint(1, 10**6) for _ in range(CASES)]
    return (near + [(draw.randint(-(10**12), 10**12), divisor) for divisor in divisors])[:CASES]


def disagreeing(reference):
    """Cases in which one symbolic run, evaluated at the case, differs from the reference."""
    a, b = integers("a b")
    scope = Scope.assuming(b != 0)
    symbolic = scope.call(everything, a, b)
    asked, found = solver(*scope.given), []
    for case in signed_cases():
        asked.push()
        asked.add(a.term == case[0], b.term == case[1])
        assert asked.check() == z3.sat
        model = asked.model()
        values = [model.eval(term_of(part), model_completion=True) for part in symbolic]
        plain = [z3.is_true(value) if z3.is_bool(value) else value.as_long() for value in values]
        if plain != list(reference(*case)):
            found.append(case)
        asked.pop()
    return found


def test_arithmetic_and_comparisons_are_pythons_for_all_signs():
    assert len(signed_cases()) == CASES
    assert disagreeing(everything) == []


def test_another_division_would_be_seen():
    assert len(disagreeing(truncating)) > CASES // 4


@pytest.mark.parametrize("divisor", [-5, -1, 1, 4])
def test_constant_divisors_round_down_too(divisor):
    for number in range(-12, 13):
        [value] = Scope([]).call(lambda n: (n // divisor,), SymInt(z3.IntVal(number)))
        assert z3.simplify(value.term).as_long() == number // divisor


def test_zero_raises_on_its_path_as_in_python():
    a, b = integers("a b")
    errors = [type(path.error) for path in lift(lambda: a // b)]
    assert errors.count(ZeroDivisionError) == 1 and errors.count(type(None)) == 2
    scope = Scope.assuming()
    scope.call(lambda: a // b)
    assert len(scope.failures) == 1


def test_every_feasible_path_is_explored_and_no_other():
    a, b = integers("a b")

    def classify(x, y):
        if x == y:
            return 0
        if x < y:
            return 1 if y < x else 2
        return 3

    assert sorted(path.result for path in lift(classify, a, b)) == [0, 2, 3]
    assert [path.result for path in lift(classify, a, b, assume=[(a == b).term])] == [0]


def test_named_tuples_are_kept_and_joined():
    a, b = integers("a b")

    class Pair(NamedTuple):
        low: int
        high: int

    joined = join(lift(lambda x, y: Pair(x, y) if x <= y else Pair(y, x), a, b))
    assert isinstance(joined, Pair)
    assert solver(z3.Not(all_of(joined.low <= a, a <= joined.high).term)).check() == z3.unsat


def test_an_unbounded_loop_is_refused():
    def count(limit):
        at = 0
        while at < limit:
            at += 1
        return at

    with pytest.raises(NotLiftable, match="cut the loop by an invariant"):
        lift(count, *integers("a"))


def test_too_many_paths_are_refused():
    def bits(*numbers):
        return sum(1 if number > 0 else 0 for number in numbers)

    with pytest.raises(NotLiftable, match="split the function"):
        lift(bits, *integers("a b c d e f g h i"))


USES = [range, int, float, hash, bool, lambda a: [1][a], lambda a: {a}, lambda a: a + "1"]


@pytest.mark.parametrize("use", USES)
def test_what_has_no_symbolic_form_fails_instead_of_running(use):
    [a] = integers("a")
    with pytest.raises((NotLiftable, TypeError)):
        use(a)


def test_a_symbolic_integer_is_no_int():
    assert not isinstance(SymInt(z3.Int("a")), int)
