"""The smoke phase: does the adapter show what it declares, and does the harness see a planted fault?"""

from collections.abc import Callable

from kvproof.fuzz.adapters.port import Adapter
from kvproof.fuzz.engines.soak import soak
from kvproof.fuzz.faults import Fault, planted, seeded
from kvproof.fuzz.session import Session
from kvproof.fuzz.targets import make_adapter
from kvproof.spec import operations as op
from kvproof.spec.oracle import Verdict
from kvproof.spec.vocabulary import CacheConfig, Capabilities

CONFIG = CacheConfig(blocks=6, block_size=4, depth=2, max_requests=4, max_len=16)
CANARY = "KV-I2-key"
"""The canary is the first seeded fault whose clause this is."""
CANARY_OPERATIONS = 5_000

LIFE: tuple[op.AnyOperation, ...] = (
    op.Submit("a", ((1, 9),)),
    op.Admit("a", 5),
    op.Row("a"),
    op.Dispatch(1, (op.Entry("a", 5),)),
    op.Retire(1, (op.Output("a"),)),
    op.Extend("a", 4, 1),
    op.Dispatch(2, (op.Entry("a", 4),)),
    op.Retire(2, (op.Output("a", (77,)),)),
    op.Observe(),
    op.Finish("a"),
    op.Observe(),
)
"""One request through a whole life: a prompt in two chunks, a token, the end."""


def claims_policy() -> bool:
    """Whether the allocator claims the reference policy, so that every answer is compared with it."""
    return make_adapter("reference").capabilities.policy


def live_once(make: Callable[[], Adapter]) -> tuple[Verdict, Capabilities, str]:
    """A whole life, its verdict, and what was declared but isn't so, as a sentence or nothing."""
    records: list[op.Record] = []
    session = Session(make(), CONFIG, watch=records.append)
    verdict = session.run(LIFE)
    return verdict, session.capabilities, wrongly_declared(session, records)


def wrongly_declared(session: Session, records: list[op.Record]) -> str:
    """The first way in which the records belie the capabilities, or nothing."""
    declared, level = session.capabilities, session.capabilities.level
    if not 0 <= level <= 3:
        return f"level {level} is declared; levels are 0 to 3"
    if declared.policy and level < 2:
        return f"the reference policy is claimed at level {level}, where it cannot be compared"
    seen = [record.observation for record in records if isinstance(record.operation, op.Observe)]
    if level >= 2 and any(each is None or each.free is None for each in seen):
        return f"level {level} is declared, but the structures are not shown"
    if level >= 2 and any(each and len(each.blocks) != CONFIG.blocks for each in seen):
        return f"level {level} is declared, but not every block is shown"
    rows = [
        getattr(record.answer, "host" if isinstance(record.operation, op.Dispatch) else "device", None)
        for record in records
        if isinstance(record.operation, op.Dispatch | op.Retire) and not isinstance(record.answer, op.Crashed)
    ]
    if level >= 3 and (session.adapter.device is None or any(row is None for row in rows)):
        return "level 3 is declared, but memory or worker rows are not shown"
    return ""


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
