"""The always-on properties beside the six invariants, one module each."""

from typing import Final

from kvproof.spec.clauses import Clause
from kvproof.spec.properties import (
    accounting,
    atomicity,
    canonicity,
    capacity,
    events,
    isolation,
    leaks,
    refinement,
    reset,
)

PROPERTIES: Final[tuple[Clause, ...]] = (
    capacity.covered,
    capacity.crash,
    capacity.refusal,
    accounting.counters,
    accounting.usage,
    atomicity.unchanged,
    reset.emptied,
    isolation.tenants,
    canonicity.one_key,
    leaks.drained,
    events.replay,
    events.chain,
)

REFINEMENT: Final = refinement.CLAUSES
"""Compared only with an adapter that claims the policy, and only when that is switched on."""
