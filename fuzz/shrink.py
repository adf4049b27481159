"""Shrinking by operations: the same clause, with less of everything.

Operations that became illegal are skipped, steps and outputs are fitted to what is left,
so any subset of a history is a candidate. Runs are dropped, then pairs; then prompts,
counts, block size and pool shrink, and features go.
"""

from collections.abc import Callable, Iterator, Sequence

import msgspec

from kvproof.fuzz import cases
from kvproof.fuzz.cases import Case
from kvproof.fuzz.faults import planted
from kvproof.fuzz.fitting import fitted
from kvproof.fuzz.session import Session
from kvproof.fuzz.targets import make_adapter
from kvproof.spec import operations as op
from kvproof.spec.vocabulary import CacheConfig

Operations = Sequence[op.AnyOperation]

replace = msgspec.structs.replace

PAIRS = 30
"""Pairs are tried in cases of at most so many operations."""


class Shrinker:
    """Holds the smallest case so far and tries smaller ones."""

    def __init__(self, case: Case, progress: Callable[[int], None] | None) -> None:
        self.case = case
        self._progress = progress
        self._adapter = make_adapter(case.target)

    def attempt(self, config: CacheConfig, operations: Operations) -> bool:
        """Whether these still bring down the clause, with no more operations; if so they are the case."""
        sizes = self._adapter.capabilities.block_sizes
        if sizes and config.block_size not in sizes:
            return False
        session = Session(
            self._adapter, config, compare_policy=self.case.compare_policy, ignore=frozenset(self.case.ignore)
        )
        for operation in operations:
            fit = fitted(session.state, operation)
            if fit is not None:
                session.apply(fit)
            if session.over:
                break
        if session.violation is None or session.violation.code != self.case.expected.clause:
            return False
        if len(session.operations) > len(self.case.operations):
            return False
        self.case = replace(self.case, config=config, operations=tuple(session.operations), expect=())
        if self._progress is not None:
            self._progress(len(self.case.operations))
        return True

    def close(self) -> None:
        """Let the allocator go."""
        self._adapter.close()

    def run(self) -> None:
        """Shrink until nothing helps any more."""
        before: bytes | None = None
        while before != (now := cases.dumps(self.case)):
            before = now
            self.drop_runs()
            self.drop_pairs()
            self.simplify()
            self.reconfigure()

    def drop_runs(self) -> None:
        """Drop long runs of operations first, single ones last."""
        size = max(1, len(self.case.operations) // 2)
        while size:
            start = 0
            while start < len(self.case.operations):
                rest = (*self.case.operations[:start], *self.case.operations[start + size :])
                if not self.attempt_smaller(rest):
                    start += size
            size //= 2

    def drop_pairs(self) -> None:
        """Drop two operations that only make sense together."""
        if len(self.case.operations) > PAIRS:
            return
        i = 0
        while i < len(self.case.operations):
            for j in range(i + 1, len(self.case.operations)):
                rest = [each for k, each in enumerate(self.case.operations) if k not in (i, j)]
                if self.attempt_smaller(rest):
                    break
            else:
                i += 1

    def attempt_smaller(self, operations: Operations) -> bool:
        """As `attempt`, and it counts only with fewer operations than before."""
        before = self.case
        if not self.attempt(self.case.config, operations):
            return False
        if len(self.case.operations) < len(before.operations):
            return True
        self.case = before
        return False

    def simplify(self) -> None:
        """Try simpler forms of each operation, the simplest first."""
        i = 0
        while i < len(self.case.operations):
            for simpler in _simpler(self.case.operations[i], self.case.config):
                if self.attempt(
                    self.case.config, (*self.case.operations[:i], simpler, *self.case.operations[i + 1 :])
                ):
                    break
            i += 1

    def reconfigure(self) -> None:
        """Try smaller configurations, with the prompts scaled along."""
        for config, operations in _smaller(self.case.config, self.case.operations):
            self.attempt(config, operations)


def shrink(case: Case, progress: Callable[[int], None] | None = None) -> Case:
    """The smallest case that is found to break the same clause on the same target.

    `progress` is told the number of operations left. Raises `CaseError` for a case that
    does not end in a violation.
    """
    if case.expected.result != "violated":
        raise cases.CaseError("only a case that expects a violation can be shrunk")
    with planted(cases.faults_of(case)):
        shrinker = Shrinker(case, progress)
        if not shrinker.attempt(case.config, case.operations):
            raise cases.CaseError(
                f"the case does not break {case.expected.clause} here, so it can't be shrunk"
            )
        shrinker.run()
    return shrinker.case


def size(case: Case) -> tuple[int, int, int]:
    """How large a case is: operations, blocks, tokens."""
    tokens = sum(op.count_of(each.tokens) for each in case.operations if isinstance(each, op.Submit))
    return len(case.operations), case.config.blocks, tokens


def _simpler(operation: op.AnyOperation, config: CacheConfig) -> Iterator[op.AnyOperation]:
    match operation:
        case op.Submit():
            if operation.extras != op.Extras():
                yield replace(operation, extras=op.Extras())
            if operation.options != op.Options():
                yield replace(operation, options=op.Options())
            yield from _shorter(operation, config.block_size)
        case op.Admit() | op.Extend():
            for lookahead in range(operation.lookahead):
                yield replace(operation, lookahead=lookahead)
            if operation.n > 1:
                yield replace(operation, n=1)
        case op.Dispatch():
            if operation.padding:
                yield replace(operation, padding=0)
            if any(entry.drafts for entry in operation.entries):
                yield replace(
                    operation, entries=tuple(replace(entry, drafts=()) for entry in operation.entries)
                )
        case _:
            pass


def _shorter(submit: op.Submit, block_size: int) -> Iterator[op.Submit]:
    """Prompts cut by blocks and by single tokens, where the extras allow it."""
    tokens = tuple(op.flatten(submit.tokens))
    ends = [item.offset + item.length for item in submit.extras.items]
    least = max([1, *ends, *(each.position + 1 for each in submit.extras.embeddings)])
    for length in sorted({1, len(tokens) // 2, len(tokens) - block_size, len(tokens) - 1}):
        if least <= length < len(tokens):
            yield replace(submit, tokens=tokens[:length])


def _smaller(config: CacheConfig, operations: Operations) -> Iterator[tuple[CacheConfig, Operations]]:
    if config.block_size > 1:
        for block_size in range(1, config.block_size):
            scaled = [_scaled(operation, config.block_size, block_size) for operation in operations]
            yield replace(config, block_size=block_size), scaled
    for blocks in sorted({1, 2, 3, config.blocks // 2, config.blocks - 1}):
        if 1 <= blocks < config.blocks:
            yield replace(config, blocks=blocks), operations
    for name in ("depth", "max_requests"):
        for value in range(1, getattr(config, name)):
            yield replace(config, **{name: value}), operations
    if config.hash != "sha256":
        yield replace(config, hash="sha256"), operations


def _scaled(operation: op.AnyOperation, old: int, new: int) -> op.AnyOperation:
    """An operation for another block size: as many whole blocks, and as near to their edge."""

    def length(tokens: int) -> int:
        return tokens // old * new + min(tokens % old, max(0, new - 1))

    match operation:
        case op.Submit() if operation.extras.items or operation.extras.embeddings:
            return operation
        case op.Submit():
            tokens = tuple(op.flatten(operation.tokens))
            return replace(operation, tokens=tokens[: max(1, length(len(tokens)))])
        case op.Admit() | op.Extend():
            n = max(1, length(operation.n))
            return replace(operation, n=n, lookahead=min(operation.lookahead, new + 1))
        case op.Evict():
            return replace(operation, boundary=operation.boundary // old * new)
        case _:
            return operation
