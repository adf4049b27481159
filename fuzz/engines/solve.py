"""Witnesses: extreme allocations whose numbers Z3 picks, as operations that the real manager runs.

Each is the template of a scenario, so that it is reachable by construction: a *producer* computes
its prompt and stays or finishes, a *filler* takes blocks meanwhile, and the *target* shares a prefix
with the producer. Sizes are defined by what they must hold, not by a formula of `impl`.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import z3

from kvproof.fuzz.cases import Case, Expect
from kvproof.spec.operations import (
    Admit,
    AnyOperation,
    Dispatch,
    Entry,
    Finish,
    Output,
    Retire,
    Submit,
    Tokens,
)
from kvproof.spec.vocabulary import CacheConfig

BLOCK_SIZES: Final = (1, 4, 16)
MAX_LEN: Final = 64
_TOKENS: Final = {"producer": 100, "filler": 200, "target": 300}
_SAMPLED: Final = 900


@dataclass(frozen=True)
class Scenario:
    """Operations whose last `Admit` is an extreme, and what the manager must answer to it."""

    name: str
    config: CacheConfig
    operations: tuple[AnyOperation, ...]
    outcome: str
    """What the last `Admit` comes to: "granted" or "refused"."""
    numbers: dict[str, int] = field(default_factory=dict)


class Template:
    """The scenario with symbolic numbers; `rules` say what they mean at this block size."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        names = "pool prompt shared filler target lookahead"
        self.pool, self.prompt, self.shared, self.filler, self.target, self.lookahead = z3.Ints(names)
        self.finished = z3.Bool("finished")
        self.rules: list[Any] = [
            z3.And(self.shared >= 1, self.shared <= self.prompt, self.shared <= self.target),
            z3.And(self.filler >= 1, self.target >= 1, self.lookahead >= 1),
            z3.And(self.prompt < MAX_LEN, self.filler < MAX_LEN, self.slots < MAX_LEN),
        ]
        self.produced = self.rounded_up("producer blocks", self.prompt)
        self.filled = self.rounded_up("filler blocks", self.filler)
        self.needed = self.rounded_up("target blocks", self.slots)
        self.hit = z3.Int("hit")
        full, further = self.hit * block_size, (self.hit + 1) * block_size
        self.rules += [
            z3.And(self.hit >= 1, full <= self.shared, full <= self.target - 1),
            z3.Or(further > self.shared, further > self.target - 1),
            self.pool >= self.produced + self.filled,
        ]
        self.new = self.needed - self.hit
        self.evictable = z3.If(self.finished, self.hit, 0)
        self.free = self.pool - self.filled - z3.If(self.finished, 0, self.produced)

    @property
    def slots(self) -> Any:
        """The boundary up to which the target needs slots."""
        return self.target + self.lookahead

    def rounded_up(self, name: str, tokens: Any) -> Any:
        """The least number of blocks that hold these tokens."""
        blocks = z3.Int(name)
        self.rules.append(z3.And(blocks * self.block_size >= tokens, (blocks - 1) * self.block_size < tokens))
        return blocks

    def solve(self, *extreme: Any) -> dict[str, int] | None:
        """The smallest numbers of this extreme, or none if it can't be."""
        asked = z3.Optimize()
        asked.add(*self.rules, *extreme)
        asked.minimize(self.pool + self.prompt + self.filler + self.target + self.lookahead)
        if asked.check() != z3.sat:
            return None
        model = asked.model()
        chosen = (self.pool, self.prompt, self.shared, self.filler, self.target, self.lookahead, self.hit)
        numbers = {str(each): model.eval(each, model_completion=True).as_long() for each in chosen}
        return {**numbers, "finished": int(z3.is_true(model.eval(self.finished)))}


def exactly_full(template: Template) -> list[Any]:
    """The grant takes the last free block, and fills its own last block to the last slot."""
    whole = template.slots == template.needed * template.block_size
    return [template.finished, template.new >= 1, template.new + template.evictable == template.free, whole]


def one_short(template: Template) -> list[Any]:
    """One block is missing, for one token; the hits are shared and cost nothing."""
    one_over = template.slots == (template.needed - 1) * template.block_size + 1
    return [z3.Not(template.finished), template.new == template.free + 1, template.free >= 1, one_over]


def evictable_hits(template: Template) -> list[Any]:
    """The new blocks would fit, were the hits not in the free queue themselves (REQ-2.3)."""
    fits_alone = template.new <= template.free
    return [
        template.finished,
        template.hit >= 2,
        fits_alone,
        template.new + template.evictable > template.free,
    ]


EXTREMES: Final[dict[str, tuple[Callable[[Template], list[Any]], str]]] = {
    "exactly-full": (exactly_full, "granted"),
    "one-short": (one_short, "refused"),
    "refused-for-evictable-hits": (evictable_hits, "refused"),
}


def _admitted(request: str, step: int, n: int, hit: int = 0, lookahead: int = 0) -> list[AnyOperation]:
    """A request is admitted, computed to its end, and gets its next token."""
    retired = Output(request, (_SAMPLED + step,))
    return [
        Admit(request, n, lookahead),
        Dispatch(step, (Entry(request, n - hit),)),
        Retire(step, (retired,)),
    ]


def operations(numbers: dict[str, int], block_size: int, outcome: str) -> tuple[AnyOperation, ...]:
    """The scenario with these numbers."""
    shared, rest = numbers["shared"], numbers["target"] - numbers["shared"]
    prompt: Tokens = ((_TOKENS["producer"], numbers["prompt"]),)
    target: Tokens = ((_TOKENS["producer"], shared), *([(_TOKENS["target"], rest)] if rest else []))
    made: list[AnyOperation] = [Submit("producer", prompt), *_admitted("producer", 1, numbers["prompt"])]
    made.append(Submit("filler", ((_TOKENS["filler"], numbers["filler"]),)))
    made += _admitted("filler", 2, numbers["filler"])
    if numbers["finished"]:
        made.append(Finish("producer"))
    hit = numbers["hit"] * block_size
    last = _admitted("target", 3, numbers["target"], hit, numbers["lookahead"])
    return (*made, Submit("target", target), *(last if outcome == "granted" else last[:1]))


def scenario(extreme: str, block_size: int) -> Scenario:
    """One extreme at one block size. Raises `ValueError` if no numbers make it."""
    asked, outcome = EXTREMES[extreme]
    template = Template(block_size)
    numbers = template.solve(*asked(template))
    if numbers is None:
        raise ValueError(f"no scenario is '{extreme}' with blocks of {block_size}.")
    config = CacheConfig(blocks=numbers["pool"], block_size=block_size, max_len=MAX_LEN)
    name = f"{extreme}-{block_size}"
    return Scenario(name, config, operations(numbers, block_size, outcome), outcome, numbers)


def scenarios() -> list[Scenario]:
    """All extremes at all block sizes."""
    return [scenario(extreme, size) for extreme in EXTREMES for size in BLOCK_SIZES]


def case_of(found: Scenario) -> Case:
    """The scenario as a case that holds, and in which the extreme is answered as predicted."""
    last = max(i for i, each in enumerate(found.operations) if isinstance(each, Admit))
    expect = tuple(Expect(answer=found.outcome) if i == last else None for i in range(len(found.operations)))
    title = f"An extreme of the capacity theorem: {found.name.replace('-', ' ')} tokens to a block"
    return Case(config=found.config, operations=found.operations, title=title, expect=expect)
