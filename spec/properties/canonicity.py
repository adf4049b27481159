"""Keys depend on content only."""

from kvproof.spec.clauses import Evidence, Moment, clause


@clause("KV-P-canonical", 2)
def one_key(moment: Moment) -> Evidence | None:
    """Equal prefixes have equal keys, however their tokens arrived."""
    size = moment.state.config.block_size
    for entry, block in moment.new_keys:
        place = moment.state.places.get(block)
        if place is None or (place[2] + 1) * size > place[0].known:
            continue
        claim = place[0].paths[place[1]].at((place[2] + 1) * size - 1)
        key = moment.keys.key_of.get(claim, entry.key)
        if key != entry.key:
            return Evidence(
                f"key {key.hex()[:8]} for the {(place[2] + 1) * size} tokens of {place[0].request}",
                f"key {entry.key.hex()[:8]}",
                block,
                place[0].request,
            )
    return None
