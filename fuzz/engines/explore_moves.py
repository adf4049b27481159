"""Presets: small scopes, and in each the operations that an engine may do next."""

import tomllib
from collections.abc import Iterator
from functools import cache
from importlib import resources
from itertools import combinations, product
from typing import Final

import msgspec

from kvproof.spec import operations as op
from kvproof.spec.contract import reason_against
from kvproof.spec.state import Life, State, Step
from kvproof.spec.vocabulary import CacheConfig

NAMES: Final = ("a", "b", "c", "d")
"""Request ids, the first ones of which a preset uses."""


class PresetError(ValueError):
    """A preset that there is not. The message is one sentence."""


class Prompt(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a request may be."""

    tokens: tuple[int, ...]
    extras: op.Extras = op.Extras()
    options: op.Options = op.Options()


class Preset(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A scope: a configuration, what requests may be, and how long sequences get.

    `length` is the most operations in a sequence, `requests` the number of ids. Admissions and
    extensions ask for all that is left, or for one of `chunks` tokens, with one of `lookahead`
    slots for drafts. Steps sample tokens of `sampled`. `partial` steps take the oldest grant alone.
    At `level` 2 structures are seen; at 3 there is a worker, and bytes are verified: steps come with
    any of `padding` dummy rows, and the rows of a batch are moved and swapped. `reaches` are the
    situations that the preset must come upon.
    """

    title: str
    length: int
    config: CacheConfig
    requests: int
    prompts: tuple[Prompt, ...]
    sampled: tuple[int, ...] = (0,)
    chunks: tuple[int, ...] = ()
    lookahead: tuple[int, ...] = (0,)
    partial: bool = False
    evict: bool = False
    level: int = 2
    padding: tuple[int, ...] = (0,)
    reaches: tuple[str, ...] = ()


def presets() -> dict[str, Preset]:
    """The presets that ship, the smallest first."""
    text = resources.files(__package__).joinpath("presets.toml").read_text(encoding="utf-8")
    found = msgspec.convert(tomllib.loads(text), dict[str, Preset])
    for each in found.values():
        each.config.validate()
    return found


def preset(name: str) -> Preset:
    """A preset by name. Raises `PresetError`."""
    found = presets()
    if name not in found:
        raise PresetError(f"there is no preset {name!r}; there are {', '.join(found)}.")
    return found[name]


@cache
def submits(preset: Preset) -> dict[str, tuple[op.Submit, ...]]:
    """Each id with what it may be submitted as."""
    return {
        name: tuple(op.Submit(name, each.tokens, each.extras, each.options) for each in preset.prompts)
        for name in NAMES[: preset.requests]
    }


def operations(preset: Preset, state: State) -> Iterator[op.AnyOperation]:
    """Everything that the engine may do now, in an order that depends on the state alone."""
    for name in _free_names(preset, state):
        yield from submits(preset)[name]
    living = state.living()
    for name in state.waiting():
        yield op.Lookup(name)
        yield op.Abort(name)
        if len(living) < preset.config.max_requests:
            for n, lookahead in _counts(preset, state.requests[name].paths[0].length):
                yield op.Admit(name, n, lookahead)
    for life in living:
        yield from _of_life(preset, state, life)
    if state.grants and len(state.steps) < preset.config.depth:
        yield from _dispatches(preset, state)
    if state.steps:
        yield from _retires(preset, state.steps[0])
    if preset.level >= 3:
        yield from _of_batch(state)
    yield op.Reset()


def _free_names(preset: Preset, state: State) -> list[str]:
    """Ids that may be submitted: those of ended lives in flight, and one of those that left no trace.

    The others without a trace differ from that one in nothing but their letters. A worker may
    remember any.
    """
    free = [
        name for name in NAMES[: preset.requests] if name not in state.requests or state.requests[name].gone
    ]
    if preset.level >= 3:
        return free
    traces = {entry.life.request for step in state.steps for entry in step.entries}
    without = [name for name in free if name not in traces]
    return [name for name in free if name in traces or name == without[0]]


def _counts(preset: Preset, left: int) -> Iterator[tuple[int, int]]:
    """Tokens and slots for drafts that a grant may ask for."""
    return product((left, *(n for n in preset.chunks if n < left)), preset.lookahead)


def _of_life(preset: Preset, state: State, life: Life) -> Iterator[op.AnyOperation]:
    left = life.cap - life.scheduled
    if life.grant is None and left > 0:
        for n, lookahead in _counts(preset, left):
            yield op.Extend(life.request, n, lookahead)
    # Whoever rests on its undispatched writes is preempted first, by an operation of its own.
    if reason_against(state, op.Finish(life.request)) is None:
        yield op.Finish(life.request)
        yield op.Preempt(life.request)
    if preset.evict:
        for index in range(len(life.rows[0])):
            yield op.Evict(life.request, (index + 1) * preset.config.block_size)


def _dispatches(preset: Preset, state: State) -> Iterator[op.Dispatch]:
    """All grants, or the oldest alone; each with no draft, or with as many as there is room for."""
    counts = {len(state.grants), 1} if preset.partial else {len(state.grants)}
    for count in sorted(counts):
        lives = state.grants[:count]
        for drafts in product(*(_drafts(preset, life) for life in lives)):
            entries = [state.entry_of(life, each) for life, each in zip(lives, drafts, strict=True)]
            for padding in preset.padding:
                if count + padding <= preset.config.max_requests:
                    yield op.Dispatch(state.next_step, tuple(entries), padding)


def _drafts(preset: Preset, life: Life) -> list[tuple[int, ...]]:
    grant = life.grant
    assert grant is not None, "only a granted life is dispatched"
    room = grant.slots - grant.stop if grant.stop == life.known + life.pending else 0
    return [(), preset.sampled[:1] * room] if room else [()]


def _retires(preset: Preset, step: Step) -> Iterator[op.Retire]:
    """Every way to sample for the living lives of the oldest step."""
    living = [entry for entry in step.entries if not entry.life.ended]
    choices = [[(token,) for token in preset.sampled] if each.samples else [()] for each in living]
    for sampled in product(*choices):
        outputs = [op.Output(each.life.request, tokens) for each, tokens in zip(living, sampled, strict=True)]
        yield op.Retire(step.number, tuple(outputs))


def _of_batch(state: State) -> Iterator[op.Table]:
    """A worker may take a row elsewhere, or exchange two."""
    names = state.batch()
    asked = [op.Table("move", name) for name in names]
    asked += [op.Table("swap", one, other) for one, other in combinations(names, 2)]
    yield from (each for each in asked if reason_against(state, each) is None)
