"""Adapters: each drives one allocator under test."""

from kvproof.fuzz.adapters.port import Adapter
from kvproof.fuzz.adapters.reference import ReferenceAdapter


class TargetError(ValueError):
    """A target that cannot be had. The message is one sentence."""


def make_adapter(target: str) -> Adapter:
    """A fresh adapter for a target by name. Raises `TargetError`."""
    if target == "reference":
        return ReferenceAdapter()
    raise TargetError(f"there is no target {target!r}; this version knows 'reference'.")
