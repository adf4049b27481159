"""`kvproof demo`."""

import click
import msgspec
from rich.text import Text

from kvproof.fuzz.cli import smoke
from kvproof.fuzz.cli.console import console, seconds
from kvproof.fuzz.cli.errors import HOLDS, HarnessFault
from kvproof.fuzz.cli.failures import FOLDER, finding, keep, shrunk
from kvproof.fuzz.engines.soak import soak
from kvproof.fuzz.faults import planted
from kvproof.fuzz.reports.terminal import report
from kvproof.fuzz.reports.wording import plural

OPERATIONS = 5_000
SEEDS = (0, 1, 2)
"""Several finds, of which the smallest is shown."""


@click.command(short_help="A fault found, shrunk and explained.")
def command() -> int:
    """Plant the stale-hash fault, find it, shrink it, explain it, in a few seconds.

    The fault is planted in this process only. The case goes to kvproof-failures, or to a
    temporary folder where that cannot be written.

    \b
    Example:
      kvproof demo
    """
    import time

    to = console()
    start = time.perf_counter()
    fault = smoke.canary()
    if fault is None:
        raise HarnessFault(f"no seeded fault breaks {smoke.CANARY}, so there is nothing to show")
    to.print(Text("1. Plant a fault in the reference manager, in this process only:", "bold"))
    to.print(Text(f"   {fault.title}."))
    to.print(Text("2. Fuzz it. Every operation is judged by the specification:", "bold"))
    found = []
    with planted([fault]):
        for seed in SEEDS:
            result = soak(OPERATIONS, seed, faults=[fault], compare_policy=False)
            if result.case is None or result.case.expected.clause != fault.clause:
                raise HarnessFault(f"the planted fault {fault.id} was not found with seed {seed}")
            found.append(result.case)
            count = plural(result.operations, "operation")
            to.print(Text(f"   seed {seed}: {fault.clause} falls after {count}."))
    to.print(Text("3. Shrink each, and keep the smallest:", "bold"))
    small = min((shrunk(to, case) for case in found), key=lambda case: len(case.operations))
    small = msgspec.structs.replace(small, title=fault.title, faults=(fault.id,))
    before = ", ".join(str(len(case.operations)) for case in found)
    to.print(Text(f"   {before} operations became {len(small.operations)}."))
    to.print(Text("4. Explain it:", "bold"))
    path = keep(small, FOLDER, fall_back=True)
    report(to, finding(small, str(path)))
    to.print()
    to.print(Text(f"That took {seconds(time.perf_counter() - start)}. What to try next:", "bold"))
    for line, what in (
        (f"kvproof explain {fault.clause}", "what the clause means and where to look"),
        ("kvproof faults", "every seeded fault, found one by one"),
        ("kvproof check", "the reference manager without a fault: all phases"),
    ):
        to.print(Text(f"  {line:<28} {what}"))
    return HOLDS
