"""Whatever an allocator answers, the oracle gives a verdict and raises nothing."""

import pytest

from kvproof.fuzz.adapters.reference import ReferenceAdapter
from kvproof.fuzz.choices import Choices
from kvproof.fuzz.configs import draw_config
from kvproof.fuzz.engines.soak import advance
from kvproof.fuzz.prompts import World
from kvproof.fuzz.rules import weighted
from kvproof.fuzz.session import Session
from kvproof.spec import operations as op
from kvproof.spec.vocabulary import FEATURES, OPERATIONS, Capabilities


class Mad(ReferenceAdapter):
    """Answers right until its time comes, then anything that has the right type."""

    def __init__(self, level: int, seed: int) -> None:
        super().__init__(level=max(level, 2))
        self.capabilities = Capabilities(level, depth=3, operations=OPERATIONS[:-1], features=FEATURES)
        self.choices = Choices(seed)

    def _mad(self) -> bool:
        return self.choices.chance(10)

    def _rows(self, request: str) -> tuple[tuple[int, ...], ...]:
        if not self._mad():
            return super()._rows(request)
        c = self.choices
        return tuple(tuple(c.between(-2, 20) for _ in range(c.below(5))) for _ in range(c.below(3)))

    def admit(self, request: str, n: int, lookahead: int) -> op.Granted | op.Refused:
        answer = super().admit(request, n, lookahead)
        if isinstance(answer, op.Granted) and self._mad():
            return op.Granted(answer.rows, self.choices.between(-3, 30))
        return answer

    def observe(self, blocks, keys=()):
        seen = super().observe(blocks, keys)
        if not self._mad():
            return seen
        c = self.choices
        views = {c.below(20): op.BlockView(c.between(-1, 3), c.pick((None, b"k"))) for _ in range(3)}
        index = (op.IndexEntry(b"k", c.below(2), tuple(c.below(30) for _ in range(c.below(3)))),)
        events = (
            op.Stored((), None, (), 1),
            op.Stored((b"k",), b"p", (1,), 9),
            op.Removed(b"q"),
            op.Cleared(),
        )
        free = tuple(c.between(-1, 30) for _ in range(c.below(9)))
        return op.Observation(views, index, c.below(9), free, {"zz": ()}, events=events[c.below(4) :])


@pytest.mark.parametrize("level", [1, 2])
def test_the_oracle_survives_any_answer(level: int) -> None:
    fell = 0
    for seed in range(150):
        choices, adapter = Choices(seed), Mad(level, seed)
        config = draw_config(choices, adapter.capabilities)
        session = Session(adapter, config, compare_policy=False)
        world = World(config, session.state)
        for _ in range(25):
            advance(session, world, choices.pick(weighted(adapter.capabilities)), choices)
            if session.over:
                break
        fell += session.violation is not None
    assert fell > 75, "madness is mostly noticed"
