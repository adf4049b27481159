"""Short histories of an engine, each with what some clause needs to have anything to say."""

from kvproof.spec import operations as op
from kvproof.spec.vocabulary import CacheConfig

History = tuple[op.AnyOperation, ...]

CONFIG = CacheConfig(blocks=6, block_size=2, depth=2, max_requests=4, max_len=12)


def dispatch(step: int, name: str, n: int, padding: int = 0) -> op.Dispatch:
    """A step of one request."""
    return op.Dispatch(step, (op.Entry(name, n),), padding)


def retire(step: int, name: str, *sampled: int) -> op.Retire:
    """Its end."""
    return op.Retire(step, (op.Output(name, sampled),))


HISTORY: History = (
    op.Submit("a", (1, 2, 3, 4, 5)),
    op.Admit("a", 5),
    dispatch(1, "a", 5, padding=1),
    op.Submit("b", (1, 2, 3, 4, 9)),
    op.Lookup("b"),
    op.Admit("b", 5),
    dispatch(2, "b", 1),
    retire(1, "a", 6),
    retire(2, "b", 7),
    op.Extend("a", 1),
    op.Row("a"),
    dispatch(3, "a", 1),
    op.Finish("a"),
    op.Retire(3),
    op.Finish("b"),
    op.Submit("c", (8, 8, 8), options=op.Options(read_cache=False)),
    op.Admit("c", 3),
    dispatch(4, "c", 3),
    retire(4, "c", 1),
    op.Finish("c"),
    op.Reset(),
    op.Observe(),
)
UNREAD = tuple(operation for operation in HISTORY if not isinstance(operation, op.Row))
WITHDRAWN: History = (
    op.Submit("a", (1, 2, 3, 4, 5)),
    op.Admit("a", 5),
    op.Preempt("a"),
    op.Submit("b", (1, 2, 3, 4, 9)),
    op.Admit("b", 5),
)
TWINS: History = (
    op.Submit("a", (1, 2, 3)),
    op.Admit("a", 3),
    op.Submit("b", (1, 2, 3), options=op.Options(read_cache=False)),
    op.Admit("b", 3),
)
TRIMMED: History = (
    op.Submit("a", (1, 2)),
    op.Admit("a", 2, 4),
    dispatch(1, "a", 2),
    retire(1, "a", 3),
    op.Extend("a", 1),
)
SHARED: History = (
    op.Submit("a", (1, 2, 3)),
    op.Admit("a", 3),
    dispatch(1, "a", 3),
    retire(1, "a", 4),
    op.Submit("b", (5, 6, 7)),
    op.Admit("b", 3),
    dispatch(2, "b", 3),
    op.Extend("a", 1),
    retire(2, "b", 8),
    dispatch(3, "a", 1),
)
DRAFTING: History = (
    op.Submit("a", (1, 2, 3)),
    op.Admit("a", 3),
    dispatch(1, "a", 3),
    retire(1, "a", 4),
    op.Submit("b", (5, 6, 7)),
    op.Admit("b", 3, 2),
    dispatch(2, "b", 3),
    op.Extend("a", 1, 2),
    retire(2, "b", 8),
    op.Dispatch(3, (op.Entry("a", 1, (7, 7)),)),
)
AHEAD: History = (*DRAFTING[:-1], dispatch(3, "a", 1))
THREE: History = (
    op.Submit("a", (1, 2, 3)),
    op.Admit("a", 3),
    op.Submit("b", (1, 2, 4)),
    op.Admit("b", 3),
    op.Submit("c", (5, 6)),
    op.Admit("c", 2),
)
LOST: History = (
    op.Submit("z", (1, 5, 5)),
    op.Admit("z", 3),
    dispatch(1, "z", 3),
    retire(1, "z", 6),
    op.Submit("a", (1,)),
    op.Admit("a", 1),
    dispatch(2, "a", 1),
    op.Extend("a", 1),
    dispatch(3, "a", 1),
    op.Finish("a"),
    op.Retire(2),
    op.Retire(3),
    op.Submit("b", (1,)),
    op.Admit("b", 1),
    dispatch(4, "b", 1),
)
"""Block 3 keeps a token that nobody learned."""
PENDING: History = (*LOST[:8], op.Submit("b", (1, 5, 7)), op.Admit("b", 3))
SKETCHED: History = (
    *LOST[:4],
    op.Submit("a", (1, 2)),
    op.Admit("a", 2, 2),
    op.Dispatch(2, (op.Entry("a", 2, (7, 7)),)),
    op.Submit("b", (1, 2, 9, 9, 5)),
    op.Admit("b", 5),
)
REJECTED: History = (*SKETCHED[:7], retire(2, "a", 3), *SKETCHED[7:])
SPLIT: History = (
    op.Submit("b", (5, 6, 7)),
    op.Admit("b", 3),
    dispatch(1, "b", 3),
    op.Submit("a", (1, 2, 3)),
    op.Admit("a", 3),
    dispatch(2, "a", 3),
    op.Extend("a", 1),
    retire(1, "b", 8),
    retire(2, "a", 4),
    dispatch(3, "a", 1),
)
"""Of block 4 a step in flight writes the one half, and a grant the other."""
LEANING: History = (
    op.Submit("b", (1, 2, 3)),
    op.Admit("b", 3),
    dispatch(1, "b", 3),
    retire(1, "b", 9),
    op.Submit("a", (1, 2, 3), options=op.Options(read_cache=False)),
    op.Admit("a", 3),
    dispatch(2, "a", 3),
    op.Extend("a", 1),
    dispatch(3, "a", 1),
    op.Extend("a", 1),
    retire(2, "a", 4),
    dispatch(4, "a", 1),
)
"""Block 2 holds what a has in block 4, less by the token that step 3 writes."""
MOVING: History = (
    *LEANING[:8],
    retire(2, "a", 4),
    dispatch(3, "a", 1),
    retire(3, "a", 5),
    op.Extend("a", 1),
    dispatch(4, "a", 1),
)
"""Where the first extension is written shows when it is read."""
MOVING_OFF: History = (
    op.Submit("z", (9, 9, 9, 9, 9, 9)),
    op.Admit("z", 6),
    dispatch(1, "z", 6),
    retire(1, "z", 9),
    op.Finish("z"),
    op.Submit("b", (1, 2, 3)),
    op.Admit("b", 3),
    dispatch(2, "b", 3),
    retire(2, "b", 8),
    op.Submit("a", (1, 2, 3), options=op.Options(read_cache=False)),
    op.Admit("a", 3),
    dispatch(3, "a", 3),
    retire(3, "a", 4),
    op.Extend("b", 1),
    dispatch(4, "b", 1),
    op.Extend("a", 1),
    retire(4, "b", 7),
)
"""In four blocks: a may write behind what z left in block 1, and has not yet."""
SPARE: History = (
    op.Submit("a", (1, 2)),
    op.Admit("a", 2, 4),
    dispatch(1, "a", 2),
    op.Finish("a"),
    op.Submit("b", (5,)),
    op.Admit("b", 1),
)
"""Two of the blocks of a are for drafts that it did not make."""
LOST_HIT: History = (*LOST[:12], op.Submit("b", (1, 5, 7)), op.Admit("b", 3))
RECYCLED: History = (
    op.Submit("z", (9, 9, 9)),
    op.Admit("z", 3),
    dispatch(1, "z", 3),
    retire(1, "z", 9),
    op.Finish("z"),
    op.Submit("a", (1, 2, 3, 4, 5)),
    op.Admit("a", 5),
    op.Preempt("a"),
    op.Submit("b", (1, 2, 3)),
    op.Admit("b", 3),
)
"""In three blocks: a is promised those that z wrote, and never writes them."""
BESIDE: History = (
    op.Submit("z", (7, 7, 7, 7, 7)),
    op.Admit("z", 5),
    dispatch(1, "z", 5),
    retire(1, "z", 7),
    op.Submit("a", (1, 2, 3)),
    op.Admit("a", 3),
    op.Preempt("a"),
)
ASIDE: History = (
    op.Submit("z", (1, 2, 3, 4, 5)),
    op.Admit("z", 5),
    op.Submit("a", (1, 2, 3), options=op.Options(read_cache=False)),
    op.Admit("a", 3),
)
FILLED: History = (
    op.Submit("a", (1, 2, 3, 4, 5)),
    op.Admit("a", 5),
    dispatch(1, "a", 5),
    retire(1, "a", 6),
    op.Extend("a", 1),
    dispatch(2, "a", 1),
    retire(2, "a", 7),
    op.Extend("a", 1),
)
"""In three blocks: the first extension fits, the second does not."""
AWAITED: History = (
    op.Submit("a", (1, 2, 3, 4)),
    op.Admit("a", 4),
    dispatch(1, "a", 4),
    op.Extend("a", 1),
)
CHUNKED: History = (op.Submit("a", tuple(range(12))), op.Admit("a", 2))
EXACT: History = (op.Submit("a", (1, 2, 3, 4)), op.Admit("a", 9))
PAIR: History = (
    op.Submit("a", (1, 2, 3, 4, 5)),
    op.Admit("a", 5),
    op.Submit("b", (1, 2, 3, 4, 9)),
    op.Admit("b", 5),
)
UNREADING: History = (
    op.Submit("a", (1, 2, 3), options=op.Options(read_cache=False)),
    op.Admit("a", 1),
)
REUSED: History = (
    op.Submit("a", (1, 2, 3)),
    op.Admit("a", 3),
    dispatch(1, "a", 3),
    op.Finish("a"),
    op.Submit("a", (1, 2, 3), op.Extras(salt="t")),
    op.Submit("c", (1, 2, 3)),
    op.Admit("c", 3),
)
FOREIGN: History = (
    op.Submit("a", (1, 2, 3)),
    op.Admit("a", 3),
    dispatch(1, "a", 3),
    op.Submit("b", (1, 2, 4)),
    op.Admit("b", 3),
    op.Finish("a"),
    op.Submit("c", (1, 2, 3), op.Extras(salt="t")),
    op.Admit("c", 3),
)
TENANTS: History = (
    op.Submit("a", (1, 2, 3)),
    op.Admit("a", 3),
    op.Submit("b", (1, 2, 3), op.Extras(salt="t")),
    op.Admit("b", 3),
)
TOO_LARGE: History = (op.Submit("a", tuple(range(12))), op.Admit("a", 12))
DRAFTED: History = (
    op.Submit("a", (1, 2)),
    op.Admit("a", 2, 2),
    op.Dispatch(1, (op.Entry("a", 2, (7, 7)),)),
    op.Finish("a"),
    op.Submit("b", (5,)),
    op.Admit("b", 1),
)
