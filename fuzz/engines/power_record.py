"""The recorded detection power, and what a budget of operations can be expected to find by it."""

from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from typing import Final

import msgspec

from kvproof.fuzz.engines.power import Power

FILE: Final = "power.json"
"""Lies beside the faults, and wherever somebody records."""


class Detected(msgspec.Struct, frozen=True):
    """A fault and the probability that a run of some budget finds it."""

    fault: str
    probability: float


class _Document(msgspec.Struct):
    rows: tuple[Power, ...]


def read(data: bytes) -> tuple[Power, ...]:
    """The rows of a record."""
    return msgspec.json.decode(data, type=_Document).rows


@cache
def recorded() -> tuple[Power, ...]:
    """The record that ships; empty where none was made."""
    file = resources.files("kvproof.fuzz.faults") / FILE
    return read(file.read_bytes()) if file.is_file() else ()


def detects(operations: Mapping[str, int], rows: Sequence[Power] | None = None) -> list[Detected]:
    """What engines with so many operations each find together, fault by fault, the least likely first.

    The engines draw independently, so a fault is missed where each of them misses it. A budget
    beyond the recorded one counts as that.
    """
    missed: dict[str, float] = {}
    for row in recorded() if rows is None else rows:
        share = row.within(min(operations.get(row.engine, 0), row.budget)) / len(row.trials)
        missed[row.fault] = missed.get(row.fault, 1.0) * (1 - share)
    found = [Detected(fault, round(1 - each, 4)) for fault, each in missed.items()]
    return sorted(found, key=lambda each: (each.probability, each.fault))
