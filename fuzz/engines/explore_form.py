"""The canonical form of a session at the reference manager: equal forms have equal futures.

A form holds everything of the manager, of what the history implies and of the policy that a
later answer, observation or verdict can depend on. Nothing is left out for being out of reach:
content that nobody can hit, keys that have gone, places of free blocks are all in it. What
is left out stands in `LEFT_OUT`, with the reason. Names are relative:

- *Blocks* are numbered in the order in which rows, and then the free queue, name them: an
  allocator tells blocks apart by where they stand.
- *Requests* are numbered in the order in which lives, and then waiting requests, name them: an
  id is a dictionary's key and nothing else.
- *Lives* are numbered in order of admission, *steps* from the oldest in flight on, and a fence
  that has passed is 0: these numbers are only compared.
- *Claims* are as they are: copies of one session share one interner, in which equal prefixes
  are equal numbers. *Keys* are numbered in the order in which the exploration met them.
"""

import marshal
from typing import Any, Final

from kvproof.fuzz.adapters.reference import ReferenceAdapter
from kvproof.fuzz.adapters.reference_worker import ReferenceWorker
from kvproof.fuzz.device import Device
from kvproof.fuzz.engines.explore_names import Names, Numbers
from kvproof.fuzz.engines.explore_raw import raw
from kvproof.fuzz.engines.explore_worker import worker_part
from kvproof.fuzz.session import Session
from kvproof.impl.block import KVCacheBlock
from kvproof.impl.block_pool import BlockPool
from kvproof.impl.events import EventQueue
from kvproof.impl.life import StepsInFlight
from kvproof.impl.manager import KVCacheManager
from kvproof.impl.metrics import PrefixCacheMetrics
from kvproof.impl.request import Request as ManagedRequest
from kvproof.impl.worker.protocol import DiffBuilder
from kvproof.spec.clauses import Keys
from kvproof.spec.policy import Policy, PolicyLife
from kvproof.spec.state import Life, State, Step

Part = list[Any] | tuple[Any, ...]
"""Numbers, and parts of parts."""

LEFT_OUT: Final = {
    "It is the same in all copies: a constant, or the interner, which only ever grows.": (
        "impl.block.KVCacheBlocks.blocks",
        "impl.block_pool.BlockPool.enable_caching",
        "impl.block_pool.BlockPool.num_usable",
        "impl.coordinator.UnitaryKVCacheCoordinator.block_size",
        "impl.coordinator.UnitaryKVCacheCoordinator.no_blocks",
        "impl.hashing.BlockHasher._format",
        "impl.hashing.BlockHasher.block_size",
        "impl.hashing.BlockHasher.stride",
        "impl.managers.full_attention.FullAttentionManager.block_size",
        "impl.managers.full_attention.FullAttentionManager.group_id",
        "spec.content.Claims._backs",
        "spec.content.Claims._ids",
        "spec.content.Claims._nodes",
        "spec.policy.Policy.block_size",
        "spec.policy.Policy.caching",
        "spec.policy.Policy.deferring",
        "spec.policy.Policy.max_len",
    ),
    "It only grows, and only the manager's and the specification's are compared: they are equal.": (
        "impl.metrics.PrefixCacheMetrics._taken",
        "impl.metrics.PrefixCacheMetrics.hits",
        "impl.metrics.PrefixCacheMetrics.preemptions",
        "impl.metrics.PrefixCacheMetrics.queries",
        "impl.metrics.PrefixCacheMetrics.requests",
        "spec.state.Counters.hits",
        "spec.state.Counters.preemptions",
        "spec.state.Counters.queries",
        "spec.state.Counters.requests",
    ),
    "It is a number of which only the order counts, and the form has that.": (
        "spec.state.Life.number",
        "spec.state.State.next_life",
        "spec.state.State.next_step",
    ),
    "It follows from what is in the form: inputs, claims, rows, places.": (
        "impl.request.Request._extras",
        "impl.request.Request._root",
        "impl.request.Request.priority",
        "spec.clauses.Keys.listed",
        "spec.content.Path._known",
        "spec.content.Path._last",
        "spec.policy.PolicyLife.paths",
        "spec.policy.PolicyLife.request",
        "spec.state.Grant.writes",
        "spec.state.State.holders",
        "spec.state.State.settled",
        "spec.state.StepEntry.writes",
        "spec.state.Write.block",
    ),
    "Every observation empties it.": ("impl.events.EventQueue.events", "spec.policy.Policy.changed"),
    "It is for a worker, with which `explore_worker` has it, and there is none.": (
        "spec.state.State.last_batch",
    ),
}
"""Fields on which no form depends, and why nothing that comes later does either."""

FORMAT: Final = 2
"""The marshal format whose bytes depend on values alone, and not on which of them are one object."""


UNREAD: Final = (PrefixCacheMetrics, EventQueue, Device, ReferenceWorker, DiffBuilder)
"""What has a part of the form of its own, or is left out."""


class Forms:
    """Makes the forms of copies of one session, which must not have begun.

    Where a manager keeps something beside what it had at the beginning, as a faulty one may, all of
    it is in the form as it is, under the names as they are, since what it keeps may be parts of the rest:
    that merges less than could be merged. What it leaves behind of ended requests in the dictionaries that
    every manager has, and what its counters decide, is not in the form: there the audit alone sees a
    merge of too much.
    """

    def __init__(self, root: Session) -> None:
        self._numbers = Numbers()
        self._usual = [frozenset(each) for each in _attributes(root)]
        self.unusual = False
        """Whether any manager was met that keeps something beside."""

    def of(self, session: Session) -> bytes:
        """The canonical form of a session."""
        adapter, oracle, state = session.adapter, session.oracle, session.state
        assert isinstance(adapter, ReferenceAdapter), "forms know the reference manager"
        names = Names(state, adapter.manager, self._numbers)
        parts: list[Part] = [
            _lives(names, state),
            _requests(names, state),
            _steps(names, state),
            _blocks(names, state),
            _keys(names, oracle.keys),
            _pool(names, adapter.manager.block_pool),
            _rows(names, adapter.manager),
            _managed(names, adapter.requests),
            _in_flight(names, adapter.manager.steps),
        ]
        if oracle.policy is not None:
            parts.append(_policy(names, oracle.policy))
        if worker := worker_part(names, session):
            parts.append(worker)
        if unusual := self._unusual(session):
            self.unusual = True
            kept = raw((unusual, session.adapter), UNREAD)
            parts.append((kept, tuple(names.requests), tuple(names.usable)))
        return marshal.dumps(parts, FORMAT)

    def _unusual(self, session: Session) -> list[dict[str, Any]]:
        """Attributes of the manager's objects that they did not have at the beginning."""
        found = _attributes(session)
        if list(map(len, found)) == list(map(len, self._usual)):
            return []
        return [
            {name: value for name, value in each.items() if name not in usual}
            for each, usual in zip(found, self._usual, strict=True)
        ]


def _attributes(session: Session) -> list[dict[str, Any]]:
    """The attributes of the objects that could be given more; those of others are fixed."""
    manager: KVCacheManager = session.adapter.manager  # type: ignore[attr-defined]
    coordinator, pool = manager.coordinator, manager.block_pool
    things = (session.adapter, manager, coordinator, pool, pool.free_queue, manager.steps, manager.metrics)
    hasher = () if manager.hasher is None else (manager.hasher,)
    return [vars(each) for each in (*things, *coordinator.managers, *hasher)]


# --- what the history implies -------------------------------------------------------------


def _lives(names: Names, state: State) -> Part:
    number = names.lives
    granted = [number[id(life)] for life in state.grants]
    deferred = [number[id(life)] for life in state.deferred]
    kept = [(names.fence(fence), number[id(life)], names.run([block])) for fence, life, block in state.kept]
    return [granted, deferred, kept, *[_life(names, life) for life in state.lives.values()]]


def _life(names: Names, life: Life) -> Part:
    grant = life.grant
    return (
        names.requests[life.request],
        life.limit,
        life.hit,
        life.scheduled,
        life.processed,
        life.pending,
        names.fence(life.fence),
        life.ended,
        None if grant is None else (grant.start, grant.stop, grant.slots),
        *map(names.run, life.rows),
        *names.paths(life),
    )


def _requests(names: Names, state: State) -> Part:
    """The requests in use: waiting or living."""
    parts: list[Any] = []
    for name, number in names.requests.items():
        request = state.requests[name]
        if not request.gone:
            parts.append((number, request.life is None, *names.request(request)))
    return parts


def _steps(names: Names, state: State) -> Part:
    return [_step(names, step) for step in state.steps]


def _step(names: Names, step: Step) -> Part:
    entries = [
        (names.lives[id(e.life)], e.start, e.stop, e.drafts, e.samples, *map(names.run, e.rows))
        for e in step.entries
    ]
    return names.fence(step.number), step.padding, sorted(names.run(step.touched)), entries


def _blocks(names: Names, state: State) -> Part:
    """Of every block: its content, the writes still to come, and what it was handed out for."""
    parts: list[Any] = []
    for block in names.usable:
        parts.append(state.written.get(block))
        parts.append(block in state.withdrawn)
        for write in state.writes.get(block, ()):
            step = None if write.step is None else names.fence(write.step)
            place = (write.group, write.start, write.stop, write.committed)
            parts.append((names.lives[id(write.life)], step, place))
        if block in state.places:
            life, group, index = state.places[block]
            progress = (life.scheduled, life.processed, *names.paths(life))
            parts.append((names.lives.get(id(life)), group, index, progress))
    return parts


def _keys(names: Names, keys: Keys) -> Part:
    """What every key that was ever seen stands for, and which are announced by events."""
    key = names.key
    return [
        sorted([(group, key(each), claim) for (group, each), claim in keys.claim_of.items()]),
        sorted([(claim, key(each)) for claim, each in keys.key_of.items()]),
        sorted([(group, key(each)) for group, each in keys.announced]),
    ]


# --- the manager --------------------------------------------------------------------------


def _pool(names: Names, pool: BlockPool) -> Part:
    queue = pool.free_queue
    ends = (queue.head.next_free.block_id, queue.tail.prev_free.block_id)
    keyed = [
        (group, names.key(key), *names.run([oldest.block_id, *pool.copies[group].get(key, ())]))
        for group, index in enumerate(pool.index)
        for key, oldest in index.items()
    ]
    blocks = [_block(names, pool.blocks[block]) for block in names.usable]
    return [queue.num_free_blocks, names.run(ends), sorted(keyed), blocks]


def _block(names: Names, block: KVCacheBlock) -> Part:
    key = None if block.block_hash is None else (names.key(block.block_hash), block.group_id)
    links = (block.prev_free.block_id, block.next_free.block_id)
    return block.ref_cnt, key, block.num_tokens, names.run(links)


def _rows(names: Names, manager: KVCacheManager) -> Part:
    """The lives and their rows."""
    parts: list[Any] = []
    for name in sorted(manager.lives, key=names.requests.__getitem__):
        life = manager.lives[name]
        parts.append(names.requests[name])
        parts.append((life.num_undispatched_tokens, names.fence(life.fence), life.ended))
        for each in manager.coordinator.managers:
            row = names.run([block.block_id for block in each.req_to_blocks[name]])
            parts.append((row, each.num_cached_block[name]))
    return parts


def _managed(names: Names, requests: dict[str, ManagedRequest]) -> Part:
    """The requests in use, as the manager has them."""
    return [
        (
            names.requests[name],
            request.num_tokens,
            request.num_computed_tokens,
            request.num_pending_tokens,
            request.max_tokens,
            request.read_cache,
            request.tokens.tobytes(),
            *map(names.key, request.block_hashes),
        )
        for name, request in sorted(requests.items(), key=lambda item: names.requests[item[0]])
    ]


def _in_flight(names: Names, steps: StepsInFlight) -> Part:
    """The steps in flight and the releases that wait for them. In a step an ended life counts for nothing."""
    requests = names.requests
    entries = [
        (names.fence(step), *[None if each.ended else requests[each.request.request_id] for each in lives])
        for step, lives in steps.steps
    ]
    deferred = [
        (names.fence(fence), *[names.run([block.block_id for block in run]) for run in runs])
        for fence, runs in steps.deferred
    ]
    return [names.fence(steps.last_dispatched), entries, deferred]


# --- the policy ---------------------------------------------------------------------------


def _policy(names: Names, policy: Policy) -> Part:
    index = [(*claim, *names.run(blocks)) for claim, blocks in policy.index.items()]
    lives = sorted(policy.lives.items(), key=lambda item: names.requests[item[0]])
    return [
        names.run(policy.free),
        sorted(index),
        [(policy.keyed.get(block), policy.refs.get(block, 0)) for block in names.usable],
        [(names.requests[name], *_policy_life(names, life)) for name, life in lives],
        [_policy_life(names, life) for life in policy.deferred],
    ]


def _policy_life(names: Names, life: PolicyLife) -> Part:
    progress = (life.scheduled, life.dispatched, names.fence(life.fence), *life.published)
    return (progress, *map(names.run, life.rows))
