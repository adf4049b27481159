"""The reference manager behind the protocol, at level 2; `--batch` says that it takes batches."""

import sys
from typing import Any

import msgspec

from kvproof.fuzz.adapters.reference import ReferenceAdapter
from kvproof.fuzz.targets import wire
from kvproof.spec import operations as op
from kvproof.spec.vocabulary import CacheConfig

adapter = ReferenceAdapter(level=2)


def welcome() -> wire.Welcome:
    has = adapter.capabilities
    able = (*has.operations, "dispatch", *(["batch"] if "--batch" in sys.argv else []))
    return wire.Welcome(
        True, wire.VERSION, "reference", msgspec.structs.replace(has, policy=False, operations=able)
    )


def submit(message: wire.Submit) -> None:
    extras = op.Extras(message.adapter, message.salt, message.items, message.embeddings)
    options = op.Options(message.read_cache, message.priority, message.limit)
    adapter.submit(op.Submit(message.request, message.tokens, extras, options))


def configure(message: wire.Configure) -> None:
    fields = msgspec.structs.asdict(message)
    seed = fields.pop("seed")
    adapter.configure(CacheConfig(**fields), seed)


def observed(message: wire.Observe) -> wire.Seen:
    seen = adapter.observe(message.blocks, message.keys)
    return wire.Seen(
        True, seen.blocks, seen.index, seen.free_count, seen.metrics, seen.free, seen.rows, seen.events
    )


def granted(answer: op.Granted | op.Refused, *, hit: bool) -> msgspec.Struct:
    if isinstance(answer, op.Refused):
        return wire.No(False)
    return wire.Admitted(True, answer.hit, answer.rows) if hit else wire.Extended(True, answer.rows)


def reply(message: wire.AnyMessage) -> msgspec.Struct:
    match message:
        case wire.Hello():
            return welcome()
        case wire.Batch():
            return wire.Replies(True, tuple(msgspec.Raw(encode(reply(each))) for each in message.messages))
        case wire.Configure():
            configure(message)
        case wire.Submit():
            submit(message)
        case wire.Observe():
            return observed(message)
        case op.Lookup():
            found = adapter.lookup(message.request)
            return wire.Found(True, found.hit, found.rows)
        case op.Admit():
            return granted(adapter.admit(message.request, message.n, message.lookahead), hit=True)
        case op.Extend():
            return granted(adapter.extend(message.request, message.n, message.lookahead), hit=False)
        case op.Row():
            return wire.Read(True, adapter.row(message.request, message.group))
        case op.Dispatch():
            adapter.dispatch(message)
        case op.Retire():
            adapter.retire(message)
        case op.Finish():
            adapter.finish(message.request)
        case op.Abort():
            adapter.abort(message.request)
        case op.Preempt():
            adapter.preempt(message.request)
        case op.Evict():
            return wire.Done(True) if adapter.evict(message.request, message.boundary) else wire.No(False)
        case op.Reset():
            return wire.Done(True) if adapter.reset() else wire.No(False)
    return wire.Done(True)


encode = msgspec.json.Encoder().encode
decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(wire.AnyMessage)
for line in sys.stdin.buffer:
    sys.stdout.buffer.write(encode(reply(decoder.decode(line))) + b"\n")
    sys.stdout.buffer.flush()
