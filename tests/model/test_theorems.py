"""The theorems hold, their controls fall, and the extremes are what they claim to be."""

import random
from collections import Counter, deque
from dataclasses import replace

import pytest

from kvproof.fuzz.engines import contracts, prove, solve
from kvproof.impl import arithmetic
from kvproof.spec.operations import Admit, flatten
from kvproof.spec.theorems import capacity, ordering, slots
from kvproof.spec.theorems.symbolic import Scope, integers
from kvproof.spec.theorems.verdict import Control, Goal, Theorem, boxed_models, decide, judge, refute

FUNCTIONS = prove.functions_of(arithmetic)
THEOREMS = {theorem.id: theorem for theorem in prove.theorems(FUNCTIONS)}


# --- theorems and controls ----------------------------------------------------------------


@pytest.mark.parametrize("name", THEOREMS)
def test_the_theorem_is_proved_and_every_control_is_refuted_and_replayed(name):
    row = prove.prove_theorem(THEOREMS[name])
    count = len(THEOREMS[name].controls)
    assert count >= 2
    assert (row.verdict, row.controls) == ("proved", f"{count} of {count} refuted and replayed"), row.detail


def test_equality_branches_are_among_the_controls():
    titles = [control.title for theorem in THEOREMS.values() for control in theorem.controls]
    assert sum("==" in title for title in titles) >= 2


def tiny(claim, *given, controls=()):
    """A theorem that a number satisfies a claim; its subject is the claim."""
    [x] = numbers = integers("x")

    def goals(subject):
        return [Goal.of("the claim", Scope.assuming(*(each(x) for each in given)), numbers, subject(x))]

    return Theorem(
        id="tiny",
        title="A claim about a number.",
        bound="all sizes",
        subject=claim,
        goals=goals,
        models=lambda subject: boxed_models(goals(subject)),
        disagrees=lambda subject, model: not subject(model["x"]),
        controls=tuple(Control("wrong", control) for control in controls),
    )


def positive(x):
    return x > 0


@pytest.mark.parametrize(
    ("theorem", "verdict"),
    [
        (tiny(positive, lambda x: x > 3), "proved"),
        (tiny(positive, lambda x: x > -3), "refuted"),
        (tiny(positive, lambda x: x > 3, lambda x: x < 3), "vacuous"),
        (replace(tiny(positive), goals=lambda subject: []), "undecided"),
    ],
)
def test_each_verdict_can_be_reached(theorem, verdict):
    assert judge(theorem).verdict == verdict


def test_a_question_beyond_the_effort_is_undecided(monkeypatch):
    monkeypatch.setattr("kvproof.spec.theorems.symbolic.EFFORT", 1)
    [goal] = tiny(positive).goals(lambda x: x * x * x != 7 * x + 1)
    assert decide(goal) == "undecided"


@pytest.mark.parametrize("controls", [(), (positive,), (positive, lambda x: x > 1)])
def test_a_prover_that_refutes_too_little_is_blind(controls):
    row = prove.prove_theorem(tiny(positive, lambda x: x > 0, controls=controls))
    assert row.verdict == "undecided" and row.detail.startswith("not refuted")


def test_a_refutation_counts_only_if_plain_python_agrees():
    theorem = replace(tiny(positive, lambda x: x > 0), disagrees=lambda subject, model: False)
    refutation = refute(theorem, Control("wrong", lambda x: x > 1))
    assert refutation.refuted and not refutation.replayed and not refutation.counts


def test_a_replay_that_rejects_the_right_subject_too_is_broken():
    theorem = replace(tiny(positive, lambda x: x > 0), disagrees=lambda subject, model: True)
    assert not refute(theorem, Control("wrong", lambda x: x > 1)).counts


# --- the definitions that formulas are compared with ----------------------------------------


def drawn_sizes(draw):
    evictable, known = draw.randint(0, 3), draw.randint(0, 12)
    return {
        "block_size": draw.randint(1, 4),
        "owned": draw.randint(0, 2),
        "hits": evictable + draw.randint(0, 2),
        "evictable": evictable,
        "free": evictable + draw.randint(0, 4),
        "computed": draw.randint(0, known),
        "num_new": draw.randint(0, 6),
        "known": known,
        "lookahead": draw.randint(0, 3),
        "max_len": known + draw.randint(0, 3),
    }


def executed_on_a_queue(draw, numbers):
    """The same as `capacity.execute`, with blocks in a real queue."""
    queue = deque(draw.sample(range(numbers["free"]), numbers["free"]))
    row = [-1] * (numbers["owned"] + numbers["hits"] - numbers["evictable"])
    for hit in range(numbers["evictable"]):
        queue.remove(hit)
        row.append(hit)
    scheduled = min(numbers["computed"] + numbers["num_new"], numbers["known"])
    end = min(scheduled + numbers["lookahead"], numbers["max_len"])
    while len(row) * numbers["block_size"] < end and queue:
        row.append(queue.popleft())
    return capacity.Execution(len(row) * numbers["block_size"] >= end, numbers["free"] - len(queue))


def test_capacity_execution_counts_what_a_real_queue_gives():
    draw, outcomes = random.Random(4), Counter[bool]()
    for _ in range(400):
        numbers = drawn_sizes(draw)
        run = capacity.execute(numbers)
        assert run == executed_on_a_queue(draw, numbers)
        assert not capacity.disagrees(FUNCTIONS, numbers)
        outcomes[run.complete] += 1
    assert outcomes[True] > 40 and outcomes[False] > 40


def test_slots_of_a_row_are_its_blocks_one_after_the_other():
    assert slots.cells([3, 1], 2) == [6, 7, 2, 3]


def test_ordering_replays_on_a_list():
    queue = ordering.Queue(queue=(3, 1, 2), hits=(1, 2), pops=3)
    assert ordering.evicted(ordering.TWO_PHASE, queue) == []
    assert ordering.evicted(("pop", "touch"), queue) == [1, 2]
    assert ordering.evicted(("touch_first", "pop"), queue) == [2]


# --- witnesses ----------------------------------------------------------------------------

SCENARIOS = solve.scenarios()


class Toy:
    """A manager of a few lines, to run a scenario on before the real one does."""

    def __init__(self, config, functions):
        self.config, self.functions = config, functions
        self.free, self.refs = list(range(1, config.blocks + 1)), Counter[int]()
        self.tokens, self.rows, self.keys = {}, {}, {}
        self.answers, self.flights = [], []

    def prefixes(self, tokens, count):
        return [tuple(tokens[: (i + 1) * self.config.block_size]) for i in range(count)]

    def submit(self, asked):
        self.tokens[asked.request] = flatten(asked.tokens)

    def admit(self, asked):
        tokens, size, hits = self.tokens[asked.request], self.config.block_size, []
        for prefix in self.prefixes(tokens, (len(tokens) - 1) // size):
            if prefix not in self.keys:
                break
            hits.append(self.keys[prefix])
        end = self.functions.scheduled_tokens(len(hits) * size, asked.n, len(tokens))
        slots_end = self.functions.slots_end(end, asked.lookahead, self.config.max_len)
        evictable = sum(not self.refs[block] for block in hits)
        want = self.functions.demand(slots_end, size, 0, len(hits), evictable)
        granted = self.functions.fits(want, len(self.free))
        self.answers.append("granted" if granted else "refused")
        if not granted:
            return
        self.granted = end - len(hits) * size
        self.free = [block for block in self.free if block not in hits]
        fresh = [self.free.pop(0) for _ in range(want.fresh)]
        self.keys = {prefix: block for prefix, block in self.keys.items() if block not in fresh}
        self.rows[asked.request] = row = hits + fresh
        self.refs.update(row)
        self.keys = {**dict(zip(self.prefixes(tokens, end // size), row, strict=False)), **self.keys}

    def dispatch(self, asked):
        assert [entry.n for entry in asked.entries] == [self.granted]
        self.flights.append(asked.step)

    def retire(self, asked):
        assert asked.step == self.flights.pop(0) and not self.flights
        [output] = asked.outputs
        assert len(output.sampled) == 1 and len(self.tokens[output.request]) < self.config.max_len
        self.tokens[output.request] += output.sampled

    def finish(self, asked):
        row = self.rows.pop(asked.request)
        self.refs.subtract(row)
        keyed = set(self.keys.values())
        gone = [block for block in reversed(row) if not self.refs[block]]
        self.free = [b for b in gone if b not in keyed] + self.free + [b for b in gone if b in keyed]


def answers(scenario, last=FUNCTIONS):
    """What the toy manager answers to the admissions; it uses `last` for the last one."""
    toy = Toy(scenario.config, FUNCTIONS)
    run = {"submit": toy.submit, "dispatch": toy.dispatch, "retire": toy.retire, "finish": toy.finish}
    for operation in scenario.operations:
        if isinstance(operation, Admit):
            toy.functions = last if operation.request == "target" else FUNCTIONS
            toy.admit(operation)
            if operation.request == "target" and last is not FUNCTIONS:
                break
        else:
            run[type(operation).__name__.lower()](operation)
    return toy.answers


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_an_extreme_is_answered_as_predicted(scenario):
    scenario.config.validate()
    assert answers(scenario) == ["granted", "granted", scenario.outcome]


def test_there_are_nine_extremes_at_three_block_sizes():
    assert len({scenario.name for scenario in SCENARIOS}) == len(solve.EXTREMES) * len(solve.BLOCK_SIZES) == 9


@pytest.mark.parametrize(
    ("extreme", "wrong"),
    [
        ("exactly-full", FUNCTIONS._replace(fits=capacity.full_refused)),
        ("exactly-full", FUNCTIONS._replace(demand=capacity.slack_forgotten)),
        ("one-short", FUNCTIONS._replace(fits=lambda want, free: want.fresh + want.evictable <= free + 1)),
        ("refused-for-evictable-hits", FUNCTIONS._replace(demand=capacity.hits_omitted)),
    ],
)
@pytest.mark.parametrize("size", solve.BLOCK_SIZES)
def test_a_wrong_formula_fails_its_extreme_at_every_block_size(extreme, wrong, size):
    scenario = solve.scenario(extreme, size)
    try:
        given = answers(scenario, last=wrong)
    except IndexError:  # granted, and ran dry
        given = ["granted", "granted", "ran dry"]
    assert given[:2] == ["granted", "granted"] and given[2] != scenario.outcome


def test_an_impossible_extreme_is_an_error(monkeypatch):
    monkeypatch.setitem(solve.EXTREMES, "never", (lambda template: [template.pool < 0], "granted"))
    with pytest.raises(ValueError, match="no scenario is 'never'"):
        solve.scenario("never", 4)


def test_contracts_are_skipped_without_crosshair(monkeypatch):
    monkeypatch.setattr(contracts, "installed", lambda: False)
    rows = list[prove.Row]()
    assert prove.prove(rows.append) == rows
    assert [row.property for row in rows] == [*THEOREMS, "contracts"]
    assert rows[-1].verdict == "skipped" and "isn't installed" in rows[-1].detail
