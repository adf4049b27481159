"""What a target shows: a report needs to know, for it follows the history anew."""

from kvproof.fuzz.targets import make_adapter
from kvproof.spec.vocabulary import Capabilities


def capabilities_of(target: str) -> Capabilities:
    """The capabilities that a target declares."""
    adapter = make_adapter(target)
    try:
        return adapter.capabilities
    finally:
        adapter.close()
