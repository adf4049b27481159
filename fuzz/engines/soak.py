"""Soak: the rule table driven by a plain seeded stream, episode after episode.

Each episode draws a configuration, runs some hundred operations and drains to quiescence.
Only operations are kept, so memory stays flat however long it runs.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from kvproof.fuzz import cases
from kvproof.fuzz.adapters.port import Adapter
from kvproof.fuzz.cases import Case
from kvproof.fuzz.choices import Choices
from kvproof.fuzz.configs import draw_config
from kvproof.fuzz.faults import Fault
from kvproof.fuzz.prompts import World
from kvproof.fuzz.rules import Rule, drain, weighted
from kvproof.fuzz.session import Session
from kvproof.fuzz.spelling import draw_spelling
from kvproof.fuzz.targets import make_adapter
from kvproof.spec import operations as op
from kvproof.spec.oracle import Mix

EPISODE: Final = 300
LONG: Final = 3_000
"""Operations before an episode drains, and how many there are of those where counters grow large."""


@dataclass(slots=True)
class Result:
    """What a fuzz run found: operations judged, how often per clause, and the case of the first violation.

    `situations` counts the histories, of `histories`, that met each. `error` says why the last one could
    not go on, where no clause fell.
    """

    operations: int
    case: Case | None
    digest: str
    exercised: Counter[str]
    situations: Counter[str]
    histories: int
    mix: Mix
    error: str = ""


class Sum:
    """What the histories of a run add up to, however many there are."""

    def __init__(self) -> None:
        self.histories = 0
        self.exercised: Counter[str] = Counter()
        self.situations: Counter[str] = Counter()
        self.mix = Mix()
        self.error = ""
        self._digest = hashlib.sha256()

    def add(self, session: Session) -> None:
        """A history is over."""
        verdict = session.verdict()
        self.histories += 1
        self.exercised.update(verdict.exercised)
        self.situations.update(verdict.situations)
        self.mix.add(verdict.mix)
        self.error = verdict.error
        self._digest.update(op.digest_of([*session.operations, verdict]).encode())

    def result(self, operations: int, case: Case | None) -> Result:
        """The result of the run."""
        digest = self._digest.hexdigest()[:16]
        return Result(
            operations,
            case,
            digest,
            self.exercised,
            self.situations,
            self.histories,
            self.mix,
            self.error,
        )


def advance(session: Session, world: World, rule: Rule, choices: Choices) -> int:
    """Let a rule propose until it ends or a clause falls; how many operations that were."""
    before = len(session.operations)
    for operation in rule(world, choices):
        session.apply(operation)
        if session.over:
            break
    return len(session.operations) - before


def soak(
    operations: int,
    seed: int,
    *,
    faults: Sequence[Fault] = (),
    compare_policy: bool = True,
    execute: bool = True,
    full: bool = True,
    ignore: frozenset[str] = frozenset(),
    adapter: Callable[[], Adapter] = lambda: make_adapter("reference"),
    progress: Callable[[int], None] | None = None,
    stop: Callable[[], bool] | None = None,
) -> Result:
    """Run at least `operations` operations, or until a clause falls, or `stop` says so between episodes.

    The caller plants the faults. `execute` and `full` as for a session.
    """
    stream, target = Choices(seed), adapter()
    rules = weighted(target.capabilities)
    done, total = 0, Sum()
    while done < operations and not (stop is not None and stop()):
        choices = Choices(stream.word())
        config = draw_config(choices, target.capabilities)
        session = Session(
            target, config, compare_policy=compare_policy, execute=execute, full=full, ignore=ignore
        )
        world = World(config, session.state, draw_spelling(choices.aside()))
        left = min(LONG if stream.aside().chance(2) else EPISODE, operations - done)
        while left > 0 and not session.over:
            left -= max(1, advance(session, world, choices.pick(rules), choices))
        if not session.over:
            advance(session, world, drain, choices)
        session.apply(op.Observe())
        done += len(session.operations)
        total.add(session)
        if progress is not None:
            progress(done)
        if session.over:
            target.close()
            case = cases.of_session(session, f"soak, seed {seed}", faults, compare_policy=compare_policy)
            return total.result(done, case)
    target.close()
    return total.result(done, None)
