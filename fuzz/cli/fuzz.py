"""`kvproof fuzz`."""

import time
from collections.abc import Callable
from pathlib import Path

import click
from rich.text import Text

from kvproof.fuzz import devices
from kvproof.fuzz.cli.console import console, live, print_json, seconds, verdict
from kvproof.fuzz.cli.device import level_3, with_device
from kvproof.fuzz.cli.errors import CODES
from kvproof.fuzz.cli.failures import FOLDER, handle
from kvproof.fuzz.cli.files import check_folder
from kvproof.fuzz.engines.soak import Result, soak
from kvproof.fuzz.faults import by_id, planted
from kvproof.fuzz.reports.wording import mixed, plural

ENGINES = ("soak", "hypothesis")


def engine_of(name: str) -> Callable[..., Result]:
    """The engine of a name; Hypothesis is loaded only for its own."""
    if name == "soak":
        return soak
    from kvproof.fuzz.engines.stateful import stateful

    return stateful


@click.command(short_help="Drive the allocator with random operations.")
@click.option("--engine", type=click.Choice(ENGINES), default="soak", show_default=True, help="What decides.")
@click.option(
    "--ops", type=click.IntRange(min=1), default=10_000, show_default=True, help="Operations at least."
)
@click.option("--seed", type=int, default=0, show_default=True, help="Same seed, same operations.")
@click.option("--no-policy", is_flag=True, help="Do not compare with the reference policy.")
@click.option("--fault", "faults", metavar="ID", multiple=True, help="Plant a seeded fault first.")
@click.option(
    "--out", type=click.Path(path_type=Path), default=FOLDER, show_default=True, help="For failing cases."
)
@with_device
@click.option("--json", "as_json", is_flag=True, help="Print JSON to stdout.")
def command(
    engine: str, ops: int, seed: int, no_policy: bool, faults: tuple[str, ...], out: Path, as_json: bool
) -> int:
    """Drive the allocator with random operations and judge each of them.

    A violation is shrunk, written to a case file, and reported; the exit code is 1 then.

    \b
    Examples:
      kvproof fuzz --ops 20000 --seed 7
      kvproof fuzz --engine hypothesis --ops 5000 --json
      kvproof fuzz --fault stale-hash --no-policy
      kvproof fuzz --device cpu-checked --ops 5000
    """
    chosen = tuple(by_id(name) for name in faults)
    check_folder(out)
    to = console(as_json)
    run = engine_of(engine)
    with live(to, lambda count, spent: Text(f"{engine}, {count}, {seconds(spent)}")) as line:
        line.count = plural(0, "operation")

        def progress(done: int) -> None:
            line.count = plural(done, "operation")

        start = time.perf_counter()
        with planted(chosen):
            result = run(ops, seed, faults=chosen, compare_policy=not no_policy, progress=progress)
        spent = time.perf_counter() - start
    word = result.case.expected.result if result.case else "holds" if result.operations else "undecided"
    rate = round(result.operations / max(spent, 1e-9))
    found = [handle(to, result.case, out, why=result.error)] if result.case else []
    if as_json:
        print_json(
            {
                "engine": engine,
                "seed": seed,
                "device": devices.current().name,
                "faults": list(faults),
                "operations": result.operations,
                "ops_per_second": rate,
                "mix": result.mix,
                "violations": found,
                "digest": result.digest,
                "verdict": word,
            }
        )
    else:
        if found:
            to.print()
        tail = f": {plural(result.operations, 'operation')}, {rate:,} a second, digest {result.digest}"
        to.print(verdict(word) + Text(tail, ""))
        to.print(Text(f"  {mixed(result.mix)}\n  {level_3()}", "dim"))
    return CODES[word]
