"""The canary of the smoke phase: does the harness see a planted fault?"""

from kvproof.fuzz.engines.soak import soak
from kvproof.fuzz.faults import Fault, planted, seeded
from kvproof.fuzz.targets import make_adapter

CANARY = "KV-I2-key"
"""The canary is the first seeded fault whose clause this is."""
CANARY_OPERATIONS = 5_000


def claims_policy() -> bool:
    """Whether the allocator claims the reference policy, so that every answer is compared with it."""
    return make_adapter("reference").capabilities.policy


def canary() -> Fault | None:
    """The fault that the harness must see."""
    return next((fault for fault in seeded() if fault.clause == CANARY), None)


def sees(fault: Fault, seed: int) -> tuple[bool, int]:
    """Whether fuzzing finds a planted fault under its own clause, and after how many operations."""
    with planted([fault]):
        result = soak(
            CANARY_OPERATIONS,
            seed,
            faults=[fault],
            compare_policy=False,
            adapter=lambda: make_adapter("reference"),
        )
    return result.case is not None and result.case.expected.clause == fault.clause, result.operations
