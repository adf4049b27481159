"""What the engine around the allocator does, what it is answered, and what can be observed.

An operation carries values that the engine knows and never a block id that the allocator
is free to choose. All are frozen values with one JSON form: an object whose `op` (or
`answer`) names its type.
"""

import hashlib
from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from kvproof.spec.vocabulary import BlockIds, GroupRows

Tokens = tuple[int | tuple[int, int], ...]
"""Token ids; a pair `[start, count]` stands for `count` consecutive ids from `start`."""


def runs_of(tokens: Iterable[int | tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """The tokens as runs `(start, count)`, as they were given."""
    for item in tokens:
        yield (item, 1) if isinstance(item, int) else item


def count_of(tokens: Tokens) -> int:
    """How many token ids these are."""
    return sum(1 if isinstance(item, int) else item[1] for item in tokens)


def flatten(tokens: Tokens) -> list[int]:
    """The single token ids."""
    flat: list[int] = []
    for item in tokens:
        if isinstance(item, int):
            flat.append(item)
        else:
            flat.extend(range(item[0], item[0] + item[1]))
    return flat


class Value(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Base of the plain values below."""


class Adapter(Value, frozen=True):
    """A LoRA adapter. All three fields are its identity."""

    name: str
    id: int = 0
    path: str = ""


class Item(Value, frozen=True):
    """A multimodal item that stands at prompt positions `offset … offset+length−1`."""

    id: str
    offset: int
    length: int


class Embedding(Value, frozen=True):
    """A prompt embedding at `position`; equal `content` means equal vectors."""

    position: int
    content: int


class Extras(Value, frozen=True):
    """What K/V depends on besides tokens (REQ-3.1). Items are ordered and do not overlap."""

    adapter: Adapter | None = None
    salt: str = ""
    items: tuple[Item, ...] = ()
    embeddings: tuple[Embedding, ...] = ()


class Options(Value, frozen=True):
    """`read_cache` false: the request's prompt is computed in full (REQ-3.9). `max_len` caps its tokens."""

    read_cache: bool = True
    priority: int = 0
    max_len: int | None = None


# --- operations -------------------------------------------------------------------------


class Operation(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, tag_field="op", tag=str.lower
):
    """Base of the operations; the JSON tag is the class name in lower case."""


class Submit(Operation, frozen=True):
    """A request arrives, with an id that no living request has."""

    request: str
    tokens: Tokens
    extras: Extras = Extras()
    options: Options = Options()


class Lookup(Operation, frozen=True):
    """Ask for the hit of a waiting request. No effect."""

    request: str


class Admit(Operation, frozen=True):
    """Begin a life: look up, take the hit, and grant up to `n` tokens beyond it, or refuse with no trace."""

    request: str
    n: int
    lookahead: int = 0


class Extend(Operation, frozen=True):
    """Grant a living request up to `n` more tokens, with slots for `lookahead` drafts."""

    request: str
    n: int
    lookahead: int = 0


class Entry(Value, frozen=True):
    """A life in a step: `n` tokens of its grant (the whole grant) and the draft tokens after them."""

    request: str
    n: int
    drafts: tuple[int, ...] = ()


class Row(Operation, frozen=True):
    """Read the row that a worker would use now. No effect."""

    request: str
    group: int = 0


class Dispatch(Operation, frozen=True):
    """Send a step to the device: the oldest grants, whole, in their order; `padding` dummy rows behind."""

    step: int
    entries: tuple[Entry, ...]
    padding: int = 0


class Output(Value, frozen=True):
    """What a living request got from a step: the sampled tokens (one, or none inside a prompt)."""

    request: str
    sampled: tuple[int, ...] = ()
    accepted: int = 0


class Retire(Operation, frozen=True):
    """The oldest step in flight has executed. Outputs name living lives only."""

    step: int
    outputs: tuple[Output, ...] = ()


class Finish(Operation, frozen=True):
    """The request is complete; its life ends and its id is free."""

    request: str


class Abort(Operation, frozen=True):
    """The client is gone; in any state. The id is free."""

    request: str


class Preempt(Operation, frozen=True):
    """The life ends for want of space; the request waits again with all tokens known by now."""

    request: str


class Evict(Operation, frozen=True):
    """Remove the keys of the block that ends at `boundary` tokens of a living request, not its content."""

    request: str
    boundary: int


class Reset(Operation, frozen=True):
    """Drop the whole prefix cache; refused while anything is held."""


class Table(Operation, frozen=True):
    """Rearrange the worker's rows between dispatches.

    `move` takes `request`'s row to the free row with the lowest number; `swap` exchanges the
    rows of `request` and `other`.
    """

    action: str
    request: str
    other: str = ""


class Observe(Operation, frozen=True):
    """Look at everything that the level shows: a full sweep. No effect."""


AnyOperation = (
    Submit
    | Lookup
    | Admit
    | Extend
    | Row
    | Dispatch
    | Retire
    | Finish
    | Abort
    | Preempt
    | Evict
    | Reset
    | Table
    | Observe
)
OPERATIONS: Final[tuple[type[Operation], ...]] = AnyOperation.__args__
ENDS: Final = (Finish, Abort, Preempt)
"""The operations that end a life."""
QUESTIONS: Final = (Submit, Lookup, Row, Observe, Table)
"""The operations that leave an allocator's structures alone and that no holder or content depends on."""

# --- answers ----------------------------------------------------------------------------


class Answer(
    msgspec.Struct,
    frozen=True,
    forbid_unknown_fields=True,
    omit_defaults=True,
    tag_field="answer",
    tag=str.lower,
):
    """Base of the answers; the JSON tag is the class name in lower case."""


class Done(Answer, frozen=True):
    """It is done."""


class Refused(Answer, frozen=True):
    """It can't be done now, and nothing changed."""


class Found(Answer, frozen=True):
    """Answer of a look-up: the hit in tokens and its blocks per group."""

    hit: int
    rows: GroupRows


class Granted(Answer, frozen=True):
    """Answer of admit and extend: the hit in tokens (admit only) and the whole rows after the grant."""

    rows: GroupRows
    hit: int = 0


class Read(Answer, frozen=True):
    """Answer of row: its block ids."""

    row: BlockIds


class WorkerRow(Value, frozen=True):
    """One batch row of the worker at a step: the ids of every column, per group, null behind the end.

    `request` is "" for a padding row. `slots` are, per group, the slot of each token that the
    row wrote in the step, (−1,) for a padding row; they are known when the step retires.
    """

    request: str
    rows: GroupRows
    slots: tuple[tuple[int, ...], ...] = ()


class Dispatched(Answer, frozen=True):
    """Answer of dispatch. `host` are the worker's batch rows in order, padding last (L3)."""

    host: tuple[WorkerRow, ...] | None = None


class Retired(Answer, frozen=True):
    """Answer of retire. `device` are the rows that the kernels really read, with the slots that they
    wrote, in batch order, padding last (L3). `swapped` are the whole rows of living requests in
    which a block was replaced by one of equal content (capability `swap`)."""

    device: tuple[WorkerRow, ...] | None = None
    swapped: dict[str, GroupRows] | None = None


class Crashed(Answer, frozen=True):
    """The allocator raised an error on a legal operation."""

    error: str
    message: str


AnyAnswer = Done | Refused | Found | Granted | Read | Dispatched | Retired | Crashed
FAILURES: Final = (Refused, Crashed)
"""The answers after which nothing has changed."""

# --- observations -----------------------------------------------------------------------


class BlockView(Value, frozen=True):
    """A block's metadata. `key` is opaque; `tokens` is the boundary inside the block that it stands for."""

    ref_cnt: int
    key: bytes | None = None
    group: int = 0
    tokens: int = 0


class IndexEntry(Value, frozen=True):
    """A hittable key and its blocks, the oldest first."""

    key: bytes
    group: int
    blocks: BlockIds


class Event(
    msgspec.Struct,
    frozen=True,
    forbid_unknown_fields=True,
    omit_defaults=True,
    tag_field="event",
    tag=str.lower,
):
    """Base of the events; the JSON tag is the class name in lower case."""


class Stored(Event, frozen=True):
    """Event: these keys, a chain in order, became hittable. `parent` is the key before the first."""

    keys: tuple[bytes, ...]
    parent: bytes | None
    tokens: tuple[int, ...]
    block_size: int
    group: int = 0


class Removed(Event, frozen=True):
    """Event: this key is hittable no more."""

    key: bytes
    group: int = 0


class Cleared(Event, frozen=True):
    """Event: no key is hittable any more."""


AnyEvent = Stored | Removed | Cleared


class Metrics(Value, frozen=True):
    """Counters since the start. A request's queries count once, when its life begins."""

    requests: int = 0
    queries: int = 0
    hits: int = 0
    preemptions: int = 0


class Mismatch(Value, frozen=True):
    """A wrong place in device memory: which words, who should have written, who did.

    `layer`, `offset` (token inside the block) and `words` count the wrong words of that token;
    `expected` is the claim digest that was demanded, `found` the digest recovered from the
    bytes, or none where the words do not come from one writer.
    """

    block: int
    layer: int
    offset: int
    words: int
    expected: int
    found: int | None = None


class Observation(Value, frozen=True):
    """What level 2 shows after an operation.

    A full observation lists every block and the whole free queue from its head; a partial
    one (`free` and `rows` are none) the blocks that the operation touched, and the keys of
    those. `rows` are the manager's own tables of living requests.
    """

    blocks: dict[int, BlockView]
    index: tuple[IndexEntry, ...]
    free_count: int
    free: BlockIds | None = None
    rows: dict[str, GroupRows] | None = None
    usage: float = 0.0
    metrics: Metrics = Metrics()
    events: tuple[AnyEvent, ...] = ()


class Record(Value, frozen=True):
    """One line of a history: what was asked, what was answered, what was seen.

    `memory` lists the wrong places of the device, where one is verified.
    """

    index: int
    operation: AnyOperation
    answer: AnyAnswer
    observation: Observation | None = None
    memory: tuple[Mismatch, ...] = ()


def digest_of(values: Iterable[msgspec.Struct]) -> str:
    """A short digest of a history or verdict, to compare two runs to the byte."""
    lines = msgspec.json.Encoder(order="deterministic").encode_lines(values)
    return hashlib.sha256(lines).hexdigest()[:16]


def schema() -> dict[str, object]:
    """The JSON Schema of operations, answers and observations."""
    types = (AnyOperation, AnyAnswer, Observation)
    (operation, answer, observation), components = msgspec.json.schema_components(types)
    return {
        "operation": operation,
        "answer": answer,
        "observation": observation,
        "$defs": components,
    }
