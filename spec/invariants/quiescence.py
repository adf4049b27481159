"""I4 Quiescence: what a step in flight may touch is left alone."""

from kvproof.spec import operations as op
from kvproof.spec.clauses import Evidence, Moment, clause
from kvproof.spec.invariants.content import against_keys


@clause("KV-I4-handout", 1, op.Admit, op.Extend)
def handout(moment: Moment) -> Evidence | None:
    """No block is handed out while a dispatched step may still touch it."""
    if moment.state.capabilities.stream_ordered:
        return None
    for block, _, _ in moment.effects.handed:
        for step in moment.state.touching(block):
            return Evidence("a block that no step in flight touches", f"step {step.number} touches it", block)
    return None


@clause("KV-I4-release", 2)
def release(moment: Moment) -> Evidence | None:
    """No block that a dispatched step may still touch is in the free queue."""
    if moment.seen is None or moment.state.capabilities.stream_ordered or not moment.state.steps:
        return None
    free = moment.seen.free or ()
    for step in moment.state.steps:
        for block in sorted(step.touched.intersection(free)):
            return Evidence(
                f"block {block} outside the queue until step {step.number} retires", "it is free", block
            )
    return None


@clause("KV-I4-key", 2)
def key(moment: Moment) -> Evidence | None:
    """No block is keyed for content that no write of its own life promises, while a step may touch it."""
    return against_keys(moment, ("stale", "lost"), new=True)
