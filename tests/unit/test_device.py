"""The harness's device finds every wrong word and names who wrote it; both sides' digests agree."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvproof.fuzz.device import Device, Digests, Extra, Geometry, extra_bytes, extras_of, root_bytes
from kvproof.kernels.backends.base import Report, SlotError
from kvproof.spec import operations as op
from kvproof.spec.content import PENDING, POISON, Claims, Path, Root, root_of
from kvproof.spec.vocabulary import CacheConfig

CONFIG = CacheConfig(blocks=4, block_size=4)
TOKEN_WORDS = 2 * 2 * 2
"""Words of a token in one layer."""


@pytest.fixture
def device():
    """Block 1 holds digests 100…103, block 2 the digests 200 and 201."""
    device = Device(CONFIG)
    assert device.write([4, 5, 6, 7, 8, 9], [100, 101, 102, 103, 200, 201]).clean
    return device


def test_right_contents_verify(device):
    assert device.verify([(1, 0, 100), (1, 3, 103), (2, 1, 201)]) == ()
    assert device.verify([]) == ()


def test_a_flipped_word_is_found_at_its_place(device):
    device.cache[1, 1, 0, 2, 0, 1] ^= 1 << 40
    assert device.verify([(1, 1, 101), (1, 2, 102)]) == (
        op.Mismatch(block=1, layer=1, offset=2, words=1, expected=102),
    )


def test_a_zeroed_word_is_found(device):
    device.cache[0, 2, 1, 0, 1, 1] = 0
    assert device.verify([(2, 0, 200)]) == (op.Mismatch(block=2, layer=0, offset=0, words=1, expected=200),)


def test_a_zeroed_token_has_no_single_writer(device):
    device.cache[:, 2, :, 0] = 0
    assert [(m.words, m.found) for m in device.verify([(2, 0, 200)])] == [(TOKEN_WORDS, None)] * 2


def test_an_unwritten_token_is_found_and_has_no_writer(device):
    assert device.verify([(2, 1, 201), (2, 2, 202)]) == tuple(
        op.Mismatch(block=2, layer=layer, offset=2, words=TOKEN_WORDS, expected=202) for layer in range(2)
    )


def test_a_wrong_writer_is_named(device):
    found = device.verify([(1, 0, 100), (1, 1, 55), (2, 1, 66)])
    assert [(m.block, m.offset, m.layer, m.words, m.expected, m.found) for m in found] == [
        (1, 1, 0, TOKEN_WORDS, 55, 101),
        (1, 1, 1, TOKEN_WORDS, 55, 101),
        (2, 1, 0, TOKEN_WORDS, 66, 201),
        (2, 1, 1, TOKEN_WORDS, 66, 201),
    ]
    assert device.writer(1, 1, layer=0) == 101
    assert device.writer(3, 0, layer=0) is None


def test_a_layer_that_was_not_written_is_found(device):
    device.cache[1, 1, :, 0] = device.cache[1, 1, :, 1]
    assert device.verify([(1, 0, 100)]) == (
        op.Mismatch(block=1, layer=1, offset=0, words=TOKEN_WORDS, expected=100, found=101),
    )


def test_padding_leaves_the_last_slot_alone(device):
    before = device.cache.copy()
    assert device.write([-1, -1], [1, 2]).clean
    assert (device.cache == before).all()


def test_a_slot_past_the_cache_is_reported(device):
    before = device.cache.copy()
    assert device.write([20], [1]) == Report(outside=(0,))
    assert (device.cache == before).all()
    assert device.write([19], [1]).clean


def test_a_place_that_the_device_does_not_have_is_refused(device):
    with pytest.raises(SlotError):
        device.verify([(5, 0, 1)])


def test_a_copy_carries_contents_to_another_block(device):
    assert device.copy([(1, 3, 2)]).clean
    assert device.verify([(3, 0, 100), (3, 1, 101)]) == ()
    assert {m.offset for m in device.verify([(3, 1, 101), (3, 2, 102)])} == {2}
    assert not device.copy([(1, 3, 1), (3, 4, 1)]).clean


@pytest.mark.parametrize("geometry", [Geometry(1, 1, 1), Geometry(3, 2, 5)])
@given(block=st.integers(0, 4), offset=st.integers(0, 3), digest=st.integers(0, 2**64 - 1))
def test_any_digest_anywhere_in_any_geometry_is_recovered(geometry, block, offset, digest):
    device = Device(CONFIG, geometry)
    device.write([block * 4 + offset], [digest])
    assert device.verify([(block, offset, digest)]) == ()
    wrong = device.verify([(block, offset, digest ^ 1)])
    assert [m.found for m in wrong] == [digest] * geometry.layers


# --- digests ------------------------------------------------------------------------------

some_extras = st.builds(
    op.Extras,
    adapter=st.none() | st.builds(op.Adapter, st.sampled_from("ab"), st.integers(0, 1)),
    salt=st.sampled_from(["", "s"]),
    items=st.sampled_from([(), (op.Item("i", 1, 3),), (op.Item("j", 0, 1), op.Item("i", 4, 2))]),
    embeddings=st.sampled_from([(), (op.Embedding(2, 9),), (op.Embedding(0, 9),)]),
)
prompts = st.lists(st.integers(0, 3), min_size=1, max_size=8)


def of_worker(digests: Digests, tokens, extras):
    """As a worker does it: from the tokens and extras that it received."""
    adapter = extras.adapter
    identity = (adapter.name, adapter.id, adapter.path) if adapter else None
    digest = digests.root(Root(0, 0, identity, extras.salt))
    special = extras_of(extras)
    found = []
    for position, token in enumerate(tokens):
        digest = digests.extend(digest, token, special.get(position))
        found.append(digest)
    return found


@given(st.lists(st.tuples(prompts, some_extras), max_size=5))
def test_worker_and_oracle_agree_and_different_claims_differ(requests):
    claims, worker, oracle = Claims(), Digests(), Digests()
    seen: dict[int, int] = {}
    for tokens, extras in requests:
        path = Path(claims, root_of(extras, 0), tokens, extras)
        # Backwards, so that a long unknown chain comes first.
        by_claims = [oracle.of(path.at(p), claims) for p in reversed(range(len(tokens)))][::-1]
        assert of_worker(worker, tokens, extras) == by_claims
        for position, digest in enumerate(by_claims):
            assert seen.setdefault(path.at(position), digest) == digest
    assert len(set(seen.values())) == len(seen)


def test_a_long_chain_needs_no_recursion():
    claims = Claims()
    path = Path(claims, root_of(op.Extras(), 0), [(0, 5_000)], op.Extras())
    digests = Digests()
    assert digests.of(path.at(4_999), claims) == of_worker(digests, range(5_000), op.Extras())[-1]


@pytest.mark.parametrize("claim", [POISON, PENDING])
def test_a_mark_that_is_no_claim_has_no_digest(claim):
    with pytest.raises(ValueError, match="no claim"):
        Digests().of(claim, Claims())


def test_equal_strings_in_different_fields_stay_different():
    roots = [
        Root(0, 0, None, ""),
        Root(1, 0, None, ""),
        Root(0, 1, None, ""),
        Root(0, 0, None, "a"),
        Root(0, 0, ("a", 0, ""), ""),
        Root(0, 0, ("", 0, "a"), ""),
        Root(0, 0, ("a", 0, "b"), ""),
        Root(0, 0, ("ab", 0, ""), ""),
        Root(0, 0, ("s1:a", 0, ""), ""),
        Root(0, 0, None, "\ud800"),
    ]
    assert len({root_bytes(root) for root in roots}) == len(roots)
    extras: list[Extra] = [
        ("item", "1", 2),
        ("item", "12", 0),
        ("embedding", 1, 2),
        ("embedding", "1", 2),
        ("item", 1, 2),
    ]
    assert len({extra_bytes(extra) for extra in extras}) == len(extras)
