"""The reference manager behind the protocol: every operation, level 2, one observation in each batch."""

import sys
from typing import Any

import msgspec

from kvproof.fuzz.adapters.reference import ReferenceAdapter
from kvproof.fuzz.session import ask
from kvproof.fuzz.targets import wire
from kvproof.spec import operations as op
from kvproof.spec.vocabulary import CacheConfig, Capabilities

OPERATIONS = [name for name in wire.ABILITIES if name != "batch" or "batch" in sys.argv]
adapter = ReferenceAdapter(level=2)
adapter.observes = None  # type: ignore[attr-defined]
