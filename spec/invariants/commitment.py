"""I6 Commitment: only what is committed, or will be before anybody reads it, can be hit."""

from kvproof.spec import operations as op
from kvproof.spec.clauses import UNCOMMITTED, Evidence, Moment, clause
from kvproof.spec.invariants.content import against_hits, against_keys


@clause("KV-I6-draft", 2)
def draft(moment: Moment) -> Evidence | None:
    """A key covers scheduled tokens that are known, never lookahead, drafts or tokens not sampled yet."""
    size = moment.state.config.block_size
    for _, block in moment.new_keys:
        place = moment.state.places.get(block)
        if place is None:
            return Evidence("a key of a block that was handed out", f"block {block} never was", block)
        life, _, index = place
        progress = life.processed if moment.state.capabilities.publish == "retire" else life.scheduled
        most = min(progress, life.known)
        if (index + 1) * size > most:
            return Evidence(
                f"keys up to {most} tokens of {life.request}",
                f"a key of the {(index + 1) * size} tokens up to the end of block {block}",
                block,
                life.request,
            )
    return None


@clause("KV-I6-withdraw", 2)
def withdraw(moment: Moment) -> Evidence | None:
    """A promise that will not be dispatched is withdrawn: no key stays on content never committed."""
    return against_keys(moment, UNCOMMITTED)


@clause("KV-I6-hit", 1, op.Admit)
def hit(moment: Moment) -> Evidence | None:
    """No hit rests on content that was never committed."""
    return against_hits(moment, UNCOMMITTED)
