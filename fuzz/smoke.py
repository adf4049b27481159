"""The smoke test of an adapter: one simple life, and everything that is declared, once.

An allocator that works can't fail here, so a failure says that the adapter is wrong, or
that a capability is declared which isn't there.
"""

from collections.abc import Iterable, Iterator

from kvproof.fuzz.adapters.port import Adapter
from kvproof.fuzz.session import IllegalOperation, Session
from kvproof.spec import operations as op
from kvproof.spec.vocabulary import CHOICES, FEATURES, OPERATIONS, CacheConfig, Capabilities

BLOCKS = 6

_LEFT = frozenset({"KV-P-usage", "KV-P-accounting"})
"""Figures that are told wrongly belie no capability: that is for the run to say."""

_EXTRAS = {
    "adapters": op.Extras(adapter=op.Adapter("x", 1, "y")),
    "salts": op.Extras(salt="x"),
    "items": op.Extras(items=(op.Item("x", 0, 2),)),
    "embeddings": op.Extras(embeddings=(op.Embedding(0, 1),)),
}


def config_for(capabilities: Capabilities, *, prefix_caching: bool = True) -> CacheConfig:
    """A small pool that the allocator can have."""
    size = capabilities.block_sizes[0] if capabilities.block_sizes else 4
    depth = min(2, capabilities.depth)
    return CacheConfig(
        BLOCKS, size, prefix_caching=prefix_caching, depth=depth, max_requests=4, max_len=4 * size
    )


def script(capabilities: Capabilities, config: CacheConfig) -> Iterator[op.AnyOperation]:
    """A life, then each declared operation and feature."""
    size, step = config.block_size, 1
    prompt = 2 * size + 1
    yield op.Submit("a", ((1, prompt),))
    if capabilities.has("lookup"):
        yield op.Lookup("a")
    first = size if capabilities.has("chunks") else prompt
    yield op.Admit("a", first, 1 if capabilities.has("lookahead") else 0)
    yield from _step(step, "a", first, ends=first == prompt)
    if first < prompt:
        step += 1
        yield op.Extend("a", prompt - first)
        yield from _step(step, "a", prompt - first, ends=True)
    step += 1
    yield op.Extend("a", 1)
    yield from _step(step, "a", 1, ends=True)
    yield op.Row("a")
    if capabilities.has("table"):
        yield op.Table("move", "a")
    if capabilities.has("evict"):
        yield op.Evict("a", size)
    if capabilities.has("preempt"):
        yield op.Preempt("a")
        yield op.Abort("a") if capabilities.has("abort") else op.Row("a")
    else:
        yield op.Finish("a")
    if capabilities.has("reset"):
        yield op.Reset()
    yield op.Observe()
    step += 1
    if capabilities.has("ahead") and config.depth > 1:
        yield from _ahead(step, 2 * size - 1)
        step += 2
    yield from _features(capabilities, size, step)


def _ahead(step: int, prompt: int) -> Iterator[op.AnyOperation]:
    """A token is granted while it is sampled; known, it fills a block that is still being written."""
    yield op.Submit("ahead", ((8000, prompt),))
    yield op.Admit("ahead", prompt)
    yield op.Dispatch(step, (op.Entry("ahead", prompt),))
    yield op.Extend("ahead", 1)
    yield op.Dispatch(step + 1, (op.Entry("ahead", 1),))
    yield op.Retire(step, (op.Output("ahead", (7,)),))
    yield op.Retire(step + 1, (op.Output("ahead", (7,)),))
    yield op.Finish("ahead")


def _step(number: int, name: str, n: int, ends: bool) -> tuple[op.AnyOperation, ...]:
    sampled = (7,) if ends else ()
    return op.Dispatch(number, (op.Entry(name, n),)), op.Retire(number, (op.Output(name, sampled),))


def _features(capabilities: Capabilities, size: int, step: int) -> Iterator[op.AnyOperation]:
    for number, (name, extras) in enumerate(_EXTRAS.items(), 1):
        if capabilities.has(name):
            # Tokens that nobody else has: whether extras tell prefixes apart is not the adapter's doing.
            yield op.Submit(name, ((1000 * number, size),), extras)
            yield op.Admit(name, size)
            yield from _step(step, name, size, ends=True)
            yield op.Finish(name)
            step += 1
    if capabilities.has("opt_out"):
        yield op.Submit("opt_out", ((9000, size),), options=op.Options(read_cache=False))
        yield op.Admit("opt_out", size)
        yield from _step(step, "opt_out", size, ends=True)
        yield op.Finish("opt_out")


def examine(adapter: Adapter, ignore: frozenset[str] = frozenset()) -> str:
    """What is wrong with an adapter, as a sentence, or nothing."""
    declared = adapter.capabilities
    if reason := _declaration(declared):
        return reason
    # Where blocks go while the cache is off is a choice of its own.
    for caching in (True, False) if declared.policy else (True,):
        config = config_for(declared, prefix_caching=caching)
        records: list[op.Record] = []
        session = Session(adapter, config, ignore=ignore | _LEFT, watch=records.append)
        if reason := _lived(session, script(declared, config)) or _shown(declared, config, records, adapter):
            return reason
    return ""


def _lived(session: Session, operations: Iterable[op.AnyOperation]) -> str:
    """What went wrong in a simple life, or nothing. The policy is compared where it is claimed."""
    for operation in operations:
        if isinstance(operation, op.Row) and _gone(session, operation.request):
            continue
        try:
            session.apply(operation)
        except IllegalOperation as error:
            return f"{type(operation).__name__.lower()} came to nothing before: {error}"
        if session.errored is not None:
            return f"{session.errored.reason}\n{session.errored.transcript}".rstrip()
        if session.violation is not None:
            name = type(operation).__name__.lower()
            evidence = session.violation.evidence
            found = f"{evidence.observed}, expected {evidence.expected}"
            return f"in a simple life {session.violation.code} falls at {name}: {found}"
    return ""


def _gone(session: Session, name: str) -> bool:
    request = session.state.requests.get(name)
    return request is None or request.life is None


def _declaration(declared: Capabilities) -> str:
    if not 0 <= declared.level <= 3:
        return f"level {declared.level} is declared; levels are 0 to 3"
    if declared.policy and declared.level < 2:
        return f"the reference policy is claimed at level {declared.level}, where it cannot be compared"
    for name, allowed in CHOICES.items():
        if (value := getattr(declared.choices, name)) not in allowed:
            return f"{name} {value!r} is declared as a choice of the policy, not one of {', '.join(allowed)}"
    if declared.depth < 1:
        return f"at most {declared.depth} steps in flight are declared; there is at least 1"
    unknown = [n for n in (*declared.operations, *declared.features) if n not in (*OPERATIONS, *FEATURES)]
    return f"{unknown[0]!r} is declared, which is neither an operation nor a feature" if unknown else ""


def _shown(declared: Capabilities, config: CacheConfig, records: list[op.Record], adapter: Adapter) -> str:
    """The first way in which the records belie the level, or nothing."""
    if declared.level >= 2:
        for record in records:
            seen = record.observation
            if seen is None or seen.free is None or len(seen.blocks) != config.blocks:
                return f"level {declared.level} is declared, but not every block and the free queue are shown"
        if config.prefix_caching and not any(
            record.observation.index for record in records if record.observation
        ):
            return f"level {declared.level} is declared, but no key is ever shown"
    if declared.level >= 3:
        rows = [record.answer.host for record in records if isinstance(record.answer, op.Dispatched)]
        if adapter.device is None or any(row is None for row in rows):
            return "level 3 is declared, but memory or worker rows are not shown"
    return ""
