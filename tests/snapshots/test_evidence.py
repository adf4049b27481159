"""What the oracle says of each lie, to the letter: the clause, what falls with it, and the evidence.

`KVPROOF_UPDATE=1 .venv/bin/pytest tests/snapshots` writes the expected text anew.
"""

import os
from pathlib import Path

from kvproof.fuzz.lies import LIES, Lie

SNAPSHOT = Path(__file__).parent / "evidence.txt"


def told(number: int, lie: Lie) -> str:
    violation = lie.judge(lie.forged())
    if violation is None:
        return f"{number} holds\n"
    evidence = violation.evidence
    return (
        f"{number} {violation.code} at {violation.record}, with {', '.join(violation.also) or 'no other'}\n"
        f"  expected {evidence.expected}\n"
        f"  observed {evidence.observed}\n"
        f"  block {evidence.block}, request {evidence.request}\n"
    )


def test_evidence_of_every_lie() -> None:
    found = "".join(told(number, lie) for number, lie in enumerate(LIES))
    if os.environ.get("KVPROOF_UPDATE"):
        SNAPSHOT.write_text(found, encoding="utf-8")
    assert found == SNAPSHOT.read_text(encoding="utf-8")
