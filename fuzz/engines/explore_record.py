"""The counts of explorations that are on record: the same on every machine, so that a change shows."""

import json
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Final

import msgspec

from kvproof.fuzz.engines.explore import Exploration
from kvproof.fuzz.engines.explore_moves import presets

FILE: Final = "explored.json"
"""Lies beside this module, and wherever somebody records."""


class Counts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The states by length, the transitions between them, and how often each situation was met."""

    states: tuple[int, ...]
    transitions: int
    situations: dict[str, int]


def counts_of(found: Exploration) -> Counts:
    """What is recorded of an exploration."""
    return Counts(tuple(found.states), found.transitions, dict(sorted(found.situations.items())))


def recorded() -> dict[str, Counts]:
    """The record that ships, by preset."""
    return msgspec.json.decode(
        resources.files(__package__).joinpath(FILE).read_bytes(), type=dict[str, Counts]
    )


def record(found: Mapping[str, Exploration], folder: Path) -> None:
    """Write the counts into a folder's record, in the order of the presets; others keep theirs there."""
    path = folder / FILE
    kept = msgspec.json.decode(path.read_bytes(), type=dict[str, Counts]) if path.exists() else {}
    kept |= {name: counts_of(each) for name, each in found.items()}
    folder.mkdir(parents=True, exist_ok=True)
    order = [*(name for name in presets() if name in kept), *(name for name in kept if name not in presets())]
    lines = [f"{json.dumps(name)}: {msgspec.json.encode(kept[name]).decode()}" for name in order]
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def difference(name: str, found: Exploration, kept: Mapping[str, Counts]) -> str:
    """How an exploration differs from what is on record, as a sentence, or nothing."""
    if name not in kept:
        return f"No counts are on record for {name}."
    now, then = counts_of(found), kept[name]
    if now == then:
        return ""
    for length, (ours, theirs) in enumerate(zip(now.states, then.states, strict=False)):
        if ours != theirs:
            return f"{ours:,} states take {length} operations, where {theirs:,} are on record."
    if len(now.states) != len(then.states):
        return f"The length is {len(now.states) - 1}, where {len(then.states) - 1} is on record."
    if now.transitions != then.transitions:
        return f"There are {now.transitions:,} transitions, where {then.transitions:,} are on record."
    wrong = next(
        each
        for each in (*now.situations, *then.situations)
        if now.situations.get(each) != then.situations.get(each)
    )
    met, on_record = now.situations.get(wrong, 0), then.situations.get(wrong, 0)
    return f"Situation {wrong} was met {met:,} times, where {on_record:,} are on record."
