"""Lives, the steps in flight that contain them, and releases that wait for a step (REQ-2.10, 4.8)."""

from collections import deque
from collections.abc import Sequence

from kvproof.impl import arithmetic
from kvproof.impl.block import GroupBlocks
from kvproof.impl.errors import StepOrder
from kvproof.impl.request import Request


class Life:
    """One admission of a request.

    `num_undispatched_tokens` were granted and are in no step yet. `fence` is the last dispatched
    step that contains the life, 0 before any.
    """

    __slots__ = ("ended", "fence", "num_undispatched_tokens", "request")

    def __init__(self, request: Request) -> None:
        self.request = request
        self.num_undispatched_tokens = 0
        self.fence = 0
        self.ended = False

    @property
    def num_dispatched_tokens(self) -> int:
        """The boundary up to which the content is written, or promised by a step."""
        return arithmetic.dispatched_tokens(self.request.num_computed_tokens, self.num_undispatched_tokens)

    def dispatch(self, step: int) -> None:
        """A step takes the whole grant; one that reaches the end samples a token."""
        request = self.request
        expected = request.num_tokens + request.num_pending_tokens
        scheduled = request.num_computed_tokens
        if arithmetic.samples(scheduled, self.num_undispatched_tokens, expected, request.max_tokens):
            request.num_pending_tokens += 1
        self.num_undispatched_tokens = 0
        self.fence = step


class StepsInFlight:
    """Steps from dispatch to retirement, and the batches of ended lives that wait for them."""

    def __init__(self) -> None:
        self.last_dispatched = 0
        self.steps: deque[tuple[int, list[Life]]] = deque()
        self.deferred: list[tuple[int, GroupBlocks]] = []

    def dispatch(self, step: int, lives: Sequence[Life]) -> None:
        """A step goes to the device with the grants of these lives. Raises StepOrder."""
        if step <= self.last_dispatched:
            raise StepOrder(f"step {step} must come after step {self.last_dispatched}; number steps upwards.")
        if len(set(lives)) != len(lives):
            raise StepOrder(f"step {step} names a request twice; give each request one entry.")
        for life in lives:
            life.dispatch(step)
        self.last_dispatched = step
        self.steps.append((step, list(lives)))

    def retire(self, step: int) -> list[Life]:
        """The oldest step has executed; its living lives, in its order. Raises StepOrder."""
        if not self.steps or step != self.steps[0][0]:
            expected = f"step {self.steps[0][0]} is the oldest" if self.steps else "none is"
            raise StepOrder(
                f"step {step} can't retire while {expected} in flight; retire in order of dispatch."
            )
        _, lives = self.steps.popleft()
        return [life for life in lives if not life.ended]

    def contains(self, life: Life) -> bool:
        """Whether a step in flight contains a life."""
        return bool(self.steps) and life.fence >= self.steps[0][0]

    def defer(self, life: Life, blocks: GroupBlocks) -> None:
        """Keep an ended life's blocks held until its fence has retired."""
        self.deferred.append((life.fence, blocks))

    def take_released(self) -> list[GroupBlocks]:
        """The batches that no step in flight waits for any more, in order of ending."""
        fence = self.steps[0][0] if self.steps else self.last_dispatched + 1
        released = [blocks for last, blocks in self.deferred if last < fence]
        self.deferred = [entry for entry in self.deferred if entry[0] >= fence]
        return released
