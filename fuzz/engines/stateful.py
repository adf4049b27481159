"""Hypothesis: a state machine that is derived from the rule table.

Hypothesis draws one integer a step, from which the rule and its choices follow, and mutates what
it drew; its own shrinking is not used, since shrinking by operations is faster and ends smaller.
One Hypothesis rule stands for the whole table: with one for each entry and weight most of
the time went into choosing among them.
"""

from collections.abc import Callable, Iterator, Sequence

from hypothesis import HealthCheck, Phase, Verbosity, seed, settings
from hypothesis import strategies as st
from hypothesis.configuration import set_hypothesis_home_dir
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from kvproof.fuzz import cases
from kvproof.fuzz.adapters.port import Adapter
from kvproof.fuzz.choices import Choices
from kvproof.fuzz.configs import draw_config
from kvproof.fuzz.engines.soak import Result, Sum, advance
from kvproof.fuzz.faults import Fault
from kvproof.fuzz.prompts import World
from kvproof.fuzz.rules import Rule, drain, weighted
from kvproof.fuzz.session import Session
from kvproof.fuzz.spelling import draw_spelling
from kvproof.fuzz.targets import make_adapter
from kvproof.fuzz.targets.fetch import cache_folder
from kvproof.spec import operations as op

# Not into whatever folder somebody happens to be in.
set_hypothesis_home_dir(cache_folder() / "hypothesis")

EXAMPLES = 100
"""Examples to a batch. Hypothesis begins each with its simplest one, which does next to nothing."""

_INTEGERS = st.integers(0, 2**64 - 1)


class Found(AssertionError):
    """The session is over; the tally has it."""


class Tally:
    """What all examples of a run have in common."""

    def __init__(self, limit: int, progress: Callable[[int], None] | None) -> None:
        self.limit = limit
        self.operations = 0
        self.session: Session | None = None
        self.total = Sum()
        self._progress = progress

    def add(self, count: int) -> None:
        """More operations were judged."""
        self.operations += count
        if self._progress is not None:
            self._progress(self.operations)


def _close(world: World, c: Choices) -> Iterator[op.AnyOperation]:
    """Everything ends, and then everything is looked at."""
    yield from drain(world, c)
    yield op.Observe()


def machine(
    tally: Tally, compare_policy: bool, execute: bool, target: Adapter
) -> type[RuleBasedStateMachine]:
    """The state machine class for an allocator."""
    rules = weighted(target.capabilities)

    class Machine(RuleBasedStateMachine):
        session: Session | None = None

        @initialize(n=_INTEGERS)
        def configure(self, n: int) -> None:
            choices = Choices(n)
            config = draw_config(choices, target.capabilities)
            self.session = Session(target, config, compare_policy=compare_policy, execute=execute)
            self.world = World(config, self.session.state, draw_spelling(choices.aside()))

        @rule(n=_INTEGERS)
        def step(self, n: int) -> None:
            choices = Choices(n)
            self.advance(choices.pick(rules), choices)

        def advance(self, chosen: Rule, choices: Choices) -> None:
            assert self.session is not None
            if tally.operations >= tally.limit:
                return
            tally.add(advance(self.session, self.world, chosen, choices))
            if self.session.over:
                tally.session = self.session
                raise Found

        def teardown(self) -> None:
            if self.session is None:
                return
            if not self.session.over:
                self.advance(_close, Choices(0))
            tally.total.add(self.session)

    return Machine


def stateful(
    operations: int,
    seed_: int,
    *,
    steps: int = 50,
    faults: Sequence[Fault] = (),
    compare_policy: bool = True,
    execute: bool = True,
    adapter: Callable[[], Adapter] = lambda: make_adapter("reference"),
    progress: Callable[[int], None] | None = None,
) -> Result:
    """Run examples until `operations` operations were judged or a clause falls."""
    tally, target = Tally(operations, progress), adapter()
    batch = 0
    while tally.operations < operations and tally.session is None:
        options = settings(
            max_examples=EXAMPLES,
            stateful_step_count=steps,
            deadline=None,
            database=None,
            phases=(Phase.generate,),
            verbosity=Verbosity.quiet,
            suppress_health_check=list(HealthCheck),
            print_blob=False,
        )
        before = tally.operations
        kind = seed(f"{seed_}/{batch}")(machine(tally, compare_policy, execute, target))
        try:
            run_state_machine_as_test(kind, settings=options)
        except Found:
            break
        assert tally.operations > before, "a batch of examples judges something"
        batch += 1
    target.close()
    if tally.session is None:
        return tally.total.result(tally.operations, None)
    case = cases.of_session(tally.session, f"Hypothesis, seed {seed_}", faults, compare_policy=compare_policy)
    return tally.total.result(tally.operations, case)
