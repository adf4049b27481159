"""Exploration: every sequence of operations of a preset, on the real manager, every clause judged.

Breadth first over canonical states, so that the first violation has a shortest sequence.
Sequences are merged where their forms are equal. Some of those are expanded all the same and
must have the same successors: the forms are audited while they are used.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Final

from kvproof.fuzz import cases
from kvproof.fuzz.cases import Case
from kvproof.fuzz.engines.explore_form import Forms
from kvproof.fuzz.engines.explore_moves import Preset, operations, submits
from kvproof.fuzz.engines.explore_snapshot import Freezer
from kvproof.fuzz.engines.explore_tally import Tally
from kvproof.fuzz.engines.explore_worker import adapter_of
from kvproof.fuzz.faults import Fault
from kvproof.fuzz.session import Session
from kvproof.fuzz.targets import make_adapter
from kvproof.spec import operations as op

AUDIT: Final = 32
"""One in so many merged sequences is expanded as well."""

UNMERGED: Final = 10_000
"""States at most of a manager that keeps something beside what it should: hardly any of them is merged."""

VIOLATED: Final = -1

Successor = tuple[str, int, int]
"""What came of an operation: the kind of answer, the hit, and the state, or `VIOLATED`."""


class UnsoundMerge(AssertionError):
    """Sequences with equal forms have different successors: the form lacks something."""


class Unrepeatable(AssertionError):
    """What fell on a copy does not fall from the start: the manager keeps something outside its objects."""


class Unmergeable(RuntimeError):
    """A faulty manager keeps so much beside what it should that its states never become one."""


@dataclass(slots=True)
class Exploration:
    """What was explored. `states[n]` are those that take `n` operations to reach.

    `case` is the shortest sequence that brings down a clause; nothing behind it was explored. Where
    one clause was looked for, `others` counts the sequences that ended with another.
    """

    preset: Preset
    states: list[int] = field(default_factory=lambda: [1])
    transitions: int = 0
    audited: int = 0
    situations: Counter[str] = field(default_factory=Counter)
    exercised: dict[str, int] = field(default_factory=dict)
    unchecked: tuple[str, ...] = ()
    others: Counter[str] = field(default_factory=Counter)
    case: Case | None = None

    @property
    def missed(self) -> tuple[str, ...]:
        """Situations that the preset must come upon, and did not."""
        return tuple(each for each in self.preset.reaches if not self.situations[each])

    @property
    def verdict(self) -> str:
        """`violated`, `holds`, or `undecided` where the preset turned out to be too easy."""
        return "violated" if self.case is not None else "undecided" if self.missed else "holds"


class Explorer:
    """The states that were met. State 0 is the empty allocator.

    With `clause` only that one is looked for: a sequence in which another falls ends there, and the
    exploration goes on.
    """

    def __init__(
        self,
        preset: Preset,
        *,
        compare_policy: bool = True,
        faults: Sequence[str | Fault] = (),
        clause: str = "",
        audit: int = AUDIT,
    ) -> None:
        self.found = Exploration(preset)
        self._preset = preset
        self._compare_policy = compare_policy
        self._faults = faults
        self._clause = clause
        self._audit = audit
        self._records: list[op.Record] = []
        self._root = Session(
            adapter_of(preset),
            preset.config,
            compare_policy=compare_policy,
            execute=False,
            watch=self._records.append,
        )
        self._forms = Forms(self._root)
        self._tally = self._root.oracle.watch = Tally(self._root.capabilities)
        self._freezer = Freezer(self._root, chain.from_iterable(submits(preset).values()))
        self._numbers = {self._forms.of(self._root): 0}
        """Form → state."""
        self._parents: list[tuple[int, op.AnyOperation]] = [(0, op.Observe())]
        """State → the state and operation by which it was first reached; of state 0, nothing."""
        self._frontier = {0: self._freezer.freeze(self._root)}
        """States that are still to be expanded."""
        self._successors: dict[int, int] = {}
        """State → hash of its successors."""
        self._doubles: dict[int, list[bytes]] = {}
        """State that is still to be expanded → merged sequences that are expanded with it."""
        self._merged = 0

    @property
    def count(self) -> int:
        """How many states were met."""
        return len(self._parents)

    def run(self, progress: Callable[[int, int], None] | None = None) -> Exploration:
        """Explore up to the preset's length or the first violation. `progress` is told states and length."""
        for length in range(1, self._preset.length + 1):
            known, last = self.count, length == self._preset.length
            for state in list(self._frontier):
                self._expand(state, last)
                if self.found.case is not None:
                    return self._finished()
                if progress is not None and state % 32 == 0:
                    progress(self.count, length)
            self.found.states.append(self.count - known)
        return self._finished()

    def _finished(self) -> Exploration:
        # The copies of the root share its counts.
        self.found.situations = self._tally.counts
        verdict = self._root.verdict()
        self.found.exercised, self.found.unchecked = verdict.exercised, verdict.unchecked
        return self.found

    # --- one state --------------------------------------------------------------------------

    def _expand(self, state: int, last: bool) -> None:
        """Do all that can be done next. Of the states of the last length only the forms are kept."""
        successors: list[Successor] = []
        for record, session, form in self._futures(state, self._frontier.pop(state)):
            self.found.transitions += 1
            if form is None:
                if self._falls(state, record, session):
                    return
                successors.append(_successor(record, VIOLATED))
                continue
            number = self._numbers.setdefault(form, self.count)
            successors.append(_successor(record, number))
            if number == self.count:
                if self._forms.unusual and number > UNMERGED:
                    raise Unmergeable(f"more than {UNMERGED:,} states, and no end of them")
                self._parents.append((state, record.operation))
                if not last:
                    self._frontier[number] = self._freezer.freeze(session)
            elif number != state and not last:
                self._merge(number, session)
        self._successors[state] = hash(tuple(sorted(successors)))
        for double in self._doubles.pop(state, ()):
            self._compare(state, double)

    def _futures(self, state: int, data: bytes) -> Iterator[tuple[op.Record, Session, bytes | None]]:
        """The record of each operation that may come next, a session that has done it, and its form.

        Where a clause fell there is no form.
        """
        session = self._freezer.thaw(data)
        same = True
        for operation in list(operations(self._preset, session.state)):
            session = session if same else self._freezer.thaw(data)
            session.apply(operation)
            if session.errored is not None:
                raise session.errored
            record = self._records.pop()
            if session.over:
                yield record, session, None
                same = False
                continue
            form = self._forms.of(session)
            yield record, session, form
            # A refusal or a question that changed nothing saves a thaw.
            same = isinstance(record.answer, op.Refused | op.Found) and self._numbers.get(form) == state

    def _falls(self, state: int, record: op.Record, session: Session) -> bool:
        """A clause fell. Whether it is what is looked for; then the exploration has its case."""
        code = session.violation.code if session.violation is not None else ""
        if not self._clause or code == self._clause:
            case = self._case(state, record.operation)
            # The worker of the whole reference may bring down another one first.
            if not self._clause or case.expected.clause == self._clause:
                self.found.case = case
                return True
        self.found.others[code] += 1
        return False

    # --- merged sequences -------------------------------------------------------------------

    def _merge(self, state: int, session: Session) -> None:
        """A sequence led to a state that is known. One in so many is expanded as well."""
        self._merged += 1
        if self._merged % self._audit:
            return
        double = self._freezer.freeze(session)
        if state in self._successors:
            self._compare(state, double)
        else:
            self._doubles.setdefault(state, []).append(double)

    def _compare(self, state: int, double: bytes) -> None:
        """Raise `UnsoundMerge` if a merged sequence has other successors than the state."""
        counted = Counter(self._tally.counts)
        successors = [
            _successor(record, VIOLATED if form is None else self._numbers.get(form, VIOLATED))
            for record, _, form in self._futures(state, double)
        ]
        self._tally.counts = counted
        self.found.audited += 1
        if hash(tuple(sorted(successors))) != self._successors[state]:
            raise UnsoundMerge(f"state {state} was merged with a sequence that has other successors")

    # --- sequences --------------------------------------------------------------------------

    def sequence(self, state: int) -> list[op.AnyOperation]:
        """The operations by which a state was first reached: as few as possible."""
        reverse: list[op.AnyOperation] = []
        while state:
            state, operation = self._parents[state]
            reverse.append(operation)
        return reverse[::-1]

    def _case(self, state: int, last: op.AnyOperation) -> Case:
        """The case of a violation, on the whole reference, which may name a clause of its worker first."""
        session = Session(make_adapter("reference"), self._preset.config, compare_policy=self._compare_policy)
        session.run([*self.sequence(state), last])
        if session.violation is None:
            raise Unrepeatable(f"the violation after {len(session.operations)} operations does not repeat")
        title = f"explored, {self._preset.title}"
        return cases.of_session(session, title, self._faults, compare_policy=self._compare_policy)


def _successor(record: op.Record, number: int) -> Successor:
    return type(record.answer).__name__, getattr(record.answer, "hit", 0), number


def explore(
    preset: Preset,
    *,
    compare_policy: bool = True,
    faults: Sequence[str | Fault] = (),
    clause: str = "",
    progress: Callable[[int, int], None] | None = None,
) -> Exploration:
    """Explore a preset, for one clause if it is named. The caller plants the faults."""
    return Explorer(preset, compare_policy=compare_policy, faults=faults, clause=clause).run(progress)
