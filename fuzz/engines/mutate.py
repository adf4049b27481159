"""Mutation testing of the implementation by the oracle, and of the oracle by the seeded faults.

Each mutant is judged in a process of its own, since it may never come back. `judges` says how.
"""

import gc
import multiprocessing
import resource
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Final

import msgspec

from kvproof.fuzz.engines import judges
from kvproof.fuzz.engines.judges import Found
from kvproof.fuzz.faults.mutants import IMPL, ORACLE, Mutant, mutants, mutated

GROUPS: Final = {"impl": IMPL, "oracle": ORACLE}
SECONDS: Final = 60.0
"""After which a mutant has hung."""
MEMORY: Final = 4 << 30
"""Bytes of address space that a mutant may have beyond what it begins with."""


class BaselineError(RuntimeError):
    """What isn't mutated falls already, so that a kill would say nothing. The message is one sentence."""


class Row(msgspec.Struct, frozen=True):
    """What became of a mutant. `by`: the clause that fell, the error, or that it hung; empty if it survived.

    `operations` are those until then.
    """

    group: str
    module: str
    target: str
    line: int
    before: str
    after: str
    killed: bool
    by: str
    operations: int
    seconds: float


def run_mutants(
    progress: Callable[[str], None] = lambda _: None,
    *,
    groups: Sequence[str] = tuple(GROUPS),
    jobs: int = 2,
    choose: Callable[[Mutant], bool] = lambda _: True,
    targets: Callable[[str], bool] = lambda _: True,
) -> list[Row]:
    """Judge all mutants of these groups, or of chosen `targets`; the rows in the order of the mutants.

    Raises `BaselineError`.
    """
    for group in groups:
        if by := _found(group)[0]:
            raise BaselineError(f"without any mutant the judgement of {group} ends with {by}.")
    todo = [
        (group, mutant)
        for group in groups
        for module in GROUPS[group]
        for mutant in mutants(module, targets)
        if choose(mutant)
    ]
    rows: dict[int, Row] = {}
    # What is here already is shared with every process: none of them should walk through it.
    gc.collect()
    gc.freeze()
    for number, row in _side_by_side(todo, jobs):
        rows[number] = row
        killed = sum(each.killed for each in rows.values())
        progress(f"{len(rows):,} of {len(todo):,} mutants, {killed:,} killed")
    return [rows[number] for number in range(len(todo))]


def _side_by_side(todo: Sequence[tuple[str, Mutant]], jobs: int) -> Iterator[tuple[int, Row]]:
    """Judge mutants in so many processes at a time."""
    # Forked, so that each begins with everything loaded.
    context = multiprocessing.get_context("fork")
    running: dict[Connection, tuple[int, BaseProcess, float]] = {}
    waiting = list(enumerate(todo))[::-1]
    while waiting or running:
        while waiting and len(running) < jobs:
            number, (group, mutant) = waiting.pop()
            ours, theirs = context.Pipe(duplex=False)
            process: BaseProcess = context.Process(target=_child, args=(theirs, group, mutant))
            process.start()
            theirs.close()
            running[ours] = number, process, time.perf_counter()
        ready = wait(list(running), timeout=1.0)
        for pipe, (number, process, started) in list(running.items()):
            spent = time.perf_counter() - started
            if pipe not in ready and spent < SECONDS:
                continue
            group, mutant = todo[number]
            by, operations = _answer(pipe) if pipe in ready else ("hung", 0)
            process.kill()
            process.join()
            pipe.close()
            del running[pipe]
            yield (
                number,
                Row(
                    group,
                    mutant.module,
                    mutant.target,
                    mutant.line,
                    mutant.before,
                    mutant.after,
                    bool(by),
                    by,
                    operations,
                    round(spent, 2),
                ),
            )


def _answer(pipe: Connection) -> tuple[str, int]:
    try:
        by, operations = pipe.recv()
    except EOFError:
        return "died", 0
    return str(by), int(operations)


def _child(pipe: Connection, group: str, mutant: Mutant) -> None:
    """Judge one mutant and tell."""
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    limit = used + MEMORY
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    try:
        with mutated(mutant):
            found = _found(group)
    except (Exception, SystemExit) as error:
        found = type(error).__name__, 0
    pipe.send(found)


def _found(group: str) -> Found:
    """What falls, and after how many operations, nothing if all is as it should be."""
    return judges.judged_impl() if group == "impl" else judges.judged_oracle()
