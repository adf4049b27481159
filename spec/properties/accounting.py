"""Counters equal the structures."""

from kvproof.spec import operations as op
from kvproof.spec.clauses import Evidence, Moment, clause


@clause("KV-P-accounting", 2)
def counters(moment: Moment) -> Evidence | None:
    """Queries and hits count once per life, when it begins; preemptions when it is preempted."""
    if moment.seen is None:
        return None
    counted, shown = moment.state.counters, moment.seen.metrics
    if (
        shown.requests == counted.requests
        and shown.queries == counted.queries
        and shown.hits == counted.hits
        and shown.preemptions == counted.preemptions
    ):
        return None
    expected = op.Metrics(counted.requests, counted.queries, counted.hits, counted.preemptions)
    return Evidence(str(expected), str(shown))


@clause("KV-P-usage", 2)
def usage(moment: Moment) -> Evidence | None:
    """The free count is the length of the free queue, and by policy usage the share of blocks outside it."""
    seen, blocks = moment.seen, moment.state.config.blocks
    if seen is None:
        return None
    if seen.free is not None and seen.free_count != len(seen.free):
        return Evidence(f"{len(seen.free)} free, the queue's length", f"a count of {seen.free_count}")
    if not moment.state.capabilities.policy:
        return None
    share = (blocks - seen.free_count) / blocks
    return (
        None if abs(seen.usage - share) < 1e-9 else Evidence(f"usage {share:.4f}", f"usage {seen.usage:.4f}")
    )
