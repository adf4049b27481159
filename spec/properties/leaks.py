"""No leak at quiescence."""

from kvproof.spec.clauses import Evidence, Moment, clause


@clause("KV-P-leak", 2)
def drained(moment: Moment) -> Evidence | None:
    """When nothing is held and no step is in flight, every usable block is free."""
    if moment.seen is None or not moment.state.idle():
        return None
    blocks = moment.state.config.blocks
    if moment.seen.free_count == blocks:
        return None
    return Evidence(f"{blocks} free blocks", f"{moment.seen.free_count}")
