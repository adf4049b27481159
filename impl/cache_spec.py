"""Which manager serves which kind of group."""

from kvproof.impl.block_pool import BlockPool
from kvproof.impl.managers.base import SingleTypeKVCacheManager
from kvproof.impl.managers.full_attention import FullAttentionManager
from kvproof.spec.vocabulary import CacheConfig

MANAGERS: dict[str, type[SingleTypeKVCacheManager]] = {"full": FullAttentionManager}
"""Manager class by `GroupConfig.kind`."""


def managers_of(config: CacheConfig, block_pool: BlockPool) -> tuple[SingleTypeKVCacheManager, ...]:
    """A manager per group, in the order of the configuration."""
    return tuple(
        MANAGERS[group.kind](group_id, config.block_size, block_pool)
        for group_id, group in enumerate(config.groups)
    )
