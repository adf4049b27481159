"""Reset empties the index."""

from kvproof.spec import operations as op
from kvproof.spec.clauses import Evidence, Moment, clause


@clause("KV-P-reset", 2, op.Reset)
def emptied(moment: Moment) -> Evidence | None:
    """A reset that succeeds leaves no key."""
    if isinstance(moment.answer, op.FAILURES) or moment.seen is None or not moment.seen.index:
        return None
    return Evidence("an empty index", f"{len(moment.seen.index)} keys", moment.seen.index[0].blocks[0])
