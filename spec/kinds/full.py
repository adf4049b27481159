"""Full attention: a query at `q` reads `0 … q`."""


class FullAttention:
    """Every earlier position is read, for ever."""

    def reads(self, boundary: int) -> tuple[int, int]:
        """All positions below the boundary."""
        return 0, boundary

    def boundary_is_possible(self, boundary: int, block_size: int) -> bool:
        """Only full blocks are hit (REQ-3.3)."""
        return boundary % block_size == 0
