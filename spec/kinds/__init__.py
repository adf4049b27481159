"""Kinds of groups: what a query reads, from which boundaries a life can go on."""

from typing import Protocol

from kvproof.spec.kinds.full import FullAttention
from kvproof.spec.vocabulary import GroupConfig


class Kind(Protocol):
    """What the specification asks of a kind of group (REQ-1.3)."""

    def reads(self, boundary: int) -> tuple[int, int]:
        """The positions `start, stop` below `boundary` that computing from `boundary` on reads."""
        ...

    def boundary_is_possible(self, boundary: int, block_size: int) -> bool:
        """Whether a hit may end here, contents aside."""
        ...


def kind_of(group: GroupConfig) -> Kind:
    """The rules of a group."""
    assert group.kind == "full", f"unknown kind {group.kind}"
    return FullAttention()
