"""Operations, answers, sizes and evidence in words."""

import ast
import re
from collections.abc import Iterable, Sequence
from typing import Final

from kvproof.spec import operations as op
from kvproof.spec.oracle import Mix
from kvproof.spec.vocabulary import CacheConfig

_TOKENS_SHOWN: Final = 8


def plural(count: int, thing: str) -> str:
    """`1 block`, `2 blocks`, `12,000 operations`."""
    ending = "" if count == 1 else "es" if thing.endswith("x") else "s"
    return f"{count:,} {thing}{ending}"


def span(start: int, stop: int) -> str:
    """`position 4` or `positions 4…7`, for positions `start … stop−1`."""
    return f"position {start}" if stop - start == 1 else f"positions {start}…{stop - 1}"


def ids(blocks: Iterable[int]) -> str:
    """Block ids in order, five or more consecutive ones as `1…5`."""
    runs: list[list[int]] = []
    for block in blocks:
        if runs and block == runs[-1][-1] + 1:
            runs[-1].append(block)
        else:
            runs.append([block])
    parts = [f"{run[0]}…{run[-1]}" if len(run) > 4 else " ".join(map(str, run)) for run in runs]
    return " ".join(parts) or "none"


def rows(groups: Sequence[Sequence[int]]) -> str:
    """The blocks of each group; a single group goes without its number."""
    if len(groups) == 1:
        return ids(groups[0])
    return "; ".join(f"group {i}: {ids(row)}" for i, row in enumerate(groups))


def tokens(items: op.Tokens) -> str:
    """The first few token ids, long runs as `100…131`."""
    runs: list[list[int]] = []
    for start, count in op.runs_of(items):
        if runs and runs[-1][1] == start:
            runs[-1][1] += count
        else:
            runs.append([start, start + count])
    parts: list[str] = []
    for start, stop in runs:
        parts += [f"{start}…{stop - 1}"] if stop - start > 4 else map(str, range(start, stop))
    shown = parts[:_TOKENS_SHOWN]
    return " ".join(shown) + (" …" if len(parts) > len(shown) else "")


def config(value: CacheConfig) -> str:
    """A configuration in one line."""
    parts = [
        f"{plural(value.blocks, 'block')} of {plural(value.block_size, 'token')}",
        f"at most {plural(value.depth, 'step')} in flight",
        f"{plural(value.max_requests, 'worker row')}",
    ]
    if not value.prefix_caching:
        parts.append("no prefix cache")
    if value.hash != "sha256":
        parts.append(f"hash {value.hash}")
    return ", ".join(parts)


# --- operations ---------------------------------------------------------------------------


def operation(value: op.Operation) -> str:
    """What the engine did."""
    match value:
        case op.Submit():
            return _submit(value)
        case op.Lookup():
            return f"look up {value.request}"
        case op.Admit():
            return f"admit {value.request} for up to {plural(value.n, 'token')}{_lookahead(value.lookahead)}"
        case op.Extend():
            return f"extend {value.request} by up to {plural(value.n, 'token')}{_lookahead(value.lookahead)}"
        case op.Row():
            return f"read the row of {value.request}"
        case op.Dispatch():
            return _dispatch(value)
        case op.Retire():
            samples = [
                f"{o.request} gets {' '.join(map(str, o.sampled))}" for o in value.outputs if o.sampled
            ]
            return f"retire step {value.step}" + (": " + ", ".join(samples) if samples else "")
        case op.Finish() | op.Abort() | op.Preempt():
            return f"{type(value).__name__.lower()} {value.request}"
        case op.Evict():
            return f"evict the key of {value.request} at boundary {value.boundary}"
        case op.Reset():
            return "reset the prefix cache"
        case op.Table():
            other = f" and {value.other}" if value.other else ""
            return f"{value.action} the worker row{'s' if other else ''} of {value.request}{other}"
        case _:
            return "observe everything"


def _lookahead(count: int) -> str:
    return f", {count} lookahead" if count else ""


def _submit(value: op.Submit) -> str:
    parts = [f"submit {value.request}, {plural(op.count_of(value.tokens), 'token')}: {tokens(value.tokens)}"]
    extras = value.extras
    if extras.adapter is not None:
        adapter = extras.adapter
        path = f", path {adapter.path!r}" if adapter.path else ""
        parts.append(f"adapter {adapter.name!r} (id {adapter.id}{path})")
    if extras.salt:
        parts.append(f"salt {extras.salt!r}")
    parts += [f"item {item.id!r} at {span(item.offset, item.offset + item.length)}" for item in extras.items]
    parts += [f"embedding {each.content} at position {each.position}" for each in extras.embeddings]
    if not value.options.read_cache:
        parts.append("does not read the cache")
    if value.options.max_len is not None:
        parts.append(f"at most {value.options.max_len} tokens")
    return "; ".join(parts)


def _dispatch(value: op.Dispatch) -> str:
    parts = []
    for entry in value.entries:
        drafts = f" and drafts {' '.join(map(str, entry.drafts))}" if entry.drafts else ""
        parts.append(f"{entry.request} computes {entry.n}{drafts}")
    if value.padding:
        parts.append(plural(value.padding, "padding row"))
    return f"dispatch step {value.step}: " + ", ".join(parts)


# --- answers ------------------------------------------------------------------------------


def answer(value: op.Answer, worker_rows: bool = False) -> str:
    """What the allocator answered; with the worker's rows where they matter."""
    match value:
        case op.Found():
            return f"hit of {plural(value.hit, 'token')}" + (f": {rows(value.rows)}" if value.hit else "")
        case op.Granted():
            hit = f"hit of {plural(value.hit, 'token')}, " if value.hit else ""
            return f"{hit}row {rows(value.rows)}"
        case op.Read():
            return f"row {ids(value.row)}"
        case op.Dispatched():
            return "sent" + (_worker_rows(value.host) if worker_rows else "")
        case op.Retired():
            return "executed" + (_worker_rows(value.device) if worker_rows else "")
        case op.Crashed():
            return f"raised {value.error}: {value.message}"
        case _:
            return type(value).__name__.lower()


def _worker_rows(found: tuple[op.WorkerRow, ...] | None) -> str:
    if not found:
        return ""
    parts = [f"{row.request or 'padding'}: {rows([_trimmed(each) for each in row.rows])}" for row in found]
    return "; rows " + "; ".join(parts)


def _trimmed(row: Sequence[int]) -> Sequence[int]:
    """A row without the nulls at its end."""
    end = len(row)
    while end and not row[end - 1]:
        end -= 1
    return row[:end]


# --- evidence -----------------------------------------------------------------------------


def evidence(text: str) -> str:
    """Evidence without Python in it: values of the specification in words, tuples as lists."""
    value = _value_of(text)
    if value is not None:
        return _struct(value)
    while (listed := re.sub(r"\(([\[\]\d, -]*,[\[\]\d, -]*)\)", _listed, text)) != text:
        text = listed
    return text.replace("[[", "[").replace("]]", "]") if text.count("[[") == text.count("]]") == 1 else text


def _listed(match: re.Match[str]) -> str:
    return "[" + match.group(1).strip().rstrip(",") + "]"


def _value_of(text: str) -> op.Answer | op.Metrics | None:
    """The answer or metrics that a text is the representation of, if it is one."""
    try:
        tree = ast.parse(text, mode="eval").body
        if not isinstance(tree, ast.Call) or not isinstance(tree.func, ast.Name):
            return None
        kind = getattr(op, tree.func.id, None)
        if kind is None or not issubclass(kind, op.Answer | op.Metrics):
            return None
        made = kind(**{each.arg: ast.literal_eval(each.value) for each in tree.keywords if each.arg})
        assert isinstance(made, op.Answer | op.Metrics)
        return made
    except (SyntaxError, ValueError, TypeError):
        return None


def _struct(value: op.Answer | op.Metrics) -> str:
    return metrics(value) if isinstance(value, op.Metrics) else answer(value)


def metrics(value: op.Metrics) -> str:
    """The counters."""
    return (
        f"{plural(value.requests, 'request')} counted, {plural(value.queries, 'query token')}, "
        f"{plural(value.hits, 'hit token')}, {plural(value.preemptions, 'preemption')}"
    )


def changed(before: op.Observation, after: op.Observation) -> tuple[str, str] | None:
    """What differs between two observations, before and after, or none."""
    for block, view in before.blocks.items():
        other = after.blocks.get(block)
        if other is not None and other != view:
            return f"block {block} as before: {block_view(view)}", block_view(other)
    for field, name in (("free", "free queue"), ("index", "index"), ("rows", "rows")):
        old, new = getattr(before, field), getattr(after, field)
        if old != new:
            return f"{name} as before: {_structure(old)}", _structure(new)
    if before.metrics != after.metrics:
        return f"counters as before: {metrics(before.metrics)}", metrics(after.metrics)
    if before.free_count != after.free_count:
        return f"{before.free_count} free blocks as before", f"{after.free_count}"
    return ("no event", plural(len(after.events), "event")) if after.events else None


def block_view(view: op.BlockView) -> str:
    """A block's metadata."""
    key = f"key {view.key.hex()[:8]}" if view.key is not None else "no key"
    return f"ref_cnt {view.ref_cnt}, {key}"


def _structure(value: object) -> str:
    match value:
        case dict():
            return ", ".join(f"{name}: {rows(groups)}" for name, groups in value.items()) or "empty"
        case tuple() if all(isinstance(each, op.IndexEntry) for each in value):
            return ", ".join(f"{each.key.hex()[:8]} → {ids(each.blocks)}" for each in value) or "empty"
        case tuple():
            return ids(value)
        case _:
            return str(value)


def mixed(mix: Mix) -> str:
    """What operations were about, to stand beside a rate."""
    counts = (
        (mix.allocations, "allocation"),
        (mix.hits, "hit"),
        (mix.refusals, "refusal"),
        (mix.evictions, "eviction"),
    )
    return ", ".join(plural(*each) for each in counts)
