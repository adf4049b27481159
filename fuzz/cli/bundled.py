"""The cases that ship: conformance vectors and minimized failures."""

from collections.abc import Iterator
from importlib import resources
from importlib.resources.abc import Traversable

from kvproof.fuzz.cases import Case, parse
from kvproof.fuzz.cli.errors import HarnessFault

TIMELINE = "timeline"
"""The golden timeline of the requirements, section 9."""


def _files(folder: Traversable, prefix: str) -> Iterator[tuple[str, Traversable]]:
    for entry in sorted(folder.iterdir(), key=lambda each: each.name):
        if entry.is_dir():
            yield from _files(entry, f"{prefix}{entry.name}/")
        elif entry.name.endswith(".json"):
            yield f"{prefix}{entry.name.removesuffix('.json')}", entry


def _load(package: str) -> dict[str, Case]:
    files = _files(resources.files(package), "")
    return {name: parse(file.read_bytes(), f"{package}/{name}.json") for name, file in files}


def timeline() -> Case:
    """The golden timeline."""
    case = _load("kvproof.spec.cases").get(TIMELINE)
    if case is None:
        raise HarnessFault("the golden timeline is missing from kvproof.spec.cases")
    return case


def conformance() -> dict[str, Case]:
    """All other conformance cases and all seeds, by name."""
    cases = {name: case for name, case in _load("kvproof.spec.cases").items() if name != TIMELINE}
    seeds = {f"seeds/{name}": case for name, case in _load("kvproof.fuzz.seeds").items()}
    if not cases and not seeds:
        raise HarnessFault("no case ships with this installation, so nothing would be checked")
    return cases | seeds
