"""Which configurations are drawn: small pools, and seldom others."""

from msgspec.structs import replace

from kvproof.fuzz.choices import Choices
from kvproof.spec.vocabulary import CacheConfig, Capabilities


def draw_config(c: Choices, capabilities: Capabilities) -> CacheConfig:
    """A small pool: mostly 3 to 12 blocks, so that everything that can collide does."""
    rare = c.aside()
    blocks = c.between(3, 12)
    size = c.pick(capabilities.block_sizes or (1, 2, 2, 3, 4, 4, 4))
    config = CacheConfig(
        blocks=blocks,
        block_size=size,
        prefix_caching=c.chance(90),
        depth=min(c.pick((1, 2, 2, 3)), capabilities.depth),
        max_requests=c.between(2, 5),
        max_len=size * c.between(3, blocks + 2) + c.below(size),
        hash=c.pick(("sha256", "sha256", "blake2b")),
    )
    return _seldom(rare, config, capabilities)


def _seldom(c: Choices, config: CacheConfig, capabilities: Capabilities) -> CacheConfig:
    """At times a configuration that few tests have.

    Without events; of a block or two; of larger blocks; of more blocks and requests. Nothing
    declares the smallest pool of an allocator, so one so small is for those who claim the policy: they
    claim it for every size.
    """
    if c.chance(4) and capabilities.has("events"):
        config = replace(config, events=False)
    if c.chance(3) and capabilities.policy:
        config = replace(config, blocks=c.between(1, 2))
    if c.chance(4) and not capabilities.block_sizes:
        size = c.pick((8, 16))
        config = replace(config, block_size=size, max_len=size * c.between(2, 5) + c.below(size))
    if c.chance(4):
        blocks = c.between(13, 32)
        longest = config.block_size * c.between(3, blocks + 2)
        config = replace(config, blocks=blocks, max_requests=c.between(6, 9), max_len=longest)
    return config
