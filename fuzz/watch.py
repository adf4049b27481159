"""A watch on code that may never come back: it is ended after some seconds of CPU time.

Ticks look which call of a session, or which planting, is running. Who is watched pays nothing
between them. What loops inside C is not seen.
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

from kvproof.fuzz.adapters.port import Errored
from kvproof.fuzz.faults import planted
from kvproof.fuzz.session import Session

SECONDS: Final = 5.0
"""CPU time that a call may take; those of small pools take less than a millisecond."""
TICKS: Final = 10
"""In that time."""

_WATCHED: Final = {
    Session.__init__.__code__,
    Session._one.__code__,
    planted.__wrapped__.__code__,  # type: ignore[attr-defined]
}

_IMPORT: Final = "<frozen importlib._bootstrap>"


class Hung(Errored):
    """A call did not come back."""


@contextmanager
def watched(seconds: float = SECONDS) -> Iterator[None]:
    """Raise `Hung` inside a call that has taken so many CPU seconds. Only the main thread can be watched."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    last: FrameType | None = None
    ticks = 0

    def tick(number: int, frame: FrameType | None) -> None:
        nonlocal last, ticks
        call = _call(frame)
        ticks = ticks + 1 if call is not None and call is last else 0
        last = call
        if ticks == TICKS:
            ticks = 0
            raise Hung(f"it did not come back in {seconds:g} s of CPU time")

    handler = signal.signal(signal.SIGPROF, tick)
    timer = signal.setitimer(signal.ITIMER_PROF, seconds / TICKS, seconds / TICKS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, handler)
        signal.setitimer(signal.ITIMER_PROF, *timer)


def _call(frame: FrameType | None) -> FrameType | None:
    """The innermost watched call that is running, none while it imports: half a module is of no use."""
    while frame is not None and frame.f_code not in _WATCHED:
        if frame.f_code.co_filename == _IMPORT:
            return None
        frame = frame.f_back
    return frame
