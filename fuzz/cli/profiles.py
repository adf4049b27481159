"""How much `kvproof check` does: the profiles that ship as data."""

import tomllib
from importlib import resources

import msgspec


class Expected(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A target to judge and the verdict that it must get.

    All of `clauses` must fall and none beside them but those that `may`, which chance decides. Clauses
    in `ignore` are known to fall and not judged, features in `without` are those in which it is known to
    be at fault.
    """

    target: str
    result: str
    clauses: tuple[str, ...] = ()
    may: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    without: tuple[str, ...] = ()


class Profile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Operations for each engine, traces with their pool sizes, presets to explore, and what else is on.

    `device` are operations with the kernels watched, `differential` for each of their builds the cases
    that are compared with numpy.
    """

    seconds: int
    soak: int
    hypothesis: int
    traces: dict[str, tuple[int, ...]]
    crosshair: bool
    faults: bool
    presets: tuple[str, ...] = ()
    device: int = 0
    differential: dict[str, int] = {}
    mutants: bool = False
    target_operations: int = 0
    targets: tuple[Expected, ...] = ()


NAMES = ("quick", "ci", "nightly")


def profile(name: str) -> Profile:
    """A profile by name."""
    text = resources.files("kvproof.fuzz.cli").joinpath("profiles.toml").read_text(encoding="utf-8")
    return msgspec.convert(tomllib.loads(text), dict[str, Profile])[name]
