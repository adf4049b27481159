"""Isolation of tenants."""

from kvproof.spec import operations as op
from kvproof.spec.clauses import Evidence, Moment, clause


@clause("KV-P-isolation", 1, op.Admit)
def tenants(moment: Moment) -> Evidence | None:
    """Lives with different cache salts never share a block."""
    life, state = moment.effects.life, moment.state
    if life is None:
        return None
    own = state.requests[life.request].inputs.extras.salt
    for block, _, _ in moment.effects.hits:
        for number in sorted(state.holders[block] - {life.number}):
            other = state.lives[number]
            request = state.requests.get(other.request)
            if request is None or request.life is not other:
                continue
            if request.inputs.extras.salt != own:
                return Evidence(
                    f"blocks of salt {own!r} only",
                    f"block {block} is held by {other.request}, salt {request.inputs.extras.salt!r}",
                    block,
                    life.request,
                )
    return None
