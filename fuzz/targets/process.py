"""A process that is asked line by line: one line in, one line out, and every way in which it can fail.

Strict request and response needs no more than two system calls a line on our side: the
pipes are read and written directly. Whoever dies, hangs, floods or speaks unasked is
stopped with all its children, and `Errored` says in one line what it did, with the end of
the conversation and of its log.
"""

import os
import select
import signal
import subprocess
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

from kvproof.fuzz.adapters.port import Errored
from kvproof.fuzz.targets import TargetError

LINE: Final = 1 << 20
"""Bytes of the longest line that is read."""
CHUNK: Final = 1 << 16
KEPT: Final = 20
"""Lines of the conversation, and of the log, in a transcript."""
WIDTH: Final = 400
"""Characters of a line in a transcript."""
GRACE: Final = 0.5
"""Seconds that a process has to end once its input is closed."""


class Log:
    """The end of what a process writes to stderr, read all the time so that it never waits for us."""

    def __init__(self, file: int) -> None:
        self._tail = b""
        self._thread = threading.Thread(target=self._drain, args=(file,), daemon=True)
        self._thread.start()

    def _drain(self, file: int) -> None:
        while chunk := os.read(file, CHUNK):
            self._tail = (self._tail + chunk)[-KEPT * WIDTH :]
        os.close(file)

    def lines(self) -> list[str]:
        """Its last lines."""
        return [line.decode(errors="replace") for line in self._tail.splitlines()[-KEPT:]]

    def join(self) -> None:
        """Wait until it is read to its end; not long, since a child that fled may hold it open."""
        self._thread.join(1.0)


class Process:
    """A running program, the leader of a process group of its own. `ask` it; `stop` it at the end.

    `timeout` is in seconds, for each line. `broken` once it must not be asked any more.
    `greeting` is free for what was learnt from it at first.
    """

    def __init__(self, command: Sequence[str], timeout: float) -> None:
        self.command, self.timeout = tuple(command), timeout
        self.greeting: Any = None
        self.broken = False
        self._said: deque[tuple[str, bytes]] = deque(maxlen=KEPT)
        environment = {"PYTHONHASHSEED": "0", **os.environ}
        pipe = subprocess.PIPE
        try:
            self._popen = subprocess.Popen(
                command,
                stdin=pipe,
                stdout=pipe,
                stderr=pipe,
                bufsize=0,
                start_new_session=True,
                env=environment,
            )
        except (OSError, ValueError) as error:
            raise TargetError(f"cannot start {command[0] if command else 'nothing'!r}: {error}.") from None
        assert self._popen.stdin and self._popen.stdout and self._popen.stderr
        self._in, self._out = self._popen.stdin.fileno(), self._popen.stdout.fileno()
        # A line larger than the pipe must not make us wait for a process that does not read.
        os.set_blocking(self._in, False)
        self._ready = select.poll()
        self._ready.register(self._out, select.POLLIN)
        self._log = Log(os.dup(self._popen.stderr.fileno()))
        self._popen.stderr.close()
        self.pid = self._popen.pid
        self._owner = os.getpid()

    @property
    def ours(self) -> bool:
        """Whether this process started it, not one that this was forked from."""
        return self._owner == os.getpid()

    def ask(self, line: bytes, what: str, patience: float = 1.0) -> bytes:
        """The line that answers this one. Raises `Errored`; waits `patience` times the timeout."""
        if self.broken:
            raise Errored(f"it cannot be asked {what}: it is gone")
        # Stays so if anything, an interrupt too, gets between a question and its answer.
        self.broken = True
        self._said.append(("→", line))
        timeout = self.timeout * patience
        if self._ready.poll(0):
            raise self.fail(f"it spoke before it was asked {what}" if self._read() else self._end(what))
        try:
            rest = self._put(line)
            if rest:
                self._write(rest, what, time.monotonic() + timeout)
        except BrokenPipeError:
            raise self.fail(self._end(what)) from None
        if not self._ready.poll(timeout * 1000):
            gone = self._exit_within(0) is not None
            raise self.fail(self._end(what) if gone else f"no answer to {what} within {timeout:g} s")
        answer = self._read()
        if not answer.endswith(b"\n"):
            answer = self._more(answer, what, time.monotonic() + timeout)
        if answer.find(b"\n") < len(answer) - 1:
            raise self.fail(f"it answered {what} with more than one line")
        self.broken = False
        return answer

    def _read(self) -> bytes:
        chunk = os.read(self._out, CHUNK)
        if chunk:
            self._said.append(("←", chunk))
        return chunk

    def _put(self, line: bytes) -> bytes:
        """Write what the pipe takes now; the rest."""
        try:
            written = os.write(self._in, line)
        except BlockingIOError:
            return line
        return line[written:]

    def _write(self, rest: bytes, what: str, deadline: float) -> None:
        """The rest of a line that did not fit into the pipe at once."""
        ready = select.poll()
        ready.register(self._in, select.POLLOUT)
        while rest:
            if not ready.poll(max(0.0, deadline - time.monotonic()) * 1000):
                raise self.fail(f"it does not read {what} to its end")
            rest = self._put(rest)

    def _more(self, first: bytes, what: str, deadline: float) -> bytes:
        """The whole of an answer that came in parts."""
        parts, size, last = [first], len(first), first
        while b"\n" not in last:
            if size > LINE:
                raise self.fail(f"it answered {what} with a line of more than {LINE >> 20} MiB")
            if last and not self._ready.poll(max(0.0, deadline - time.monotonic()) * 1000):
                raise self.fail(f"it did not end its answer to {what} in time")
            last = self._read() if last else b""
            if not last:
                raise self.fail(self._end(what))
            parts.append(last)
            size += len(last)
        return b"".join(parts)

    # --- ends -----------------------------------------------------------------------------

    def _end(self, what: str) -> str:
        """What became of a process that closed a pipe."""
        result = self._exit_within(0.3)
        if result is None:
            return f"it closed its output while it was asked {what}, but lives on"
        if result.si_code == os.CLD_EXITED:
            return f"it exited with status {result.si_status} while it was asked {what}"
        known = {each.value: each.name for each in signal.Signals}
        name = known.get(result.si_status, f"signal {result.si_status}")
        return f"it was killed by {name} while it was asked {what}"

    def _exit_within(self, seconds: float) -> os.waitid_result | None:
        """How it ended, without reaping it: its number stays its own until the group is stopped."""
        deadline = time.monotonic() + seconds
        while True:
            result = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if result is not None or time.monotonic() >= deadline:
                return result
            time.sleep(0.002)

    def fail(self, reason: str) -> Errored:
        """Stop it, for this reason."""
        self.broken = True
        self.stop()
        return Errored(reason, self.transcript())

    def transcript(self) -> str:
        """The end of the conversation and of the log."""
        said = [f"{who} {_shown(line)}" for who, line in self._said]
        log = [f"! {line[:WIDTH]}" for line in self._log.lines()]
        return "\n".join([*said[-KEPT:], *log])

    def stop(self, grace: float = 0.0) -> None:
        """Close its input, give it this many seconds to end by itself, kill its group. May be repeated."""
        self.broken = True
        if self._popen.returncode is not None or not self.ours:
            return
        assert self._popen.stdin and self._popen.stdout
        self._popen.stdin.close()
        if grace:
            self._exit_within(grace)
        _quietly(lambda: os.killpg(self.pid, signal.SIGKILL))
        self._popen.wait()
        self._popen.stdout.close()
        self._log.join()


def _quietly(kill: Callable[[], None]) -> None:
    try:
        kill()
    except (ProcessLookupError, PermissionError):
        # It ended by itself and its group is empty; some systems call that forbidden.
        return


def _shown(line: bytes) -> str:
    text = line[:WIDTH].decode(errors="replace").rstrip("\n").replace("\n", "⏎")
    return text if len(line) <= WIDTH else f"{text}… ({len(line)} bytes)"


class Idle:
    """Healthy processes that wait to be asked by somebody else, at most so many."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: list[Process] = []
        # At exit, finalizers run from the newest to the oldest: who uses a process lets it go before this.
        weakref.finalize(self, _stop_all, self._kept)

    def take(self, command: Sequence[str], timeout: float) -> Process | None:
        """One that was started so, if there is. After a fork they are the parent's."""
        self._kept[:] = [each for each in self._kept if each.ours]
        for i, process in enumerate(self._kept):
            if (process.command, process.timeout) == (tuple(command), timeout):
                return self._kept.pop(i)
        return None

    def keep(self, process: Process) -> None:
        """Keep one; the oldest is stopped when there are too many."""
        self._kept.append(process)
        if len(self._kept) > self._most:
            self._kept.pop(0).stop(GRACE)

    def stop(self) -> None:
        """Stop them all."""
        _stop_all(self._kept)


def _stop_all(processes: list[Process]) -> None:
    while processes:
        processes.pop().stop(GRACE)


IDLE: Final = Idle(4)
"""Of this process."""
