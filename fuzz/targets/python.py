"""An adapter class that somebody else wrote: `python:package.module:Class`."""

import importlib

from kvproof.fuzz.adapters.port import Adapter
from kvproof.fuzz.targets import TargetError


def target(rest: str) -> Adapter:
    """An instance of the named class. Raises `TargetError`."""
    module, _, name = rest.partition(":")
    try:
        made = getattr(importlib.import_module(module), name)()
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise TargetError(f"cannot make python:{rest}: {error}.") from None
    if not isinstance(made, Adapter):
        raise TargetError(f"python:{rest} is not a kvproof adapter.")
    return made
