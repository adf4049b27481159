"""What became of the mutants, as JSON, as a record and for a terminal."""

import hashlib
import inspect
import platform
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
from rich.table import Table

from kvproof.fuzz.engines.judges import OPERATIONS
from kvproof.fuzz.engines.mutate import GROUPS, Row
from kvproof.fuzz.faults.mutants import functions
from kvproof.fuzz.faults.survivors import Survivor, explanation
from kvproof.fuzz.reports.power import encoded

NAME: Final = "mutants.json"


class RecordError(ValueError):
    """A record that cannot be read. The message is one sentence."""


class Left(msgspec.Struct, frozen=True):
    """A survivor, with what kind it is and why; empty as long as nobody said."""

    group: str
    target: str
    line: int
    before: str
    after: str
    kind: str = ""
    reason: str = ""

    def explained(self, known: Sequence[Survivor]) -> "Left":
        """The same with what is known of it."""
        why = explanation(known, self.target, self.before, self.after)
        kind, reason = (why.kind, why.reason) if why else ("", "")
        return msgspec.structs.replace(self, kind=kind, reason=reason)


class Function(msgspec.Struct, frozen=True):
    """A function's mutants, and by what so many of them were killed. `text` is a digest of its source."""

    module: str
    target: str
    text: str
    mutants: int
    killers: dict[str, int]

    @property
    def killed(self) -> int:
        """How many of them."""
        return sum(self.killers.values())


class Judged(msgspec.Struct, frozen=True):
    """Functions in order, and the survivors among their mutants."""

    functions: tuple[Function, ...]
    rows: tuple[Left, ...]


def texts(groups: Sequence[str] = tuple(GROUPS)) -> dict[str, str]:
    """A digest of each function's source, by dotted name, in order."""
    return {
        target: hashlib.sha256(inspect.getsource(function).encode()).hexdigest()[:12]
        for group in groups
        for module in GROUPS[group]
        for target, function in functions(module).items()
    }


def judged(rows: Sequence[Row]) -> Judged:
    """What was found, by function."""
    current, counts = texts(), dict[str, int]()
    killers, modules = dict[str, Counter[str]](), dict[str, str]()
    for row in rows:
        modules[row.target] = row.module
        counts[row.target] = counts.get(row.target, 0) + 1
        killers.setdefault(row.target, Counter()).update([row.by] if row.killed else [])
    found = (
        Function(module, target, current.get(target, ""), counts[target], dict(killers[target]))
        for target, module in modules.items()
    )
    survivors = (
        Left(row.group, row.target, row.line, row.before, row.after) for row in rows if not row.killed
    )
    return Judged(tuple(found), tuple(survivors))


def left(found: Judged, known: Sequence[Survivor]) -> list[Left]:
    """The mutants that survived, with what is known of them."""
    return [each.explained(known) for each in found.rows]


# --- what is on record ------------------------------------------------------------------


def recorded(folder: Path) -> Judged:
    """What a record says. Raises `RecordError`."""
    try:
        return msgspec.json.decode((folder / NAME).read_bytes(), type=Judged)
    except OSError as error:
        raise RecordError(f"cannot read {folder / NAME}: {error.strerror}.") from None
    except msgspec.MsgspecError as error:
        raise RecordError(f"{folder / NAME} is no record of mutants: {error}.") from None


def unchanged(record: Judged) -> frozenset[str]:
    """The functions whose source is that of the record."""
    current = texts()
    return frozenset(each.target for each in record.functions if current.get(each.target) == each.text)


def joined(record: Judged, kept: frozenset[str], new: Judged) -> Judged:
    """What is new, and of the record what is kept, in the order of the functions."""
    by_target = {each.target: each for each in record.functions if each.target in kept}
    by_target |= {each.target: each for each in new.functions}
    order = {target: place for place, target in enumerate(texts())}
    rows = (*(row for row in record.rows if row.target in kept), *new.rows)
    return Judged(
        tuple(sorted(by_target.values(), key=lambda each: order[each.target])),
        tuple(sorted(rows, key=lambda row: order[row.target])),
    )


# --- forms ------------------------------------------------------------------------------


def document(
    found: Judged, known: Sequence[Survivor], operations: Mapping[str, int] = OPERATIONS
) -> dict[str, Any]:
    """The counts of each module, what killed how many, and every survivor of soaks of `operations`."""
    groups = [group for group in GROUPS if any(each.module in GROUPS[group] for each in found.functions)]
    killers = Counter[str]()
    for each in found.functions:
        killers.update(each.killers)
    return {
        "python": platform.python_version(),
        "operations": {group: operations[group] for group in groups},
        "modules": [
            {"module": module, "mutants": count, "killed": killed}
            for module, (count, killed) in _modules(found).items()
        ],
        "killers": dict(killers),
        "functions": found.functions,
        "rows": left(found, known),
    }


def _modules(found: Judged) -> dict[str, tuple[int, int]]:
    sums: dict[str, tuple[int, int]] = {}
    for each in found.functions:
        count, killed = sums.get(each.module, (0, 0))
        sums[each.module] = count + each.mutants, killed + each.killed
    return sums


def table(found: Judged, known: Sequence[Survivor]) -> Table:
    """Modules with their mutants, for a terminal."""
    modules = {each.target: each.module for each in found.functions}
    kinds = {module: Counter[str]() for module in _modules(found)}
    for row in left(found, known):
        kinds[modules[row.target]][row.kind or "unexplained"] += 1
    made = Table(box=None, pad_edge=False, header_style="dim")
    made.add_column("module", overflow="fold")
    for head in ("mutants", "killed"):
        made.add_column(head, justify="right", no_wrap=True)
    made.add_column("survivors")
    for module, (count, killed) in _modules(found).items():
        words = ", ".join(f"{number} {kind}" for kind, number in sorted(kinds[module].items()))
        made.add_row(module.removeprefix("kvproof."), f"{count:,}", f"{killed:,}", words or "–")
    return made


def keep(
    found: Judged,
    known: Sequence[Survivor],
    folder: Path,
    operations: Mapping[str, int] = OPERATIONS,
) -> None:
    """Write the record."""
    from kvproof.fuzz.cli.files import write_whole

    write_whole(folder / NAME, _in_lines(document(found, known, operations)))


def _in_lines(made: dict[str, Any]) -> bytes:
    """JSON with a line for each survivor and for each function."""
    encode = msgspec.json.Encoder(order="deterministic").encode
    each = b",\n".join(b"    " + encode(function) for function in made.pop("functions"))
    return b'{\n  "functions": [\n' + each + b"\n  ],\n" + encoded(made).removeprefix(b"{\n")
