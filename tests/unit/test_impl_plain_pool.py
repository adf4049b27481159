"""The pool's loops over runs against lists that are changed block by block, legal or not."""

import random
from types import SimpleNamespace
from typing import Any

import pytest

from kvproof.impl.block_pool import BlockPool
from kvproof.impl.errors import CacheError, DoubleFree, InvalidCount, NotFree, NullBlockMisuse, OutOfBlocks
from kvproof.spec.vocabulary import NULL_BLOCK

USABLE = 12
GROUPS = 2
Unit = tuple[int, int]


class PlainPool:
    """What a pool does, as directly as it can be said."""

    def __init__(self) -> None:
        self.holders = dict.fromkeys(range(USABLE + 1), 0)
        self.queue = list(range(1, USABLE + 1))
        self.carried: dict[int, tuple[bytes, Unit]] = {}
        self.found: dict[tuple[int, bytes], list[int]] = {}

    def get(self, n: int) -> list[int]:
        if n < 0:
            raise InvalidCount("n", n, "at least 0")
        if n > len(self.queue):
            raise OutOfBlocks(n, len(self.queue))
        taken = [self.queue.pop(0) for _ in range(n)]
        self.evict(taken)
        self.holders.update(dict.fromkeys(taken, 1))
        return taken

    def touch(self, ids: list[int]) -> None:
        free = [i for i in ids if self.holders[i] == 0]
        if NULL_BLOCK in free:
            raise NullBlockMisuse("held")
        if len(set(free)) < len(free):
            raise NotFree(0)
        for i in free:
            self.queue.remove(i)
        for i in ids:
            self.holders[i] += 1

    def free(self, ids: list[int]) -> None:
        holders = dict(self.holders)
        for i in ids:
            if holders[i] == 0:
                raise NullBlockMisuse("released") if i == NULL_BLOCK else DoubleFree(i)
            holders[i] -= 1
        if len(set(ids)) < len(ids):
            raise DoubleFree(0)
        self.holders = holders
        released = [i for i in ids if holders[i] == 0]
        unkeyed = [i for i in released if i not in self.carried]
        self.queue = unkeyed + self.queue + [i for i in released if i in self.carried]

    def key(self, ids: list[int], keys: list[bytes], unit: Unit) -> None:
        for i, key in zip(ids, keys, strict=True):
            self.carried[i] = key, unit
            self.found.setdefault((unit[0], key), []).append(i)

    def evict(self, ids: list[int]) -> int:
        keyed = [i for i in dict.fromkeys(ids) if i in self.carried]
        for i in keyed:
            key, (group, _) = self.carried.pop(i)
            self.found[group, key].remove(i)
            if not self.found[group, key]:
                del self.found[group, key]
        return len(keyed)

    def state(self) -> Any:
        blocks = [(self.holders[i], *self.carried.get(i, (None, (0, 0)))) for i in self.holders]
        return blocks, self.queue, len(self.queue), self.found


class Pair:
    """The pool and the lists, side by side."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.pool = BlockPool(USABLE, True, GROUPS)
        self.plain = PlainPool()

    def ids(self, *, legal: bool) -> list[int]:
        """Some blocks in any order: distinct ones that are held, or just any."""
        held = [i for i, count in self.plain.holders.items() if count]
        most = self.draw.choice((1, 2, 4, USABLE))
        if legal:
            return self.draw.sample(held, min(most, len(held)))
        return self.draw.choices(range(self.draw.choice((NULL_BLOCK, 1, 1)), USABLE + 1), k=most)

    def step(self) -> type[CacheError] | None:
        """One operation on both: they answer alike and are alike afterwards. The error, if any."""
        before = self.plain.state()
        act = self.draw.choice((self.get, self.get, self.touch, self.free, self.key, self.evict))
        error = act()
        assert self.state() == self.plain.state()
        if error is not None:
            assert self.plain.state() == before
        return error

    def state(self) -> Any:
        blocks = [
            (b.ref_cnt, b.block_hash, (b.group_id, b.num_tokens) if b.block_hash else (0, b.num_tokens))
            for b in self.pool.blocks
        ]
        queue = self.pool.free_queue
        found = {(group, key): ids for key, group, ids in self.pool.index_entries()}
        return blocks, queue.to_list(), queue.num_free_blocks, found

    def get(self) -> type[CacheError] | None:
        n = self.draw.choice((1, 1, 1, 2, 3, -1, USABLE))
        return self.same(lambda: [b.block_id for b in self.pool.get_new_blocks(n)], lambda: self.plain.get(n))

    def touch(self) -> type[CacheError] | None:
        ids = self.ids(legal=self.draw.random() < 0.5)
        return self.same(lambda: self.pool.touch(self.blocks(ids)), lambda: self.plain.touch(ids))

    def free(self) -> type[CacheError] | None:
        ids = self.ids(legal=self.draw.random() < 0.8)
        return self.same(lambda: self.pool.free_blocks(self.blocks(ids)), lambda: self.plain.free(ids))

    def key(self) -> type[CacheError] | None:
        ids = [i for i in self.ids(legal=True) if i not in self.plain.carried]
        keys = [bytes([self.draw.randrange(4)]) for _ in ids]
        group, size = self.draw.randrange(GROUPS), self.draw.choice((4, 8))
        request: Any = SimpleNamespace(block_hashes=keys)
        return self.same(
            lambda: self.pool.cache_full_blocks(request, self.blocks(ids), 0, len(ids), size, group),
            lambda: self.plain.key(ids, keys, (group, size)),
        )

    def evict(self) -> type[CacheError] | None:
        ids = [i for i in self.ids(legal=False) if i != NULL_BLOCK]
        return self.same(lambda: self.pool.evict_blocks(ids), lambda: self.plain.evict(ids))

    def blocks(self, ids: list[int]) -> list[Any]:
        return [self.pool.blocks[i] for i in ids]

    def same(self, act: Any, plainly: Any) -> type[CacheError] | None:
        """What both answer, or the error that both raise."""
        try:
            answer = plainly()
        except CacheError as error:
            with pytest.raises(type(error)):
                act()
            return type(error)
        assert act() == answer
        return None


def test_the_pool_does_what_the_plain_one_does():
    pairs = [Pair(seed) for seed in range(10)]
    errors = {pair.step() for pair in pairs for _ in range(600)}
    assert errors == {None, InvalidCount, OutOfBlocks, DoubleFree, NullBlockMisuse, NotFree}


def test_blocks_one_by_one_are_blocks_at_once():
    one, many = BlockPool(USABLE, True, 1), BlockPool(USABLE, True, 1)
    for pool in (one, many):
        row = pool.get_new_blocks(5)
        pool.cache_full_blocks(
            SimpleNamespace(block_hashes=[bytes([i]) for i in range(4)]),  # type: ignore[arg-type]
            row,
            0,
            4,
            4,
            0,
        )
        pool.free_blocks(row[::-1])
    singly = [block.block_id for _ in range(USABLE) for block in one.get_new_blocks(1)]
    assert singly == [block.block_id for block in many.get_new_blocks(USABLE)]
    assert [repr(block) for block in one.blocks] == [repr(block) for block in many.blocks]
    assert list(one.index_entries()) == list(many.index_entries()) == []
