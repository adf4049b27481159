"""The claimed policy, to the letter: the reference's, with the choices that are declared."""

from typing import Final

from kvproof.spec import operations as op
from kvproof.spec.clauses import Clause, Evidence
from kvproof.spec.policy import Policy


def _never(moment: object) -> None:
    """Refinement is compared by `against_policy`, which also needs the policy."""


_SENTENCES: Final = {
    "KV-P-answer": "The answer is the claimed policy's: its hit, its blocks, its refusal.",
    "KV-P-refs": "The ref counts are the claimed policy's.",
    "KV-P-order": "The free queue has the claimed policy's order.",
    "KV-P-index": "The index holds the claimed policy's blocks under each key, the oldest first.",
}
CLAUSES: Final = {
    code: Clause(code, 1 if code == "KV-P-answer" else 2, sentence, _never, ())
    for code, sentence in _SENTENCES.items()
}


def against_policy(
    policy: Policy,
    expected: op.Answer | None,
    answer: op.Answer,
    seen: op.Observation | None,
    claim_of: dict[tuple[int, bytes], int],
) -> tuple[Clause, Evidence] | None:
    """The first way in which an answer or observation differs from the policy, or none."""
    if expected is not None and answer != expected:
        return CLAUSES["KV-P-answer"], Evidence(str(expected), str(answer))
    if seen is None:
        return None
    for block, view in seen.blocks.items():
        if block and view.ref_cnt != policy.refs.get(block, 0):
            wanted = policy.refs.get(block, 0)
            return CLAUSES["KV-P-refs"], Evidence(f"ref_cnt {wanted}", f"ref_cnt {view.ref_cnt}", block)
    if seen.free is not None and seen.free != tuple(policy.free):
        return CLAUSES["KV-P-order"], Evidence(f"free {tuple(policy.free)}", f"free {seen.free}")
    return _against_index(policy, seen, claim_of)


def _against_index(
    policy: Policy, seen: op.Observation, claim_of: dict[tuple[int, bytes], int]
) -> tuple[Clause, Evidence] | None:
    for entry in seen.index:
        claim = claim_of.get((entry.group, entry.key))
        wanted = tuple(policy.index.get((entry.group, claim), ())) if claim is not None else ()
        if wanted != entry.blocks:
            return CLAUSES["KV-P-index"], Evidence(
                f"blocks {wanted}", f"blocks {entry.blocks}", entry.blocks[0]
            )
    if seen.free is not None and len(seen.index) != len(policy.index):
        return CLAUSES["KV-P-index"], Evidence(f"{len(policy.index)} keys", f"{len(seen.index)} keys")
    for block, view in seen.blocks.items():
        if (view.key is not None) != (block in policy.keyed):
            wanted_key = "a key" if block in policy.keyed else "no key"
            return CLAUSES["KV-P-index"], Evidence(wanted_key, "the opposite", block)
    return None
