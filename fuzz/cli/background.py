"""Phases that run ahead in a second process."""

import multiprocessing
import signal
import traceback
from collections.abc import Sequence
from multiprocessing.connection import Connection

from kvproof.fuzz import devices
from kvproof.fuzz.cli.errors import HarnessFault
from kvproof.fuzz.cli.phases import PHASES, Phase
from kvproof.fuzz.cli.profiles import Profile


class Ahead:
    """Runs phases in order in a process of its own; the results wait until they are asked for."""

    def __init__(
        self, names: Sequence[str], profile: Profile, seed: int, device: str = devices.DEFAULT
    ) -> None:
        context = multiprocessing.get_context("spawn")
        self._results: dict[str, tuple[Phase | str, float]] = {}
        self._said = ""
        self._pipe, theirs = context.Pipe(duplex=False)
        # A daemon ends with us, however we end.
        self._process = context.Process(
            target=_work, args=(theirs, tuple(names), profile, seed, device), daemon=True
        )
        self._process.start()
        theirs.close()

    def ready(self, name: str, seconds: float) -> bool:
        """Wait so long for a phase; whether it is done."""
        while name not in self._results and self._pipe.poll(seconds):
            try:
                kind, *rest = self._pipe.recv()
            except EOFError:
                raise HarnessFault(f"the process of phase {name} ended without a result") from None
            if kind == "said":
                self._said = rest[0] if rest[1] == name else ""
                return False
            self._results[rest[0]] = (rest[1], rest[2])
        return name in self._results

    @property
    def said(self) -> str:
        """How far it has come."""
        return self._said

    def take(self, name: str) -> tuple[Phase, float]:
        """The result of a phase that is ready, and the seconds that it took."""
        result, seconds = self._results[name]
        if isinstance(result, str):
            raise HarnessFault(result)
        return result, seconds

    def stop(self) -> None:
        """End the process."""
        self._process.terminate()
        self._process.join()


def _work(pipe: Connection, names: Sequence[str], profile: Profile, seed: int, device: str) -> None:
    """Run phases and send what they found. Ctrl-C is for the parent, which ends us."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with devices.using(devices.make(device)):
        _run(pipe, names, profile, seed)
    pipe.close()


def _run(pipe: Connection, names: Sequence[str], profile: Profile, seed: int) -> None:
    import time

    for name in names:
        start = time.perf_counter()
        try:

            def progress(text: str, name: str = name) -> None:
                pipe.send(("said", text, name))

            found: Phase | str = PHASES[name][1](profile, seed, progress)
        except HarnessFault as error:
            found = str(error)
        except Exception as error:
            last = traceback.extract_tb(error.__traceback__)[-1]
            found = f"phase {name}: {type(error).__name__}: {error} ({last.filename}:{last.lineno})"
        pipe.send(("done", name, found, time.perf_counter() - start))
