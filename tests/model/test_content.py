"""Claims are exact: equal for equal prefixes, different for any difference, whole runs like single tokens."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvproof.spec import operations as op
from kvproof.spec.content import (
    DRAFT,
    PENDING,
    POISON,
    Claims,
    Path,
    Root,
    cut,
    first_difference,
    overwrite,
    root_of,
)

ROOT = Root(0, 0, None, "")
TOKENS = st.lists(st.integers(0, 3), min_size=1, max_size=12)


NOTHING = op.Extras()


def path(claims: Claims, tokens: list[int], extras: op.Extras = NOTHING) -> Path:
    return Path(claims, root_of(extras, 0), tokens, extras)


def flat(runs: tuple[tuple[int, int], ...]) -> list[int]:
    return [claim + i if claim > POISON else claim for claim, count in runs for i in range(count)]


@given(TOKENS, TOKENS)
def test_claims_are_equal_exactly_as_far_as_the_prefixes_are(one: list[int], other: list[int]) -> None:
    claims = Claims()
    a, b = path(claims, one), path(claims, other)
    for position in range(min(len(one), len(other))):
        same = one[: position + 1] == other[: position + 1]
        assert (a.at(position) == b.at(position)) == same


@given(TOKENS, st.integers(0, 12), st.integers(0, 12))
def test_runs_and_single_positions_agree(tokens: list[int], start: int, count: int) -> None:
    made = path(Claims(), tokens)
    runs = made.runs(start, start + count)
    wanted = [made.at(p) if p < len(tokens) else PENDING for p in range(start, start + count)]
    assert flat(runs) == wanted


@given(TOKENS, st.integers(0, 12))
def test_a_prompt_in_runs_and_grown_token_by_token_is_the_same(tokens: list[int], known: int) -> None:
    claims = Claims()
    known = max(1, min(known, len(tokens)))
    grown = path(claims, tokens[:known])
    for token in tokens[known:]:
        grown.append(token)
    whole = path(claims, tokens)
    assert [grown.at(p) for p in range(len(tokens))] == [whole.at(p) for p in range(len(tokens))]
    in_runs = Path(claims, ROOT, ((7, 5), (9, 1)), op.Extras())
    singly = Path(claims, ROOT, (7, 8, 9, 10, 11, 9), op.Extras())
    assert in_runs.runs(0, 6) == singly.runs(0, 6)


@given(TOKENS, st.data())
def test_the_last_positions_of_a_claim_are_found_backwards(tokens: list[int], data: st.DataObject) -> None:
    claims = Claims()
    made = path(claims, tokens)
    stop = data.draw(st.integers(1, len(tokens)))
    count = data.draw(st.integers(1, stop))
    claim = made.at(stop - 1)
    assert flat(claims.back(claim, count)) == flat(made.runs(stop - count, stop))
    assert claims.tokens_back(claim, count) == tokens[stop - count : stop]


X = "x"
DIFFERENT = (
    op.Extras(),
    op.Extras(salt=X),
    op.Extras(salt=X + X),
    op.Extras(adapter=op.Adapter(X)),
    op.Extras(adapter=op.Adapter(X, 1)),
    op.Extras(adapter=op.Adapter(X, 0, X)),
    op.Extras(adapter=op.Adapter(X + X)),
    op.Extras(items=(op.Item(X, 0, 1),)),
    op.Extras(items=(op.Item("y", 0, 1),)),
    op.Extras(embeddings=(op.Embedding(0, 0),)),
    op.Extras(embeddings=(op.Embedding(0, 1),)),
)


def test_equal_strings_in_different_fields_are_different_claims() -> None:
    claims = Claims()
    firsts = [path(claims, [1, 2], extras).at(0) for extras in DIFFERENT]
    assert len(set(firsts)) == len(DIFFERENT)


def test_an_item_that_begins_later_leaves_the_earlier_claims_alone() -> None:
    claims = Claims()
    plain, late = path(claims, [1, 2, 3]), path(claims, [1, 2, 3], op.Extras(items=(op.Item(X, 2, 1),)))
    assert plain.at(1) == late.at(1) and plain.at(2) != late.at(2)


def test_groups_and_epochs_have_claims_of_their_own() -> None:
    claims = Claims()
    roots = {claims.root(Root(group, epoch, None, "")) for group in (0, 1) for epoch in (0, 1)}
    assert len(roots) == 4


CONTENT = st.lists(st.sampled_from([POISON, PENDING, DRAFT, 1 << 32, (1 << 32) + 1, 5 << 32]), min_size=1)


def joined(values: list[int]) -> tuple[tuple[int, int], ...]:
    runs: tuple[tuple[int, int], ...] = ()
    for offset, value in enumerate(values):
        runs = overwrite((*runs, (POISON, 1)), offset, ((value, 1),), offset + 1)
    return runs


@given(CONTENT, CONTENT, st.data())
def test_overwriting_a_content_in_runs_is_overwriting_its_places(
    old: list[int], new: list[int], data: st.DataObject
) -> None:
    offset = data.draw(st.integers(0, max(0, len(old) - len(new))))
    new = new[: len(old) - offset]
    result = overwrite(joined(old), offset, joined(new), len(old))
    wanted = [*old[:offset], *new, *old[offset + len(new) :]]
    assert flat(result) == wanted and result == joined(wanted), "one content has one form"
    start = data.draw(st.integers(0, len(old)))
    assert flat(cut(result, start, len(old))) == wanted[start:]


def test_the_first_difference_names_the_place_and_both_claims() -> None:
    assert first_difference(((POISON, 2),), ((POISON, 2),)) is None
    assert first_difference(((1 << 32, 3),), ((1 << 32, 2), (POISON, 1))) == (2, (1 << 32) + 2, POISON)


@pytest.mark.parametrize("tokens", [(), (1, (5, 3), 2), ((5, 1),), (5, 6, 7)])
def test_tokens_flatten_as_they_count(tokens: op.Tokens) -> None:
    assert len(op.flatten(tokens)) == op.count_of(tokens)
