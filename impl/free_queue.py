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
        """Take the block at the head. Raises OutOfBlocks."""
        if self.num_free_blocks == 0:
            raise OutOfBlocks(1, 0)
        head = self.head
        block = head.next_free
        assert block is not self.tail, "the queue holds as many blocks as it counts"
        following = block.next_free
        head.next_free = following
        following.prev_free = head
        block.prev_free = block.next_free = block
        self.num_free_blocks -= 1
        return block

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
                self._undo_removals(blocks, neighbours)
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
        before = last = self.tail.prev_free
        for block in blocks:
            if block.prev_free is not block:
                self._undo_links(before, last)
                raise DoubleFree(block.block_id)
            block.prev_free = last
            last.next_free = block
            last = block
        last.next_free = self.tail
        self.tail.prev_free = last
        self.num_free_blocks += len(blocks)

    def put_back(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Put blocks in, in order: those without a key before the head, the others behind the tail (REQ-4.4).

        The blocks were held, so none is in the queue.
        """
        # The others hang on the tail's far side until the first ones are in place: an empty queue needs
        # no case of its own.
        tail = self.tail
        first, front, back = self.head.next_free, self.head, tail
        for block in blocks:
            assert block.prev_free is block, "a held block is outside the queue"
            if block.block_hash is None:
                block.prev_free = front
                front.next_free = block
                front = block
            else:
                block.prev_free = back
                back.next_free = block
                back = block
        front.next_free = first
        first.prev_free = front
        if back is not tail:
            before, behind = tail.prev_free, tail.next_free
            before.next_free = behind
            behind.prev_free = before
            back.next_free = tail
            tail.prev_free = back
            tail.next_free = tail
        self.num_free_blocks += len(blocks)

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

    def _undo_links(self, before: KVCacheBlock, last: KVCacheBlock) -> None:
        """Take a run out again that got as far as `last` behind the former end of the queue."""
        while last is not before:
            block, last = last, last.prev_free
            block.prev_free = block.next_free = block
        before.next_free = self.tail

    def _undo_removals(self, blocks: Sequence[KVCacheBlock], neighbours: list[KVCacheBlock]) -> None:
        """The last first: each block goes back behind the one it stood behind."""
        for block, before in reversed(list(zip(blocks, neighbours, strict=False))):
            block.prev_free, block.next_free = before, before.next_free
            before.next_free.prev_free = block
            before.next_free = block
