"""The port: what an allocator under test has to answer.

One class per allocator. The methods are the operations of the specification; a method
returns the operation's answer, or raises: any exception is judged as a crash on a legal
operation. `admit` is atomic for the caller: an allocator whose look-up and allocation are
two calls is composed here.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection

from kvproof.fuzz.device import Device
from kvproof.spec import operations as op
from kvproof.spec.vocabulary import BlockIds, CacheConfig, Capabilities


class Errored(Exception):
    """The allocator cannot be asked any more: it died, hung, or broke the protocol. Has the transcript."""

    def __init__(self, reason: str, transcript: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.transcript = transcript


class Adapter(ABC):
    """Drives one allocator. `configure` comes first and starts anew."""

    name: str = "allocator"
    capabilities: Capabilities = Capabilities()
    """What it shows, can do, and takes as its freedom."""
    device: Device | None = None
    """Its device memory, where it has one that can be read (level 3).

    When a step has retired its words are there, and those of no later step.
    """

    @abstractmethod
    def configure(self, config: CacheConfig, seed: int) -> None:
        """Build an empty allocator for `config`."""

    def close(self) -> None:
        """Let go of processes and files. Called once, at the end."""
        return None

    @abstractmethod
    def submit(self, operation: op.Submit) -> None:
        """Register a request that waits."""

    def lookup(self, request: str) -> op.Found:
        """The hit that `request` would get now, without any effect."""
        raise NotImplementedError(f"{self.name} has no look-up without effect")

    @abstractmethod
    def admit(self, request: str, n: int, lookahead: int) -> op.Granted | op.Refused:
        """Begin a life of a waiting request: hit, then slots for up to `n` tokens and `lookahead` drafts."""

    @abstractmethod
    def extend(self, request: str, n: int, lookahead: int) -> op.Granted | op.Refused:
        """Grant up to `n` more tokens to a living request."""

    @abstractmethod
    def row(self, request: str, group: int) -> BlockIds:
        """The block ids that a worker would use for a living request now."""

    def dispatch(self, operation: op.Dispatch) -> op.Dispatched:
        """A step goes to the device. An allocator without steps has nothing to do."""
        return op.Dispatched()

    @abstractmethod
    def retire(self, operation: op.Retire) -> op.Retired:
        """The step has executed; sampled tokens become known."""

    @abstractmethod
    def finish(self, request: str) -> None:
        """The request is complete."""

    def abort(self, request: str) -> None:
        """The client is gone; a waiting request just disappears."""
        self.finish(request)

    def preempt(self, request: str) -> None:
        """The life ends, the request waits again."""
        raise NotImplementedError(f"{self.name} does not preempt")

    def evict(self, request: str, boundary: int) -> bool:
        """Remove the keys of the block of `request` that ends at `boundary`; whether there was one."""
        raise NotImplementedError(f"{self.name} does not evict by name")

    def reset(self) -> bool:
        """Drop the prefix cache; false while anything is held."""
        raise NotImplementedError(f"{self.name} has no reset")

    def table(self, operation: op.Table) -> None:
        """Rearrange worker rows (level 3)."""
        raise NotImplementedError(f"{self.name} has no worker rows")

    def observe(
        self, blocks: Collection[int] | None, keys: Collection[tuple[int, bytes]] = ()
    ) -> op.Observation | None:
        """What level 2 shows: everything; or only the given blocks, the keys that these carry, and
        what the index has under the given keys `(group, key)`. None below level 2."""
        return None
