"""How often an exploration came upon each situation."""

from collections import Counter
from typing import Final

from kvproof.spec.clauses import Moment
from kvproof.spec.situations import SITUATIONS, Watch
from kvproof.spec.vocabulary import Capabilities

SENTENCES: Final = {each.name: each.sentence for each in SITUATIONS}
"""Each situation by its name."""


class Tally(Watch):
    """Counts for all copies of a session, one transition at a time.

    A situation that goes back to what an earlier record shared is not seen: where sequences
    are merged there is no one history.
    """

    def __init__(self, capabilities: Capabilities) -> None:
        super().__init__(capabilities)
        self.counts: Counter[str] = Counter()

    def see(self, moment: Moment, record: int) -> None:
        """Count every situation that a record brought."""
        for each in self._open[type(moment.operation)]:
            if each.met(moment, set()):
                self.met.setdefault(each.name, record)
                self.counts[each.name] += 1
