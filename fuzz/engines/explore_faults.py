"""Which seeded faults exploration catches: in which preset first, and with how long a shortest sequence.

A fault counts as caught where its own clause falls. The comparison with the policy is off, but for
faults of its clauses; sequences in which another clause falls first end there.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Final

import msgspec

from kvproof.fuzz.engines.explore import Exploration, Unmergeable, Unrepeatable, UnsoundMerge, explore
from kvproof.fuzz.engines.explore_moves import Preset, presets
from kvproof.fuzz.faults import Fault, planted

FILE: Final = "caught.json"
"""Lies beside this module, and wherever somebody records."""


class Caught(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A fault's own clause fell in a preset, after `length` operations and not after fewer.

    `states` and `transitions` are what was explored of that preset until then.
    """

    preset: str
    length: int
    states: int
    transitions: int


def attempt(fault: Fault, preset: Preset) -> Exploration | None:
    """Explore a preset for a fault's clause; none where the fault keeps what no form knows of."""
    try:
        with planted([fault]):
            return explore(preset, compare_policy=fault.against_policy, faults=(fault,), clause=fault.clause)
    except (UnsoundMerge, Unrepeatable, Unmergeable):
        return None


def attempts(fault: Fault, names: Sequence[str]) -> Iterator[tuple[str, Exploration | None]]:
    """Preset after preset that can express the fault, up to the first one that catches it.

    A worker's faults need a worker, and others need none.
    """
    known = presets()
    for name in names:
        if ("worker" in fault.features) != (known[name].level >= 3):
            continue
        found = attempt(fault, known[name])
        yield name, found
        if found is not None and found.case is not None:
            return


def caught(name: str, found: Exploration | None) -> Caught | None:
    """What is recorded of an exploration that caught its fault."""
    if found is None or found.case is None:
        return None
    return Caught(name, len(found.case.operations), sum(found.states), found.transitions)


def catch(fault: Fault, names: Sequence[str]) -> Caught | None:
    """The first preset that catches a fault, if any does."""
    last = [caught(name, found) for name, found in attempts(fault, names)][-1:]
    return last[0] if last else None


def catch_all(
    faults: Sequence[Fault], names: Sequence[str], progress: Callable[[str], None] = lambda text: None
) -> dict[str, Caught | None]:
    """Every fault by its id."""
    found: dict[str, Caught | None] = {}
    for number, fault in enumerate(faults, 1):
        progress(f"fault {number} of {len(faults)}: {fault.id}")
        found[fault.id] = catch(fault, names)
    return found


def recorded() -> dict[str, Caught]:
    """The record that ships, by fault."""
    return msgspec.json.decode(
        resources.files(__package__).joinpath(FILE).read_bytes(), type=dict[str, Caught]
    )


def record(found: Mapping[str, Caught | None], folder: Path) -> None:
    """Write which faults were caught into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = [
        f'"{name}": {msgspec.json.encode(each).decode()}' for name, each in found.items() if each is not None
    ]
    (folder / FILE).write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def again(fault: Fault, kept: Caught) -> str:
    """How a fault that is on record is caught otherwise now, as a sentence, or nothing."""
    now = caught(kept.preset, attempt(fault, presets()[kept.preset]))
    if now is None:
        return f"{fault.id} is not caught in {kept.preset}."
    if now != kept:
        return (
            f"{fault.id} is caught in {kept.preset} after {now.length} operations and "
            f"{now.transitions:,} transitions, where {kept.length} and {kept.transitions:,} are on record."
        )
    return ""


def differences(
    faults: Sequence[Fault], kept: Mapping[str, Caught], progress: Callable[[str], None] = lambda text: None
) -> dict[str, str]:
    """How each fault is caught otherwise than on record, an empty sentence for those that aren't."""
    found: dict[str, str] = {}
    for number, fault in enumerate(faults, 1):
        progress(f"fault {number} of {len(faults)}: {fault.id}")
        known = kept.get(fault.id)
        found[fault.id] = f"No preset is on record for {fault.id}." if known is None else again(fault, known)
    return found
