"""What configurations are drawn: all sizes, and seldom what few engines have."""

from msgspec.structs import replace

from kvproof.fuzz.adapters.reference import ReferenceAdapter
from kvproof.fuzz.choices import Choices
from kvproof.fuzz.configs import draw_config
from kvproof.spec.vocabulary import CacheConfig, Capabilities

REFERENCE = ReferenceAdapter().capabilities
SEEDS = range(1_000)


def drawn(capabilities: Capabilities) -> list[CacheConfig]:
    return [draw_config(Choices(seed), capabilities).validate() for seed in SEEDS]


def test_one_in_some_dozens_has_no_events_a_block_or_two_large_blocks_or_many() -> None:
    configs = drawn(REFERENCE)
    assert 20 < sum(not config.events for config in configs) < 80
    assert 15 < sum(config.blocks < 3 for config in configs) < 60
    assert 20 < sum(config.block_size > 4 for config in configs) < 80
    assert 20 < sum(config.max_requests > 5 for config in configs) < 80
    assert {config.blocks for config in configs} >= set(range(1, 27))
    assert {config.block_size for config in configs} == {1, 2, 3, 4, 8, 16}


def test_who_has_one_block_size_gets_no_other() -> None:
    assert {config.block_size for config in drawn(replace(REFERENCE, block_sizes=(16,)))} == {16}


def test_who_does_not_claim_the_policy_gets_three_blocks_at_least() -> None:
    assert all(config.blocks >= 3 for config in drawn(replace(REFERENCE, policy=False)))


def test_who_tells_no_events_gets_no_configuration_without_them() -> None:
    features = tuple(name for name in REFERENCE.features if name != "events")
    assert all(config.events for config in drawn(replace(REFERENCE, features=features)))


def test_what_is_seldom_leaves_all_other_draws_as_they_are() -> None:
    for seed in SEEDS:
        with_, without = Choices(seed), Choices(seed)
        seldom = draw_config(with_, REFERENCE)
        plain = draw_config(without, replace(REFERENCE, policy=False, features=()))
        if all(config.block_size <= 4 and config.max_requests <= 5 for config in (seldom, plain)):
            blocks = plain.blocks if seldom.blocks < 3 else seldom.blocks
            assert replace(seldom, events=True, blocks=blocks) == plain
        assert (seldom.depth, seldom.hash) == (plain.depth, plain.hash)
        assert with_.word() == without.word()
