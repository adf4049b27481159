"""Exit codes, and which exceptions are whose fault."""

import os
import tempfile
import traceback
from typing import Final

import click

HOLDS: Final = 0
VIOLATED: Final = 1
UNDECIDED: Final = 2
USAGE: Final = 3
HARNESS_FAULT: Final = 4
INTERRUPTED: Final = 130

CODES: Final = {
    "holds": HOLDS,
    "violated": VIOLATED,
    "undecided": UNDECIDED,
    "errored": HARNESS_FAULT,
    "blind": HARNESS_FAULT,
}
"""The exit code of a verdict. `errored`: the allocator went away, or the device's kernels can't be had;
`blind`: the harness misses a fault."""


class BadInput(ValueError):
    """Something that the user gave cannot be used. The message is one sentence."""


class HarnessFault(RuntimeError):
    """The harness itself is broken: what ships with it is missing, or it no longer finds what it must."""


def is_usage(error: Exception) -> bool:
    """Whether an exception says that the input is wrong."""
    if isinstance(error, click.ClickException | BadInput):
        return True
    from kvproof.fuzz.cases import CaseError
    from kvproof.fuzz.devices import DeviceError
    from kvproof.fuzz.engines.traces import TraceError
    from kvproof.fuzz.faults import FaultError
    from kvproof.fuzz.observer import LogError
    from kvproof.fuzz.targets import TargetError
    from kvproof.spec.vocabulary import ConfigError

    kinds = CaseError | ConfigError | DeviceError | FaultError | LogError | TargetError | TraceError
    return isinstance(error, kinds)


def sentence(error: Exception) -> str:
    """An error as one sentence on one line."""
    text = error.format_message() if isinstance(error, click.ClickException) else str(error)
    text = " ".join(text.split()) or type(error).__name__
    if isinstance(error, click.ClickException) and text[1:2].islower():
        text = text[0].lower() + text[1:]
    return text if text.endswith((".", "?", "!")) else text + "."


def explain_fault(error: Exception, debug: bool) -> str:
    """A fault of the harness as one sentence, with the place of its traceback."""
    what = " ".join(str(error).split()).rstrip(".")
    if isinstance(error, HarnessFault):
        return f"fault of the harness: {what}."
    what = f"fault of the harness: {type(error).__name__}{': ' + what if what else ''}"
    text = "".join(traceback.format_exception(error))
    if debug:
        return f"{what}.\n{text}"
    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix="kvproof-traceback-", suffix=".txt", delete=False, encoding="utf-8", errors="replace"
        ) as file:
            file.write(text)
    except OSError:
        return f"{what}; run 'kvproof --debug …' for the traceback."
    return f"{what}; the traceback is in {os.path.abspath(file.name)}."
