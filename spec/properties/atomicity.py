"""A failed call changes nothing, and neither does a question."""

from kvproof.spec import operations as op
from kvproof.spec.clauses import Evidence, Moment, clause

_QUESTIONS = (*op.QUESTIONS, op.Dispatch)
# What metrics must say is KV-P-accounting.
_FIELDS = ("blocks", "index", "free", "rows", "free_count", "usage")


@clause("KV-P-atomic", 2)
def unchanged(moment: Moment) -> Evidence | None:
    """A refused or failed call, a question and a dispatch leave every structure as it was."""
    seen, previous = moment.seen, moment.previous
    quiet = isinstance(moment.answer, op.FAILURES) or isinstance(moment.operation, _QUESTIONS)
    if not quiet or seen is None or previous is None or seen.free is None or previous.free is None:
        return None
    for name in _FIELDS:
        before, after = getattr(previous, name), getattr(seen, name)
        if before != after:
            return Evidence(f"{name} as before: {_short(before)}", _short(after))
    return Evidence("no event", _short(seen.events)) if seen.events else None


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 200 else text[:200] + "…"
