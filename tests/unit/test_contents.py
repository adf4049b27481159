"""Memory is compared when it matters: before a step reads, when a block is hit or keyed, at the end."""

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from kvproof.fuzz import contents, demands
from kvproof.fuzz.adapters.reference import ReferenceAdapter
from kvproof.fuzz.contents import Contents
from kvproof.fuzz.demands import Demand
from kvproof.fuzz.device import Device, Digests
from kvproof.fuzz.engines.soak import soak
from kvproof.fuzz.session import Session
from kvproof.fuzz.targets import make_adapter
from kvproof.spec import operations as op
from kvproof.spec.content import POISON, Claims, Path, root_of
from kvproof.spec.oracle import CLAUSES
from kvproof.spec.vocabulary import CacheConfig

CONFIG = CacheConfig(blocks=6, block_size=2, depth=2, max_requests=3, max_len=12)
PROMPT = (1, 2, 3, 4, 5)
A = (op.Submit("a", PROMPT), op.Admit("a", 5), op.Dispatch(1, (op.Entry("a", 5),)))
RETIRED = op.Retire(1, (op.Output("a", (9,)),))
SHADOW = frozenset(clause.code for clause in CLAUSES if clause.code != "KV-I2-bytes")
"""Every clause but the one about bytes."""


def spoil(session: Session, block: int, offset: int = 0) -> None:
    """Change a word as a stray write would, of which nobody is told."""
    assert session.device is not None
    session.device.cache[1, block, 0, offset, 1, 0] ^= 1 << 17


def fallen(session: Session) -> tuple[type[op.Operation], int | None]:
    """After which operation the clause about bytes fell, and for which block."""
    assert session.violation is not None and session.violation.code == "KV-I2-bytes"
    return type(session.operations[-1]), session.violation.evidence.block


@pytest.fixture(params=[contents.FEW, 0], ids=["word by word", "by sums"])
def session(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Session:
    """The reference, its memory compared in either way."""
    monkeypatch.setattr(contents, "FEW", request.param)
    return Session(make_adapter("reference"), CONFIG)


# --- when it is looked at -------------------------------------------------------------------


@pytest.mark.parametrize(("block", "offset"), [(2, 1), (3, 0)], ids=["full", "written into by the step"])
def test_what_was_spoiled_between_two_steps_is_seen_when_the_next_one_is_dispatched(session, block, offset):
    session.run([*A, RETIRED, op.Extend("a", 1)])
    spoil(session, block, offset)
    session.apply(op.Dispatch(2, (op.Entry("a", 1),)))
    assert fallen(session) == (op.Dispatch, block)


def test_the_row_of_each_request_is_looked_at_when_a_step_is_dispatched(session):
    second = [op.Submit("b", (7, 8)), op.Admit("b", 2), op.Dispatch(2, (op.Entry("b", 2),))]
    session.run([*A, RETIRED, *second, op.Retire(2, (op.Output("b", (3,)),))])
    session.run([op.Extend("a", 1), op.Extend("b", 1)])
    spoil(session, block=4)
    session.apply(op.Dispatch(3, (op.Entry("a", 1), op.Entry("b", 1))))
    assert fallen(session) == (op.Dispatch, 4)


def test_what_was_spoiled_while_a_step_was_in_flight_is_seen_when_it_retires(session):
    session.run([*A, RETIRED, op.Extend("a", 1), op.Dispatch(2, (op.Entry("a", 1),))])
    spoil(session, block=1)
    session.apply(op.Retire(2, (op.Output("a", (8,)),)))
    assert fallen(session) == (op.Retire, 1)


def test_what_was_spoiled_after_publication_is_seen_when_it_is_hit(session):
    session.run([*A, RETIRED, op.Finish("a"), op.Submit("b", PROMPT)])
    spoil(session, block=2)
    session.apply(op.Admit("b", 5))
    assert fallen(session) == (op.Admit, 2)


def test_a_block_that_nobody_hits_or_reads_is_seen_by_who_observes(session):
    session.run([*A, RETIRED, op.Finish("a"), op.Submit("b", (7, 7)), op.Admit("b", 2)])
    spoil(session, block=1)
    session.run([op.Dispatch(2, (op.Entry("b", 2),)), op.Retire(2, (op.Output("b", (3,)),))])
    assert session.violation is None
    session.apply(op.Observe())
    assert fallen(session) == (op.Observe, 1)


def test_a_row_that_is_not_keyed_is_seen_by_who_observes_too(session):
    session.run([*A, RETIRED])
    spoil(session, block=3)
    session.apply(op.Observe())
    assert fallen(session) == (op.Observe, 3)


def test_what_is_still_to_be_written_demands_nothing_yet(session):
    """The second request hits what the first one's step, still in flight, will write."""
    hit = session.run([*A, op.Submit("b", PROMPT), op.Admit("b", 5), op.Dispatch(2, (op.Entry("b", 1),))])
    assert hit.result == "holds"
    assert session.state.requests["b"].life is not None and session.state.requests["b"].life.hit == 4
    rest = session.run([RETIRED, op.Retire(2, (op.Output("b", (9,)),)), op.Observe()])
    assert rest.result == "holds"


class Late(ReferenceAdapter):
    """Shows its keys when a request has finished or is granted more, and not before."""

    published = False

    def finish(self, request: str) -> None:
        super().finish(request)
        self.published = True

    def extend(self, request: str, n: int, lookahead: int) -> op.Granted | op.Refused:
        self.published = True
        return super().extend(request, n, lookahead)

    def observe(self, blocks: object, keys: object = ()) -> op.Observation:
        seen = super().observe(None)
        if self.published:
            return seen
        hidden = {block: replace(view, key=None) for block, view in seen.blocks.items()}
        return replace(seen, index=(), blocks=hidden)


@pytest.mark.parametrize("last", [op.Finish("a"), op.Extend("a", 1)], ids=["at the end", "at a grant"])
@pytest.mark.parametrize(("block", "falls"), [(2, True), (3, False)], ids=["keyed", "left open"])
def test_what_was_spoiled_before_publication_is_seen_when_the_key_appears(block, falls, last):
    session = Session(Late(), CONFIG, ignore=SHADOW, compare_policy=False)
    session.run([*A, RETIRED])
    spoil(session, block)
    session.apply(last)
    assert (session.violation is not None) == falls
    if falls:
        assert fallen(session) == (type(last), 2)


def test_the_last_block_is_compared_when_its_key_appears():
    two = CacheConfig(blocks=2, block_size=2, max_len=4)
    session = Session(Late(), two, ignore=SHADOW, compare_policy=False)
    steps = (op.Dispatch(1, (op.Entry("a", 4),)), op.Retire(1, (op.Output("a", ()),)))
    session.run([op.Submit("a", PROMPT[:4]), op.Admit("a", 4), *steps])
    spoil(session, block=2)
    session.apply(op.Finish("a"))
    assert fallen(session) == (op.Finish, 2)


class Crossed(Late):
    """Shows each of two keys above the other's block once a request has finished."""

    def observe(self, blocks: object, keys: object = ()) -> op.Observation:
        seen = ReferenceAdapter.observe(self, None)
        if not self.published:
            return seen
        crossed = [
            replace(entry, blocks=other.blocks)
            for entry, other in zip(seen.index, reversed(seen.index), strict=True)
        ]
        return replace(seen, index=tuple(crossed))


def test_a_key_that_appears_above_another_block_demands_there_what_it_stood_for_before():
    session = Session(Crossed(), CONFIG, ignore=SHADOW, compare_policy=False)
    assert session.run([*A, RETIRED]).result == "holds"
    session.apply(op.Finish("a"))
    assert fallen(session)[0] is op.Finish


class Early(Late):
    """Shows a key above the block that a finished request left open, whose tokens nobody knows."""

    def observe(self, blocks: object, keys: object = ()) -> op.Observation:
        seen = ReferenceAdapter.observe(self, None)
        early = (op.IndexEntry(b"early", 0, (3,)),) if self.published else ()
        return replace(seen, index=(*seen.index, *early))


def test_a_key_above_tokens_that_nobody_knows_demands_nothing():
    session = Session(Early(), CONFIG, ignore=SHADOW, compare_policy=False)
    retired = op.Retire(1, (op.Output("a", ()),))
    held = session.run([op.Submit("a", PROMPT, options=op.Options(max_len=5)), *A[1:], retired])
    assert held.result == "holds"
    session.run([op.Finish("a"), op.Observe()])
    assert session.violation is None and len(session.operations) == 6


class Crashing(ReferenceAdapter):
    """Raises an error before a step's words are written."""

    def retire(self, operation: op.Retire) -> op.Retired:
        raise ZeroDivisionError


def test_after_a_crash_nothing_is_demanded():
    records: list[op.Record] = []
    session = Session(Crashing(), CONFIG, watch=records.append)
    session.run([*A, RETIRED])
    assert session.violation is not None and session.violation.code == "KV-P-crash"
    assert records[-1].memory == ()


def test_the_record_names_the_place_and_the_claim_that_is_demanded():
    records: list[op.Record] = []
    session = Session(make_adapter("reference"), CONFIG, watch=records.append)
    session.run([*A, RETIRED, op.Extend("a", 1)])
    spoil(session, block=2, offset=1)
    session.apply(op.Dispatch(2, (op.Entry("a", 1),)))
    life = session.state.requests["a"].life
    assert life is not None
    digest = Digests().of(life.paths[0].at(3), session.state.claims)
    assert records[-1].memory == (op.Mismatch(block=2, layer=1, offset=1, words=1, expected=digest),)


# --- what a step leaves, position by position -----------------------------------------------------


def plain_demands(session: Session) -> set[tuple[int, int, int]]:
    """Block, offset and claim of every position that the oldest step in flight leaves in its rows."""
    size, found = session.config.block_size, set()
    for entry in session.state.steps[0].entries:
        for path, row in zip(entry.life.paths, entry.rows, strict=True):
            claims = [path.at(i) if i < path.length else POISON for i in range(entry.stop)]
            for token in entry.drafts if entry.stop <= path.length else ():
                claims.append(session.state.claims.after(claims[-1], token))
            found |= {
                (row[i // size], i % size, claim)
                for i, claim in enumerate(claims)
                if claim > POISON and i // size < len(row)
            }
    return found


def test_a_step_must_leave_each_position_that_is_known_and_its_drafts(monkeypatch):
    seen: list[bool] = []
    drafted: list[bool] = []
    verify = Session._verify

    def compared(self, device, operation, answer, observed):
        if isinstance(operation, op.Retire):
            found = set()
            for block, tokens, claim in demands.of_step(self.state):
                runs = self.state.claims.back(claim, tokens)
                claims = [first + i for first, count in runs for i in range(count)]
                found |= {(block, i, each) for i, each in enumerate(claims)}
            seen.append(found == plain_demands(self))
            drafted.append(any(entry.drafts for entry in self.state.steps[0].entries))
        return verify(self, device, operation, answer, observed)

    monkeypatch.setattr(Session, "_verify", compared)
    soak(2_500, 4)
    assert all(seen) and len(seen) > 200 and sum(drafted) > 20


# --- word by word, and by sums --------------------------------------------------------------------


class Counting(Device):
    """Counts the tokens that are compared, and says the same sums for ever if it is told to."""

    compared = 0
    same: list[int] | None = None

    def verify(self, expected: Sequence[tuple[int, int, int]]) -> tuple[op.Mismatch, ...]:
        self.compared += len(expected)
        return super().verify(expected)

    def fingerprints(self, blocks: Sequence[int], tokens: Sequence[int]) -> list[list[int]]:
        found = super().fingerprints(blocks, tokens)
        return found if self.same is None else [self.same for _ in found]


@pytest.fixture
def summed(monkeypatch: pytest.MonkeyPatch) -> tuple[Counting, Contents, list[Demand]]:
    """Two blocks that hold a request's tokens, and what they must hold."""
    monkeypatch.setattr(contents, "FEW", 0)
    claims = Claims()
    path = Path(claims, root_of(op.Extras(), 0), [3, 1, 4, 1], op.Extras())
    device, made = Counting(CONFIG), Contents(claims)
    digests = [Digests().of(path.at(i), claims) for i in range(4)]
    assert device.write([2, 3, 4, 5], digests).clean
    return device, made, [Demand(1, 2, path.at(1)), Demand(2, 2, path.at(3))]


def test_a_block_whose_words_add_up_as_before_is_not_compared_again(summed):
    device, made, wanted = summed
    assert made.wrong(device, wanted) == () and device.compared == 4
    assert made.wrong(device, wanted) == () and device.compared == 4
    assert made.wrong(device, wanted, every_word=True) == () and device.compared == 8


def test_a_block_that_was_written_again_with_the_same_words_is_not_compared_again(summed):
    device, made, wanted = summed
    made.wrong(device, wanted)
    device.cache[:, 1] = device.cache[:, 1].copy()
    assert made.wrong(device, wanted) == () and device.compared == 4


def test_a_changed_word_is_found_though_nobody_told_of_it(summed):
    device, made, wanted = summed
    made.wrong(device, wanted)
    device.cache[0, 2, 1, 1, 0, 1] ^= 1
    assert [(each.block, each.offset) for each in made.wrong(device, wanted)] == [(2, 1)]
    device.cache[0, 2, 1, 1, 0, 1] ^= 1
    assert made.wrong(device, wanted) == ()


def test_a_wrong_block_is_compared_at_every_look(summed):
    device, made, wanted = summed
    device.cache[0, 2, 1, 1, 0, 1] ^= 1
    assert [len(made.wrong(device, wanted)) for _ in range(3)] == [1, 1, 1]


def test_another_demand_of_the_same_block_is_compared(summed):
    device, made, wanted = summed
    made.wrong(device, wanted)
    assert made.wrong(device, [wanted[1]._replace(block=1)]) != ()


def test_sums_that_never_change_deceive_all_looks_but_the_last(summed):
    device, made, wanted = summed
    device.same = [1, 2, 3, 4]
    made.wrong(device, wanted)
    device.cache[0, 1, 0, 0, 0, 0] ^= 1
    assert made.wrong(device, wanted) == ()
    assert [each.block for each in made.wrong(device, wanted, every_word=True)] == [1]


def test_who_observes_trusts_no_sum(monkeypatch):
    monkeypatch.setattr(contents, "FEW", 0)
    monkeypatch.setattr(Device, "fingerprints", lambda self, blocks, tokens: [[7] for _ in blocks])
    session = Session(make_adapter("reference"), CONFIG)
    session.run([*A, RETIRED, op.Extend("a", 1), op.Dispatch(2, (op.Entry("a", 1),))])
    spoil(session, block=1)
    session.apply(op.Retire(2, (op.Output("a", (8,)),)))
    assert session.violation is None
    session.apply(op.Observe())
    assert fallen(session) == (op.Observe, 1)


def test_nothing_is_asked_of_a_device_for_no_demand(summed):
    device, made, _ = summed
    assert made.wrong(device, []) == () and device.compared == 0
