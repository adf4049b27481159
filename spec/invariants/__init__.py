"""The six invariants, one module each, in the order in which a contradiction is named.

Where several clauses fall at one record the first is the finding: causes before
consequences. A new clause is a function in its invariant's module and a name here.
"""

from typing import Final

from kvproof.spec.clauses import Clause
from kvproof.spec.invariants import commitment as i6
from kvproof.spec.invariants import content as i2
from kvproof.spec.invariants import ownership as i1
from kvproof.spec.invariants import progress as i3
from kvproof.spec.invariants import quiescence as i4
from kvproof.spec.invariants import table_agreement as i5

INVARIANTS: Final[tuple[Clause, ...]] = (
    i3.bound,
    i3.opt_out,
    i3.boundary,
    i3.cover,
    i3.stable,
    i1.null,
    i1.twice,
    i4.handout,
    i4.release,
    i1.exclusive,
    i1.queue,
    i1.refcount,
    i1.lost,
    i1.table,
    i6.draft,
    i6.withdraw,
    i6.hit,
    i4.key,
    i2.standing,
    i2.key,
    i2.boundary,
    i2.hit,
    i2.write,
    i2.read,
    i5.row,
    i5.device,
    i5.stale,
    i5.slot,
    i2.bytes_,
)

TITLES: Final = {
    "I1": "Ownership",
    "I2": "Content",
    "I3": "Progress",
    "I4": "Quiescence",
    "I5": "Table agreement",
    "I6": "Commitment",
    "P": "Property",
}
