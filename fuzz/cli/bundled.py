"""The cases that ship: conformance vectors and minimized failures."""

from importlib import resources

from kvproof.fuzz.cases import Case, parse
from kvproof.fuzz.cli.errors import HarnessFault

TIMELINE = "timeline"
"""The golden timeline of the requirements, section 9."""


def _load(package: str) -> dict[str, Case]:
    """The cases in a package's folder, but not in the folders below: those are of other kinds or targets."""
    files = sorted(resources.files(package).iterdir(), key=lambda each: each.name)
    cases = [file for file in files if file.name.endswith(".json")]
    return {
        file.name.removesuffix(".json"): parse(file.read_bytes(), f"{package}/{file.name}") for file in cases
    }


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
