"""An allocator in another process, in any language: `cmd:./my-allocator --flag`.

The process speaks the protocol of `fuzz/targets/PROTOCOL.md`. Whatever it does wrong ends as
`Errored`, with a transcript; an error that it reports itself is judged like an exception.
A process serves one adapter after the other, since `configure` starts anew: soak and
shrinking don't pay for its start each time.
"""

import math
import os
import shlex
import weakref
from collections.abc import Collection
from typing import Any, Final

import msgspec

from kvproof.fuzz.adapters.port import Adapter, Errored
from kvproof.fuzz.targets import TargetError, wire
from kvproof.fuzz.targets.process import GRACE, IDLE, Process
from kvproof.spec import operations as op
from kvproof.spec.vocabulary import BlockIds, CacheConfig

TIMEOUT: Final = 5.0
"""Seconds for each answer; `@timeout=` behind the command or `KVPROOF_STDIO_TIMEOUT` says otherwise."""
START: Final = 10
"""How many times as long the first answer may take: programs load."""

_DONE: Final = op.Done()
_REFUSED: Final = op.Refused()
_DISPATCHED: Final = op.Dispatched()
_RETIRED: Final = op.Retired()


class Failed(Exception):
    """The allocator says that an operation failed."""


class StdioAdapter(Adapter):
    """Asks a process. One that cannot even say hello is errored when it is configured.

    `reuse` false stops the process at `close` instead of keeping it for the next adapter.
    """

    def __init__(self, command: tuple[str, ...], timeout: float = TIMEOUT, *, reuse: bool = True) -> None:
        self.name = "cmd:" + shlex.join(command)
        self.allocator = ""
        """What the allocator calls itself."""
        self._failure: Errored | None = None
        self._encode = msgspec.json.Encoder().encode
        self._wire: frozenset[str] = frozenset()
        self._ahead: op.Observation | None = None
        self._sweeps = False
        self._process = (IDLE.take(command, timeout) if reuse else None) or Process(command, timeout)
        self._release = weakref.finalize(self, _let_go, self._process, reuse)
        try:
            self._meet()
        except Errored as error:
            self._failure = error
        except Failed as error:
            self._fail(f"it refused hello: {error}")

    def _meet(self) -> None:
        """Say hello, unless it was said to an earlier adapter."""
        welcome = self._process.greeting or self._send(wire.Hello(wire.VERSION), START)
        try:
            self.capabilities, self._wire = wire.checked(welcome)
        except wire.WireError as error:
            raise self._fail(f"it {error}") from None
        self._process.greeting = welcome
        self.allocator = welcome.name
        self._sweeps = self.capabilities.level >= 2 and "batch" in self._wire

    def _fail(self, reason: str) -> Errored:
        self._failure = self._process.fail(reason)
        return self._failure

    @property
    def pid(self) -> int:
        """The number of its process."""
        return self._process.pid

    # --- asking ---------------------------------------------------------------------------

    def _line(self, message: wire.AnyMessage, patience: float = 1.0) -> bytes:
        """The line that answers a message. Raises `Errored`."""
        if self._failure is not None:
            raise self._failure
        self._ahead = None
        try:
            return self._process.ask(self._encode(message) + b"\n", wire.name_of(type(message)), patience)
        except Errored as error:
            self._failure = error
            raise

    def _send(self, message: wire.AnyMessage, patience: float = 1.0) -> Any:
        """The reply to a message, or none where it was refused. Raises `Errored` and `Failed`."""
        return self._read(self._line(message, patience), type(message))

    def _read(self, line: bytes | msgspec.Raw, kind: type[msgspec.Struct]) -> Any:
        try:
            reply = wire.read(line, kind)
        except wire.WireError as error:
            raise self._fail(f"its answer to {wire.name_of(kind)} {error}") from None
        if not isinstance(reply, wire.No):
            return reply
        name = wire.name_of(kind)
        if reply.error or name not in wire.REFUSABLE:
            raise Failed(reply.error or f"{name} was refused, which can't be")
        return None

    def _ask(self, message: wire.Single) -> Any:
        """As `_send`; where every operation is followed by a full sweep, both go in one batch."""
        if not self._sweeps:
            return self._send(message)
        replies = self._send(wire.Batch((message, wire.Observe()))).replies
        if len(replies) != 2:
            raise self._fail(f"its answer to batch has {len(replies)} replies for 2 messages")
        self._ahead = self._seen(replies[1])
        return self._read(replies[0], type(message))

    # --- the port -------------------------------------------------------------------------

    def configure(self, config: CacheConfig, seed: int) -> None:
        self._blocks, self._max_len = config.blocks, config.max_len
        try:
            self._send(
                wire.Configure(
                    config.block_size,
                    config.blocks,
                    config.max_len,
                    config.max_requests,
                    config.depth,
                    config.prefix_caching,
                    seed,
                )
            )
        except Failed as error:
            raise self._fail(f"it failed at configure: {error}") from None

    def close(self) -> None:
        self._release()
        self._failure = self._failure or Errored("it was closed")

    def submit(self, operation: op.Submit) -> None:
        extras, options = operation.extras, operation.options
        self._ask(
            wire.Submit(
                operation.request,
                tuple(op.flatten(operation.tokens)),
                min(options.max_len or self._max_len, self._max_len),
                options.read_cache,
                options.priority,
                extras.adapter,
                extras.salt,
                extras.items,
                extras.embeddings,
            )
        )

    def lookup(self, request: str) -> op.Found:
        reply = self._ask(op.Lookup(request))
        return op.Found(reply.hit, reply.rows)

    def admit(self, request: str, n: int, lookahead: int) -> op.Granted | op.Refused:
        reply = self._ask(op.Admit(request, n, lookahead))
        return _REFUSED if reply is None else op.Granted(reply.rows, reply.hit)

    def extend(self, request: str, n: int, lookahead: int) -> op.Granted | op.Refused:
        reply = self._ask(op.Extend(request, n, lookahead))
        return _REFUSED if reply is None else op.Granted(reply.rows)

    def row(self, request: str, group: int) -> BlockIds:
        row: BlockIds = self._ask(op.Row(request, group)).row
        return row

    def dispatch(self, operation: op.Dispatch) -> op.Dispatched:
        if "dispatch" in self._wire:
            self._ask(operation)
        return _DISPATCHED

    def retire(self, operation: op.Retire) -> op.Retired:
        self._ask(operation)
        return _RETIRED

    def finish(self, request: str) -> None:
        self._ask(op.Finish(request))

    def abort(self, request: str) -> None:
        self._ask(op.Abort(request))

    def preempt(self, request: str) -> None:
        self._ask(op.Preempt(request))

    def evict(self, request: str, boundary: int) -> bool:
        return self._ask(op.Evict(request, boundary)) is not None

    def reset(self) -> bool:
        return self._ask(op.Reset()) is not None

    def observe(
        self, blocks: Collection[int] | None, keys: Collection[tuple[int, bytes]] = ()
    ) -> op.Observation | None:
        if self.capabilities.level < 2:
            return None
        seen, self._ahead = self._ahead, None
        self._sweeps = blocks is None and "batch" in self._wire
        if seen is not None and blocks is None:
            return seen
        chosen = None if blocks is None else tuple(blocks)
        return self._seen(self._line(wire.Observe(chosen, tuple(keys))))

    def _seen(self, line: bytes | msgspec.Raw) -> op.Observation:
        """An observation; one that fails says that the level was a lie."""
        try:
            seen: wire.Seen = self._read(line, wire.Observe)
        except Failed as error:
            raise self._fail(
                f"it declares level {self.capabilities.level} and failed at observe: {error}"
            ) from None
        usage = (self._blocks - seen.free_count) / self._blocks
        shown = (seen.blocks, seen.index, seen.free_count, seen.free, seen.rows)
        return op.Observation(*shown, usage, seen.metrics, seen.events)


def _let_go(process: Process, reuse: bool) -> None:
    """Stop a process, or keep a healthy one for the next adapter."""
    if reuse and not process.broken:
        IDLE.keep(process)
    else:
        process.stop(GRACE)


def target(rest: str) -> Adapter:
    """An adapter for a command line and the options behind it, `@timeout=SECONDS` and `@fresh`.

    Raises `TargetError`.
    """
    try:
        words = shlex.split(rest)
    except ValueError as error:
        raise TargetError(f"cannot read the command {rest!r}: {error}.") from None
    timeout, reuse = os.environ.get("KVPROOF_STDIO_TIMEOUT", str(TIMEOUT)), True
    while words and words[-1].startswith("@"):
        option, _, value = words.pop().partition("=")
        if option == "@timeout":
            timeout = value
        elif option == "@fresh" and not value:
            reuse = False
        else:
            raise TargetError(
                f"there is no option {option!r} for a command; there are @timeout=SECONDS and @fresh."
            )
    if not words:
        raise TargetError("a command is needed: cmd:./my-allocator --flag.")
    return StdioAdapter(tuple(words), _seconds(timeout), reuse=reuse)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < 1e6:
        raise TargetError(f"a timeout is a number of seconds above 0, not {text!r}.")
    return seconds
