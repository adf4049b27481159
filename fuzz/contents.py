"""The words of device memory beside the claims that demand them.

Few tokens are compared word by word. Of many only the blocks that may have changed are: a block that
was found right for a demand still is while what its words add up to is the same. The sums are read
from the device at every look, so it doesn't matter who changed a word, or whether anybody was told to.
"""

from collections.abc import Iterable
from typing import Final

from kvproof.fuzz.demands import Demand
from kvproof.fuzz.device import Device, Digests, Place
from kvproof.spec import operations as op
from kvproof.spec.content import Claims

FEW: Final = 64
"""So many tokens are compared about as fast as their blocks' sums are asked for and looked up."""


KEPT: Final = 1 << 14
"""So many demands are remembered at most: a long history makes ever new ones."""


class Contents:
    """Compares what one device holds with demands in the claims of one history."""

    def __init__(self, claims: Claims) -> None:
        self._claims = claims
        self._digests = Digests()
        self._known: dict[Demand, list[Place]] = {}
        self._right: dict[int, tuple[Demand, list[int]]] = {}
        """Block → a demand that it meets whenever its words add up to this."""

    def wrong(
        self, device: Device, demands: Iterable[Demand], *, every_word: bool = False
    ) -> tuple[op.Mismatch, ...]:
        """The places that don't hold what is demanded; `every_word` trusts no sum."""
        asked = list(dict.fromkeys(demands))
        if every_word or sum([demand.tokens for demand in asked]) <= FEW:
            return self._compare(device, asked)
        sums = device.fingerprints([each.block for each in asked], [each.tokens for each in asked])
        pairs = zip(asked, sums, strict=True)
        doubted = [found for found in pairs if self._right.get(found[0].block) != found]
        wrong = self._compare(device, [demand for demand, _ in doubted])
        if not wrong:
            self._right.update((found[0].block, found) for found in doubted)
        return wrong

    def _compare(self, device: Device, asked: Iterable[Demand]) -> tuple[op.Mismatch, ...]:
        places: list[Place] = []
        for demand in asked:
            places += self._known.get(demand) or self._places(demand)
        # Two demands of a block share places; to tell them apart costs more than to compare both.
        return device.verify(list(dict.fromkeys(places))) if device.verify(places) else ()

    def _places(self, demand: Demand) -> list[Place]:
        runs = self._claims.back(demand.claim, demand.tokens)
        claims = [claim + i for claim, count in runs for i in range(count)]
        digests = [self._digests.of(claim, self._claims) for claim in claims]
        if len(self._known) >= KEPT:
            self._known.clear()
        found = self._known[demand] = [(demand.block, i, digest) for i, digest in enumerate(digests)]
        return found
