"""The free queue against a plain list."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kvproof.impl.block import KVCacheBlock
from kvproof.impl.errors import CacheError, DoubleFree, InvalidCount, NotFree, OutOfBlocks
from kvproof.impl.free_queue import FreeBlockQueue

SIZE = 7
picks = st.lists(st.integers(0, SIZE - 1), max_size=SIZE)


class QueueMachine(RuleBasedStateMachine):
    """Every operation, legal or not: the queue and a list stay equal, and an error changes neither."""

    def __init__(self):
        super().__init__()
        self.blocks = [KVCacheBlock(i) for i in range(SIZE)]
        self.queue = FreeBlockQueue(self.blocks)
        self.model = list(range(SIZE))

    def picked(self, ids):
        return [self.blocks[i] for i in ids]

    @rule(n=st.integers(-1, SIZE + 1))
    def popleft_n(self, n):
        if 0 <= n <= len(self.model):
            assert [block.block_id for block in self.queue.popleft_n(n)] == self.model[:n]
            self.model = self.model[n:]
        else:
            with pytest.raises((InvalidCount, OutOfBlocks)):
                self.queue.popleft_n(n)

    @rule(ids=picks)
    def remove_n(self, ids):
        if len(set(ids)) == len(ids) and set(ids) <= set(self.model):
            self.queue.remove_n(self.picked(ids))
            self.model = [i for i in self.model if i not in ids]
        else:
            with pytest.raises(NotFree):
                self.queue.remove_n(self.picked(ids))

    @rule()
    def popleft(self):
        if self.model:
            assert self.queue.popleft().block_id == self.model.pop(0)
        else:
            with pytest.raises(OutOfBlocks):
                self.queue.popleft()

    @rule(ids=picks)
    def append_n(self, ids):
        if len(set(ids)) == len(ids) and not set(ids) & set(self.model):
            self.queue.append_n(self.picked(ids))
            self.model += ids
        else:
            with pytest.raises(DoubleFree):
                self.queue.append_n(self.picked(ids))

    @rule(
        ids=st.lists(st.integers(0, SIZE - 1), max_size=SIZE, unique=True),
        keyed=st.sets(st.integers(0, SIZE - 1)),
    )
    def put_back(self, ids, keyed):
        ids = [i for i in ids if i not in self.model]
        for block in self.picked(ids):
            block.block_hash = b"key" if block.block_id in keyed else None
        self.queue.put_back(self.picked(ids))
        unkeyed = [i for i in ids if i not in keyed]
        self.model = unkeyed + self.model + [i for i in ids if i in keyed]

    @invariant()
    def equals_the_list_both_ways(self):
        assert self.queue.to_list() == self.model
        assert len(self.queue) == self.queue.num_free_blocks == len(self.model)
        backwards = []
        block = self.queue.tail.prev_free
        while block is not self.queue.head:
            backwards.append(block.block_id)
            block = block.prev_free
        assert backwards == self.model[::-1]
        assert self.queue.head.prev_free is self.queue.head
        assert self.queue.tail.next_free is self.queue.tail

    @invariant()
    def blocks_outside_link_to_themselves(self):
        for block in self.blocks:
            outside = block.block_id not in self.model
            assert (block.prev_free is block) == (block.next_free is block) == outside


TestQueue = QueueMachine.TestCase


def test_single_operations_are_the_bulk_ones():
    blocks = [KVCacheBlock(i) for i in range(3)]
    queue = FreeBlockQueue(blocks)
    assert queue.popleft() is blocks[0]
    queue.remove(blocks[2])
    queue.append(blocks[0])
    assert queue.to_list() == [1, 0]


def test_what_is_in_the_queue_cannot_be_put_back():
    block = KVCacheBlock(1)
    with pytest.raises(AssertionError, match="outside the queue"):
        FreeBlockQueue([block]).put_back([block])


def test_errors_have_distinct_stable_codes_and_one_sentence():
    def all_of(kind):
        return [kind, *(below for child in kind.__subclasses__() for below in all_of(child))]

    codes = [kind.code for kind in all_of(CacheError)]
    assert len(set(codes)) == len(codes)
    assert all(code.startswith("KV-E-") for code in codes)
    for error in (DoubleFree(3), NotFree(3), OutOfBlocks(3, 2), InvalidCount("a count", -1, "at least 0")):
        assert str(error).count(".") == 1 and str(error).endswith(".")
