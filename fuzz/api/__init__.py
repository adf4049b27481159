"""kvproof: an executable specification of a paged KV-cache manager, and the harness that checks.

The public names, each loaded when it is first used, so that `import kvproof` costs nothing.
"""

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from kvproof.fuzz.adapters.port import Adapter
    from kvproof.fuzz.cases import Case, CaseError, load, replay, save
    from kvproof.fuzz.engines.soak import soak
    from kvproof.fuzz.faults import Fault, planted
    from kvproof.fuzz.session import IllegalOperation, Session
    from kvproof.fuzz.shrink import shrink
    from kvproof.fuzz.targets import make_adapter
    from kvproof.spec import operations
    from kvproof.spec.oracle import Oracle, Verdict, Violation
    from kvproof.spec.vocabulary import CacheConfig, Capabilities, ConfigError, GroupConfig

    __version__: str

_HOMES: Final = {
    "kvproof.fuzz.targets": ("make_adapter",),
    "kvproof.fuzz.adapters.port": ("Adapter",),
    "kvproof.fuzz.cases": ("Case", "CaseError", "load", "replay", "save"),
    "kvproof.fuzz.engines.soak": ("soak",),
    "kvproof.fuzz.faults": ("Fault", "planted"),
    "kvproof.fuzz.session": ("IllegalOperation", "Session"),
    "kvproof.fuzz.shrink": ("shrink",),
    "kvproof.spec.operations": ("operations",),
    "kvproof.spec.oracle": ("Oracle", "Verdict", "Violation"),
    "kvproof.spec.vocabulary": ("CacheConfig", "Capabilities", "ConfigError", "GroupConfig"),
}
_HOME_OF: Final = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "Adapter",
    "CacheConfig",
    "Capabilities",
    "Case",
    "CaseError",
    "ConfigError",
    "Fault",
    "GroupConfig",
    "IllegalOperation",
    "Oracle",
    "Session",
    "Verdict",
    "Violation",
    "__version__",
    "load",
    "make_adapter",
    "operations",
    "planted",
    "replay",
    "save",
    "shrink",
    "soak",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib import metadata

        return metadata.version("kvproof")
    if name not in _HOME_OF:
        raise AttributeError(f"module 'kvproof' has no attribute {name!r}")
    if name == "operations":
        return importlib.import_module("kvproof.spec.operations")
    return getattr(importlib.import_module(_HOME_OF[name]), name)


def __dir__() -> list[str]:
    return __all__
