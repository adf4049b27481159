"""Theorems, their verdicts, and the wrong variants that a prover worth believing refutes."""

import enum
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import z3

from kvproof.spec.theorems.symbolic import Scope, SymBool, SymInt, Term, solver

S = TypeVar("S")
"""The subject of a theorem: the functions, plan or transitions that it is about."""

BOXES = (1, 2, 3, 4, 6, 8, 12)


class Verdict(enum.StrEnum):
    """What came of a statement. Only `PROVED` and a `REFUTED` that replays say anything."""

    PROVED = "proved"
    REFUTED = "refuted"
    UNDECIDED = "undecided"
    VACUOUS = "vacuous"


@dataclass(frozen=True)
class Goal:
    """One question: the claim follows from the assumptions, for all values.

    `witness` are terms whose satisfiability shows the assumptions satisfiable: the assumptions
    themselves, or their instance on a finite universe. `inputs` are what a counterexample names.
    """

    name: str
    given: tuple[Term, ...]
    claim: Term
    witness: tuple[Term, ...]
    inputs: tuple[SymInt, ...] = ()

    @classmethod
    def of(cls, name: str, scope: Scope, inputs: Sequence[SymInt], claim: SymBool, *uses: SymBool) -> "Goal":
        """A goal over integers; `uses` are instances of proved lemmas and further assumptions."""
        given = (*scope.given, *(use.term for use in uses))
        return cls(name, given, claim.term, given, tuple(inputs))

    def box(self, size: int) -> list[Term]:
        """That every input lies in −size … size."""
        return [z3.And(each.term >= -size, each.term <= size) for each in self.inputs]


def raises_nothing(scope: Scope, inputs: Sequence[SymInt]) -> Goal:
    """The goal that no function called in this scope raises."""
    return Goal.of("raises nothing", scope, inputs, SymBool(z3.Not(z3.Or(*scope.failures))))


@dataclass(frozen=True)
class Control(Generic[S]):
    """A wrong variant of a theorem's subject."""

    title: str
    wrong: S


@dataclass(frozen=True)
class Theorem(Generic[S]):
    """A sentence about a subject, the goals that it comes down to, and its controls.

    `models` asks for counterexamples as plain values, the smallest first; `disagrees` runs the
    subject on one in plain Python and says whether it breaks the definition.
    """

    id: str
    title: str
    bound: str
    subject: S
    goals: Callable[[S], list[Goal]]
    models: Callable[[S], Iterator[Any]]
    disagrees: Callable[[S, Any], bool]
    controls: tuple[Control[S], ...]


@dataclass(frozen=True)
class Judgement:
    """A theorem's verdict; `detail` names the goal that failed."""

    verdict: Verdict
    goals: int
    detail: str = ""


@dataclass(frozen=True)
class Refutation:
    """What became of a control. It counts only if it is replayed on plain Python."""

    title: str
    refuted: bool
    replayed: bool
    model: Any = None

    @property
    def counts(self) -> bool:
        return self.refuted and self.replayed


def satisfiable(goal: Goal) -> bool:
    """Whether the goal's assumptions can hold, asked in growing boxes and then without one."""
    boxes = [goal.box(size) for size in BOXES] if goal.inputs else []
    return any(solver(*goal.witness, *box).check() == z3.sat for box in [*boxes, []])


def decide(goal: Goal) -> Verdict:
    """Prove the goal from its assumptions alone."""
    answer = solver(*goal.given, z3.Not(goal.claim)).check()
    if answer == z3.unsat:
        return Verdict.PROVED
    return Verdict.REFUTED if answer == z3.sat else Verdict.UNDECIDED


def judge(theorem: Theorem[S]) -> Judgement:
    """Prove every goal; assumptions that can't hold make the theorem vacuous, no goals undecided."""
    goals = theorem.goals(theorem.subject)
    if not goals:
        return Judgement(Verdict.UNDECIDED, 0, "nothing to prove")
    shown: set[tuple[int, ...]] = set()
    for goal in goals:
        witness = tuple(term.get_id() for term in goal.witness)
        if witness not in shown and not satisfiable(goal):
            return Judgement(Verdict.VACUOUS, len(goals), goal.name)
        shown.add(witness)
        verdict = decide(goal)
        if verdict is not Verdict.PROVED:
            return Judgement(verdict, len(goals), goal.name)
    return Judgement(Verdict.PROVED, len(goals))


def refute(theorem: Theorem[S], control: Control[S]) -> Refutation:
    """Look for a counterexample to the wrong variant on which plain Python fails too.

    The right subject must pass the same replay, or the replay itself is broken.
    """
    refuted = False
    for model in theorem.models(control.wrong):
        refuted = True
        if theorem.disagrees(control.wrong, model) and not theorem.disagrees(theorem.subject, model):
            return Refutation(control.title, True, True, model)
    return Refutation(control.title, refuted, False)


def boxed_models(goals: Sequence[Goal]) -> Iterator[dict[str, int]]:
    """Counterexamples over integers: each goal asked again in growing boxes."""
    for size in BOXES:
        for goal in goals:
            asked = solver(*goal.given, z3.Not(goal.claim), *goal.box(size))
            if asked.check() == z3.sat:
                model = asked.model()
                value = {str(each.term): model.eval(each.term, model_completion=True) for each in goal.inputs}
                yield {name: term.as_long() for name, term in value.items()}
