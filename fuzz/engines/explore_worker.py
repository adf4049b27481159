"""A worker that can be explored: tables and memory are numpy's, and its form is all that it holds.

A worker names requests, rows and blocks in many places, and tells none of them by where it
stands, so that its part of a form is under the names as they are.
"""

from typing import Any, Final

from kvproof.fuzz import devices
from kvproof.fuzz.adapters.reference import ReferenceAdapter
from kvproof.fuzz.adapters.reference_worker import ReferenceWorker, Writing
from kvproof.fuzz.device import Digests
from kvproof.fuzz.engines.explore_moves import Preset
from kvproof.fuzz.engines.explore_names import Names
from kvproof.fuzz.engines.explore_raw import raw
from kvproof.fuzz.session import Session
from kvproof.kernels.backends.numpy_backend import NumpyBackend
from kvproof.spec.vocabulary import CacheConfig

KEPT: Final = (Digests, Writing)
"""Of a worker: what only remembers what is made from the rest of it."""


class Explored(ReferenceAdapter):
    """The reference with a worker that can be copied: of numpy, whatever else is there."""

    def configure(self, config: CacheConfig, seed: int) -> None:
        with devices.using(NumpyBackend()):
            super().configure(config, seed)
        if self.device is not None:
            self._worker = ReferenceWorker(config, self.device, backend="numpy")

    @property
    def worker(self) -> ReferenceWorker | None:
        """The worker, where there is one."""
        return self._worker if self.capabilities.level >= 3 else None

    @property
    def told(self) -> tuple[Any, ...]:
        """What the adapter keeps for the worker's sake."""
        return self._diffs, self._granted


def adapter_of(preset: Preset) -> ReferenceAdapter:
    """The reference as a preset has it. A fault may let less be seen."""
    return Explored(min(preset.level, ReferenceAdapter().capabilities.level))


def worker_part(names: Names, session: Session) -> tuple[Any, ...]:
    """All that a worker, its memory and the adapter's messages hold; nothing without a worker."""
    adapter = session.adapter
    if not isinstance(adapter, Explored) or adapter.worker is None:
        return ()
    batch = [None if life.ended else names.lives[id(life)] for life in session.state.last_batch]
    # Each refers to the others, so they are one part.
    held = raw((adapter.worker, adapter.device, *adapter.told), KEPT)
    return held, batch, tuple(names.requests), tuple(names.usable)
