"""The messages of the stdio protocol, as values and as JSON Schema; PROTOCOL.md tells the story.

Most messages are the operations of the specification in their own JSON form; only those
that a reader in another language would stumble over have a flatter form here. Every reply
has `ok`; what else it has depends on the message alone. Reading is strict: an unknown field,
a missing one or a float where an integer stands is an error.
"""

import json
import sys
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec

from kvproof.spec import operations as op
from kvproof.spec.vocabulary import FEATURES, OPERATIONS, BlockIds, Capabilities, GroupRows

VERSION: Final = 1
"""The version of the protocol, in the first message and its reply."""

ABILITIES: Final = (*(name for name in OPERATIONS if name != "table"), "dispatch", "batch")
"""What an allocator may list as its operations; `dispatch` and `batch` are of the wire alone."""

REFUSABLE: Final = ("admit", "extend", "evict", "reset")
"""Messages that may be refused without an error."""


class WireError(ValueError):
    """An answer that is not what the protocol demands. The message is a clause without a subject."""


# --- messages -----------------------------------------------------------------------------


class Message(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, tag_field="op", tag=str.lower
):
    """Base of the messages that are not simply operations. A field that is absent has its default."""


class Hello(Message, frozen=True):
    """The first message to a process. The reply says who it is and what it can do."""

    version: int


class Configure(Message, frozen=True):
    """Start anew with an empty pool of blocks 1…`blocks`, whatever was before."""

    block_size: int
    blocks: int
    max_len: int
    max_requests: int
    depth: int
    prefix_caching: bool
    seed: int


class Submit(Message, frozen=True):
    """A request arrives and waits. It may grow to `limit` tokens; single token ids only, no runs."""

    request: str
    tokens: tuple[int, ...]
    limit: int
    read_cache: bool = True
    priority: int = 0
    adapter: op.Adapter | None = None
    salt: str = ""
    items: tuple[op.Item, ...] = ()
    embeddings: tuple[op.Embedding, ...] = ()


class Observe(Message, frozen=True):
    """Look at everything; or at these `blocks`, the keys that they carry, and these `[group, key]`."""

    blocks: tuple[int, ...] | None = None
    keys: tuple[tuple[int, bytes], ...] = ()


class Batch(Message, frozen=True):
    """Several messages, to be done in their order and answered together."""

    messages: "tuple[Single, ...]"


Single = (
    Configure
    | Submit
    | op.Lookup
    | op.Admit
    | op.Extend
    | op.Row
    | op.Dispatch
    | op.Retire
    | op.Finish
    | op.Abort
    | op.Preempt
    | op.Evict
    | op.Reset
    | Observe
)
AnyMessage = Hello | Batch | Single
MESSAGES: Final[tuple[type[msgspec.Struct], ...]] = AnyMessage.__args__

# --- replies ------------------------------------------------------------------------------

_True = Annotated[bool, msgspec.Meta(extra_json_schema={"const": True})]
_False = Annotated[bool, msgspec.Meta(extra_json_schema={"const": False})]


class Reply(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of the replies to what was done."""

    ok: _True


class Welcome(Reply, frozen=True):
    """Reply to hello. `capabilities.operations` may also list `dispatch` and `batch`."""

    version: int
    name: str
    capabilities: Capabilities


class Done(Reply, frozen=True):
    """It is done, and there is nothing to tell."""


class Found(Reply, frozen=True):
    """Reply to lookup: the hit in tokens and its blocks, one row per group."""

    hit: int
    rows: GroupRows


class Admitted(Reply, frozen=True):
    """Reply to admit: the hit in tokens, and the whole rows after the grant."""

    hit: int
    rows: GroupRows


class Extended(Reply, frozen=True):
    """Reply to extend: the whole rows after the grant."""

    rows: GroupRows


class Read(Reply, frozen=True):
    """Reply to row: its block ids."""

    row: BlockIds


class Seen(Reply, frozen=True):
    """Reply to observe: an observation of the specification; keys are opaque, in base64.

    `free` and `rows` belong to a full sweep. Events are those since the last observation.
    """

    blocks: dict[int, op.BlockView]
    index: tuple[op.IndexEntry, ...]
    free_count: int
    metrics: op.Metrics
    free: BlockIds | None = None
    rows: dict[str, GroupRows] | None = None
    events: tuple[op.AnyEvent, ...] = ()


class Replies(Reply, frozen=True):
    """Reply to batch: a reply for every message, in their order."""

    replies: tuple[msgspec.Raw, ...]


class No(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A refusal, after which nothing has changed; with an `error`, a failure."""

    ok: _False
    error: str = ""


REPLIES: Final[dict[type[msgspec.Struct], type[Reply]]] = {
    Hello: Welcome,
    op.Lookup: Found,
    op.Admit: Admitted,
    op.Extend: Extended,
    op.Row: Read,
    Observe: Seen,
    Batch: Replies,
}
"""Message → what answers it; `Done` answers the others."""


class _Head(msgspec.Struct):
    ok: bool


_head = msgspec.json.Decoder(_Head)
_no = msgspec.json.Decoder(No)
_yes = {kind: msgspec.json.Decoder(REPLIES.get(kind, Done)) for kind in MESSAGES}


def name_of(kind: type[msgspec.Struct]) -> str:
    """A message's name on the wire."""
    return kind.__name__.lower()


def read(line: bytes | msgspec.Raw, kind: type[msgspec.Struct]) -> Any:
    """The reply to a message of this kind: a `No`, or what `REPLIES` says. Raises `WireError`."""
    try:
        return _yes[kind].decode(line) if _head.decode(line).ok else _no.decode(line)
    except msgspec.ValidationError as error:
        raise WireError(f"has the wrong shape: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise WireError(f"is not JSON: {error}") from None


def checked(welcome: Welcome) -> tuple[Capabilities, frozenset[str]]:
    """The capabilities as the specification has them, and the wire's own abilities. Raises `WireError`."""
    has = welcome.capabilities
    choices = (
        ("version", welcome.version, (VERSION,)),
        ("level", has.level, (0, 1, 2)),
        ("policy", has.policy, (False,)),
        ("publish", has.publish, ("grant", "retire")),
        ("max_hit", has.max_hit, ("len-1", "len")),
        *(("operation", name, ABILITIES) for name in has.operations),
        *(("feature", name, FEATURES) for name in has.features),
    )
    for what, value, allowed in choices:
        if value not in allowed:
            raise WireError(f"declares {what} {value!r}, which is not of {', '.join(map(repr, allowed))}")
    if has.depth < 1 or any(size < 1 for size in has.block_sizes):
        raise WireError("declares a depth or a block size below 1")
    operations = tuple(name for name in has.operations if name in OPERATIONS)
    wire = frozenset(has.operations) - set(operations)
    return msgspec.structs.replace(has, operations=operations), wire


# --- schemas ------------------------------------------------------------------------------


def schema(kind: type[msgspec.Struct]) -> dict[str, Any]:
    """The JSON Schema of a message and its reply, under `$defs` as `message` and `reply`."""
    name = name_of(kind)
    (message, yes, no), defs = msgspec.json.schema_components((kind, REPLIES.get(kind, Done), No))
    no = no if name in REFUSABLE else {**no, "required": ["error"]}
    defs |= {"message": message, "reply": {"oneOf": [yes, no]}}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"kvproof stdio protocol {VERSION}: {name}",
        "anyOf": [{"$ref": "#/$defs/message"}, {"$ref": "#/$defs/reply"}],
        "$defs": defs,
    }


def schemas() -> dict[str, str]:
    """File name → text of the schema of every message."""
    return {
        f"{name_of(kind)}.json": json.dumps(schema(kind), indent=2, sort_keys=True) + "\n"
        for kind in MESSAGES
    }


if __name__ == "__main__":
    for file, text in schemas().items():
        Path(sys.argv[1], file).write_text(text, encoding="utf-8")
