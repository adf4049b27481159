"""Events replay to the hittable keys."""

from kvproof.spec import operations as op
from kvproof.spec.clauses import Evidence, Moment, clause


@clause("KV-P-events", 2)
def replay(moment: Moment) -> Evidence | None:
    """Replaying the events gives exactly the keys that can be hit."""
    told = moment.state.config.events and moment.state.capabilities.has("events")
    if moment.seen is None or moment.seen.free is None or not told:
        return None
    hittable = {(entry.group, entry.key) for entry in moment.seen.index}
    if hittable == moment.keys.announced:
        return None
    for group, key in sorted(hittable ^ moment.keys.announced):
        here = "is hittable" if (group, key) in hittable else "is gone"
        return Evidence(f"an event by which key {key.hex()[:8]} {here}", "the events say otherwise")
    return None


@clause("KV-P-chain", 2)
def chain(moment: Moment) -> Evidence | None:
    """A stored event names the tokens of its keys and the key of the prefix before them as parent."""
    if moment.seen is None or not moment.seen.events:
        return None
    size, claims, keys = moment.state.config.block_size, moment.state.claims, moment.keys
    for event in moment.seen.events:
        if not isinstance(event, op.Stored):
            continue
        if not event.keys:
            return Evidence("at least one key that is stored", "an event without keys")
        if event.block_size != size or len(event.tokens) != size * len(event.keys):
            return Evidence(
                f"{size} tokens for each of {len(event.keys)} keys", f"{len(event.tokens)} tokens"
            )
        claim = keys.claim_of.get((event.group, event.keys[-1]))
        if claim is None:
            continue
        wanted = claims.tokens_back(claim, len(event.tokens))
        if list(event.tokens) != wanted:
            return Evidence(f"tokens {wanted}", f"tokens {list(event.tokens)}")
        before, _, _ = claims.origin(claims.back(claim, len(event.tokens))[0][0])
        parent = keys.key_of.get(before)
        if event.parent != parent:
            return Evidence(f"parent {_short(parent)}", f"parent {_short(event.parent)}")
    return None


def _short(key: bytes | None) -> str:
    return "none" if key is None else key.hex()[:8]
