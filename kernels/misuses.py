"""Launches whose kernels are right and whose order or arguments are not: each with and without its mistake.

Every launch runs on the build whose accesses are watched. What it leaves behind is returned, so that a
mistake shows as a finding and, where threads really met, as wrong contents.
"""

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from kvproof.kernels.calls import Kernels
from kvproof.kernels.checked import CheckedLibrary
from kvproof.kernels.library import Launch

Contents = npt.NDArray[Any]

# Enough threads that each has few items: only accesses of different threads can meet.
SPREAD: Final = Launch(grid=8, block=4)
ONE_BLOCK: Final = Launch(grid=8, block=1)


def _ints(*values: int) -> npt.NDArray[np.int64]:
    return np.array(values, np.int64)


def _cache(content: int = 0, tokens: int = 4) -> Contents:
    """Four blocks of one layer."""
    return np.full((1, 4, 2, tokens, 1, 8), content, np.uint64)


def _tokens(content: int, count: int = 4) -> Contents:
    return np.full((count, 1, 2, 1, 8), content, np.uint64)


def duplicate_slot(library: CheckedLibrary, wrong: bool) -> Contents:
    """A launch is given one slot twice, and writes 1 and 2 there."""
    cache, tokens = _cache(), np.concatenate([_tokens(1, 1), _tokens(2, 1)])
    slots = _ints(5, 5) if wrong else _ints(5, 6)
    Kernels(library, SPREAD).reshape_and_cache(tokens, cache, slots, watch=False)
    found: Contents = cache[0, 1, :, 1]
    return found


def copy_chain(library: CheckedLibrary, wrong: bool) -> Contents:
    """Block 2 is copied on in the launch that copies to it, instead of in the next one."""
    cache = _cache()
    cache[:, 1], cache[:, 2] = 1, 2
    kernels = Kernels(library, ONE_BLOCK)
    if wrong:
        kernels.copy_blocks(cache, cache, _ints(1, 2), _ints(2, 3), _ints(4, 4))
    else:
        kernels.copy_blocks(cache, cache, _ints(2), _ints(3), _ints(4))
        kernels.copy_blocks(cache, cache, _ints(1), _ints(2), _ints(4))
    found: Contents = cache[0, 3]
    return found


def unordered_launches(library: CheckedLibrary, wrong: bool) -> Contents:
    """Two streams write 1 and 2 to the same block; the second should wait for the first."""
    cache, kernels = _cache(), Kernels(library, ONE_BLOCK)
    with library.together():
        kernels.reshape_and_cache(_tokens(1), cache, _ints(4, 5, 6, 7), watch=False)
        _to_stream(library, wait=not wrong)
        kernels.reshape_and_cache(_tokens(2), cache, _ints(4, 5, 6, 7), watch=False)
    found: Contents = cache[0, 1]
    return found


def zeroed_while_loaded(library: CheckedLibrary, wrong: bool) -> Contents:
    """A new block is zeroed on one stream, and loaded on another that should wait: what was loaded
    (6 of 8 tokens, all 1) may be erased."""
    cache, host, kernels = _cache(9, tokens=8), _cache(1, tokens=8), Kernels(library, ONE_BLOCK)
    with library.together():
        kernels.zero_blocks(cache, _ints(1))
        _to_stream(library, wait=not wrong)
        kernels.copy_blocks(host, cache, _ints(0), _ints(1), _ints(6))
    found: Contents = cache[0, 1, :, :6]
    return found


def loaded_while_read(library: CheckedLibrary, wrong: bool) -> Contents:
    """A step reads a block of 1 that was freed meanwhile; the load of 2 into it should wait for the step."""
    cache, host, read = _cache(1), _cache(2), _tokens(0)
    kernels = Kernels(library, ONE_BLOCK)
    with library.together():
        kernels.gather_slots(read, cache, _ints(4, 5, 6, 7))
        _to_stream(library, wait=not wrong)
        kernels.copy_blocks(host, cache, _ints(0), _ints(1), _ints(4))
    return read


def _to_stream(library: CheckedLibrary, wait: bool) -> None:
    event = library.record()
    library.on(1)
    if wait:
        library.wait(event)


MISUSES: Final[dict[str, Callable[[CheckedLibrary, bool], Contents]]] = {
    "duplicate-slot": duplicate_slot,
    "copy-chain": copy_chain,
    "unordered-launches": unordered_launches,
    "zeroed-while-loaded": zeroed_while_loaded,
    "loaded-while-read": loaded_while_read,
}
"""By the name of the fault. What each returns is of one content where nothing met, right or wrong."""


def torn(contents: Contents) -> bool:
    """Whether contents come from more than one writer."""
    return len(np.unique(contents)) > 1
