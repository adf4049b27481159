"""The free queue: which blocks may be handed out, and in which order (REQ-4.2)."""

from collections.abc import Iterator, Sequence

from kvproof.impl.block import KVCacheBlock
from kvproof.impl.errors import DoubleFree, InvalidCount, NotFree, OutOfBlocks


class FreeBlockQueue:
    """A doubly linked list through the blocks themselves, between two sentinels.

    Every operation is O(blocks named). One that raises has changed nothing.
    """

    def __init__(self, blocks: Sequence[KVCacheBlock]) -> None:
        self.head = KVCacheBlock(-1)
        self.tail = KVCacheBlock(-1)
        self.head.next_free = self.tail
        self.tail.prev_free = self.head
        self.num_free_blocks = 0
        self.append_n(blocks)

    def popleft(self) -> KVCacheBlock:
        """Take the block at the head."""
        return self.popleft_n(1)[0]

    def popleft_n(self, n: int) -> list[KVCacheBlock]:
        """Take `n` blocks from the head, in order. Raises OutOfBlocks or InvalidCount."""
        if n < 0:
            raise InvalidCount("the number of blocks to take", n, "at least 0")
        if n > self.num_free_blocks:
            raise OutOfBlocks(n, self.num_free_blocks)
        blocks: list[KVCacheBlock] = []
        block = self.head.next_free
        for _ in range(n):
            blocks.append(block)
            following = block.next_free
            block.prev_free = block.next_free = block
            block = following
        assert self.tail not in blocks[-1:], "the queue holds as many blocks as it counts"
        self.head.next_free = block
        block.prev_free = self.head
        self.num_free_blocks -= n
        return blocks

    def remove(self, block: KVCacheBlock) -> None:
        """Take a block from wherever it stands. Raises NotFree."""
        self.remove_n((block,))

    def remove_n(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Take blocks from wherever they stand. Raises NotFree if one isn't in the queue, or named twice."""
        neighbours: list[KVCacheBlock] = []
        for block in blocks:
            before, after = block.prev_free, block.next_free
            if before is block:
                self._put_back(blocks, neighbours)
                raise NotFree(block.block_id)
            neighbours.append(before)
            before.next_free = after
            after.prev_free = before
            block.prev_free = block.next_free = block
        self.num_free_blocks -= len(blocks)
        assert self.num_free_blocks >= 0, "no more blocks leave the queue than it holds"

    def append(self, block: KVCacheBlock) -> None:
        """Put a block at the tail. Raises DoubleFree."""
        self.append_n((block,))

    def append_n(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Put blocks behind the tail, in order. Raises DoubleFree if one is in the queue, or named twice."""
        self._splice(self.tail.prev_free, blocks, self.tail)

    def prepend_n(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Put blocks before the head, in order. Raises DoubleFree if one is in the queue, or named twice."""
        self._splice(self.head, blocks, self.head.next_free)

    def __len__(self) -> int:
        return self.num_free_blocks

    def __iter__(self) -> Iterator[KVCacheBlock]:
        """The blocks from head to tail. The queue must not change meanwhile."""
        block = self.head.next_free
        while block is not self.tail:
            yield block
            block = block.next_free

    def to_list(self) -> list[int]:
        """The block ids from head to tail."""
        return [block.block_id for block in self]

    def _splice(self, before: KVCacheBlock, blocks: Sequence[KVCacheBlock], after: KVCacheBlock) -> None:
        """Link a run in between two neighbours."""
        last = before
        for block in blocks:
            if block.prev_free is not block:
                self._unlink(before, last, after)
                raise DoubleFree(block.block_id)
            block.prev_free = last
            last.next_free = block
            last = block
        last.next_free = after
        after.prev_free = last
        self.num_free_blocks += len(blocks)

    def _unlink(self, before: KVCacheBlock, last: KVCacheBlock, after: KVCacheBlock) -> None:
        """Undo the links of a run that got as far as `last`."""
        while last is not before:
            block, last = last, last.prev_free
            block.prev_free = block.next_free = block
        before.next_free = after

    def _put_back(self, blocks: Sequence[KVCacheBlock], neighbours: list[KVCacheBlock]) -> None:
        """Undo removals, the last first: each block goes back behind the one it stood behind."""
        for block, before in reversed(list(zip(blocks, neighbours, strict=False))):
            block.prev_free, block.next_free = before, before.next_free
            before.next_free.prev_free = block
            before.next_free = block
