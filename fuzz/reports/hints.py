"""From a clause to the place to look (REQ-10.3): how it shows, and what to read first."""

import tomllib
from functools import cache
from importlib import resources

import msgspec


class Hint(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a broken clause shows in a running engine, and where to look for the mistake."""

    symptom: str
    look: str


@cache
def hints() -> dict[str, Hint]:
    """The hint of every clause."""
    text = resources.files("kvproof.fuzz.reports").joinpath("hints.toml").read_text(encoding="utf-8")
    return msgspec.convert(tomllib.loads(text), dict[str, Hint])


def hint(code: str) -> Hint:
    """The hint of a clause."""
    return hints()[code]
