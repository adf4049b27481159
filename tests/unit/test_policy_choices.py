"""A policy claimed with other choices: what they mean, that a wrong one shows, when it is compared."""

import msgspec
import pytest

from kvproof.fuzz.adapters.reference import ReferenceAdapter
from kvproof.fuzz.cases import Case, Expected
from kvproof.fuzz.engines.soak import Result, Sum, soak
from kvproof.fuzz.session import IllegalOperation, Session
from kvproof.fuzz.smoke import examine
from kvproof.fuzz.targets import judge as judging
from kvproof.fuzz.targets.judge import Job, judge
from kvproof.spec import operations as op
from kvproof.spec.policy import Policy
from kvproof.spec.properties import REFINEMENT
from kvproof.spec.state import State
from kvproof.spec.transitions import apply
from kvproof.spec.vocabulary import CHOICES, CacheConfig, Capabilities, PolicyChoices

replace = msgspec.structs.replace


def claiming(**choices: str) -> ReferenceAdapter:
    """A reference that claims other choices than it makes."""
    adapter = ReferenceAdapter(level=2)
    adapter.capabilities = replace(adapter.capabilities, choices=PolicyChoices(**choices))
    return adapter


# --- what they mean ---------------------------------------------------------------------


LIFE = (
    op.Submit("a", (1, 2, 3)),
    op.Admit("a", 3),
    op.Dispatch(1, (op.Entry("a", 3),)),
    op.Retire(1, (op.Output("a", (4,)),)),
    op.Finish("a"),
)
"""Block 1 is full, block 2 is not."""


GRANTED = op.Granted(((1, 2),), 0)
ANSWERS: dict[type[op.Operation], op.Answer] = {
    op.Admit: GRANTED,
    op.Extend: GRANTED,
    op.Dispatch: op.Dispatched(),
    op.Retire: op.Retired(),
}


def policy_of(choices: PolicyChoices, *operations: op.AnyOperation, **config: object) -> Policy:
    """The policy with these choices after operations, answered as it says itself."""
    chosen = msgspec.convert({"blocks": 4, "block_size": 2, "depth": 2, **config}, CacheConfig)
    state = State(chosen, Capabilities(2, policy=True, choices=choices, stream_ordered=True))
    policy = Policy.of(state)
    for operation in operations:
        answer = ANSWERS.get(type(operation), op.Done())
        apply(state, operation, answer)
        assert policy.follow(state, operation) in (None, answer)
    return policy


@pytest.mark.parametrize(
    ("unkeyed", "free"), [("front", [2, 3, 4, 1]), ("back", [3, 4, 2, 1])], ids=("front", "back")
)
def test_blocks_without_a_key_go_to_the_chosen_end(unkeyed, free):
    assert list(policy_of(PolicyChoices(unkeyed=unkeyed), *LIFE).free) == free


@pytest.mark.parametrize(
    ("uncached", "free"),
    [("front", [2, 1, 3, 4]), ("back", [3, 4, 2, 1]), ("back-in-order", [3, 4, 1, 2])],
    ids=CHOICES["uncached"],
)
def test_without_a_cache_all_blocks_go_where_that_is_chosen(uncached, free):
    for unkeyed in CHOICES["unkeyed"]:
        choices = PolicyChoices(unkeyed, uncached)
        assert list(policy_of(choices, *LIFE, prefix_caching=False).free) == free


AHEAD = (
    *LIFE[:3],
    op.Extend("a", 1),
    op.Dispatch(2, (op.Entry("a", 1),)),
    op.Retire(1, (op.Output("a", (4,)),)),
)
"""The fourth token is known; the step that computes it, and samples the fifth, is in flight."""


@pytest.mark.parametrize(("retired", "keyed"), [("known", {1, 2}), ("settled", {1})])
def test_a_retirement_keys_known_or_settled_tokens(retired, keyed):
    choices = PolicyChoices(retired=retired)
    assert policy_of(choices, *AHEAD).keyed.keys() == keyed
    settled = op.Retire(2, (op.Output("a", (5,)),))
    assert policy_of(choices, *AHEAD, settled).keyed.keys() == {1, 2}


# --- a wrong one shows ------------------------------------------------------------------


def test_the_reference_makes_the_default_choices():
    assert examine(ReferenceAdapter(level=2)) == ""


WRONG = [
    (name, value)
    for name, values in CHOICES.items()
    for value in values
    if value != getattr(PolicyChoices(), name)
]


@pytest.mark.parametrize(("name", "value"), WRONG)
def test_a_choice_that_is_not_made_belies_the_adapter(name, value):
    adapter = claiming(**{name: value})
    code = "KV-P-index" if name == "retired" else "KV-P-order"
    assert examine(adapter).startswith(f"in a simple life {code} falls at ")
    found = soak(3_000, 0, adapter=lambda: claiming(**{name: value})).case
    assert found is not None and found.expected.clause in REFINEMENT


def test_a_choice_that_there_is_not_is_named():
    assert "unkeyed 'middle' is declared" in examine(claiming(unkeyed="middle"))


# --- when it is compared ----------------------------------------------------------------


def test_a_policy_that_is_claimed_is_compared_by_the_judge(monkeypatch):
    monkeypatch.setattr(judging, "make_adapter", lambda target: ReferenceAdapter(level=2))
    judged = judge(Job("reference", 600))
    assert judged.result == "holds"
    assert {judged.of_clause(code) for code in REFINEMENT} == {"held"}
    monkeypatch.setattr(judging, "make_adapter", lambda target: claiming(unkeyed="back"))
    told = judge(Job("reference", 600))
    assert told.result == "errored" and "the adapter is wrong: in a simple life KV-P-order" in told.reason
    monkeypatch.setattr(judging, "make_adapter", lambda target: unclaiming())
    assert {judge(Job("reference", 600)).of_clause(code) for code in REFINEMENT} == {"unchecked"}


def unclaiming() -> ReferenceAdapter:
    adapter = ReferenceAdapter(level=2)
    adapter.capabilities = replace(adapter.capabilities, policy=False)
    return adapter


def rounds_of(monkeypatch, *falls: str, operations: int = 1_000) -> list[tuple[bool, bool, int]]:
    """The rounds in which these clauses fall one after the other, each after 100 operations.

    Whether the policy is compared, whether prompts are tokens alone, how many operations are asked for.
    """
    rounds, left = [], [*falls]

    def fake(most, seed, *, compare_policy, ignore, adapter, stop) -> Result:
        features = adapter().capabilities.features
        rounds.append((compare_policy, "salts" not in features, most))
        if not left:
            return Sum().result(most, None)
        config, clause = CacheConfig(2, 1), left.pop(0)
        case = Case(config, (op.Observe(),), expected=Expected("violated", clause))
        return Sum().result(100, case)

    monkeypatch.setattr(judging, "soak", fake)
    monkeypatch.setattr(judging, "shrink", lambda case: case)
    judge(Job("reference", operations))
    return rounds


def test_it_is_compared_in_the_second_half_on_prompts_of_tokens_alone(monkeypatch):
    assert rounds_of(monkeypatch) == [(False, False, 500), (True, True, 500)]
    behind = rounds_of(monkeypatch, "KV-I2-standing", "KV-P-events")
    assert behind == [(False, False, 500), (False, False, 400), (False, False, 300), (True, True, 500)]


def test_once_it_differs_it_is_not_compared_any_more(monkeypatch):
    rounds = rounds_of(monkeypatch, *["KV-P-events"] * 5, "KV-P-order")
    assert rounds[-2:] == [(True, True, 500), (False, False, 400)]
    assert [compared for compared, _, _ in rounds[:-2]] == [False] * 5


# --- tokens that are still being sampled ------------------------------------------------


def test_what_is_being_sampled_is_granted_only_where_that_is_declared():
    def session(*features: str) -> Session:
        adapter = ReferenceAdapter(level=2)
        kept = tuple(name for name in adapter.capabilities.features if name != "ahead")
        adapter.capabilities = replace(adapter.capabilities, features=(*kept, *features))
        made = Session(adapter, CacheConfig(4, 2, depth=2))
        made.run(LIFE[:3])
        return made

    assert isinstance(session("ahead").apply(AHEAD[3]), op.Granted)
    patient = session()
    with pytest.raises(IllegalOperation, match="still being sampled"):
        patient.apply(AHEAD[3])
    patient.apply(LIFE[3])
    assert isinstance(patient.apply(AHEAD[3]), op.Granted)


def test_a_run_does_not_ask_for_it_either():
    adapter = ReferenceAdapter(level=2)
    kept = tuple(name for name in adapter.capabilities.features if name != "ahead")
    adapter.capabilities = replace(adapter.capabilities, features=kept)
    # An operation that the contract refuses would end the run with an error.
    assert soak(1_500, 4, adapter=lambda: adapter).case is None
