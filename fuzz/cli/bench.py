"""`kvproof bench`."""

from pathlib import Path

import click
from msgspec.structs import replace
from rich.text import Text

from kvproof.fuzz.cli.console import console, live, print_json, seconds
from kvproof.fuzz.cli.errors import HARNESS_FAULT, HOLDS, UNDECIDED, BadInput
from kvproof.fuzz.cli.files import check_folder, write_whole
from kvproof.fuzz.engines.bench import OURS, Report, contenders_of, document, run
from kvproof.fuzz.engines.bench_harness import NAMES, measure
from kvproof.fuzz.engines.bench_rows import Row, rows
from kvproof.fuzz.reports import bench as report_of
from kvproof.fuzz.reports.terminal import trimmed

REPEAT = 5
QUICK = 2


@click.command(short_help="Measure our manager beside released ones.")
@click.option(
    "--against", metavar="A,B,…", default="vllm==0.13.0,0.22.1,0.32.0", show_default=True, help="Releases."
)
@click.option(
    "--repeat",
    type=click.IntRange(1, 50),
    help=f"Repetitions of each row.  [default: {REPEAT}; {QUICK} with --quick]",
)
@click.option("--only", metavar="TEXT", default="", help="Only rows whose name contains it.")
@click.option("--device", type=click.Choice(["cpu"]), help="The kernels instead, beside numpy and torch.")
@click.option("--quick", is_flag=True, help="Small repetitions, pools up to 100k blocks.")
@click.option(
    "--record",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Write bench.json and bench.md here, if every row was measured.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON to stdout.")
def command(
    against: str,
    repeat: int | None,
    only: str,
    device: str | None,
    quick: bool,
    record: Path | None,
    as_json: bool,
) -> int:
    """Measure our manager beside released ones, and the harness that judges it.

    Rows are of the pool, decode, prompts, hashing, construction and memory. Each contender
    runs in a process of its own and they take turns. A row counts when all have done the same
    work: the same hits, blocks and evictions. The harness is measured last, with the mix of its
    operations.

    With --device it is the device's kernels that are measured: writes of every element and layout
    beside torch, contents and digests beside numpy, a fuzz step's work. A record is device.json
    and device.md then. A GPU has its own trial, ci/gpu.

    \b
    Examples:
      kvproof bench
      kvproof bench --against vllm==0.9.2,0.32.0 --only 'prompt 32k'
      kvproof bench --only harness
      kvproof bench --device cpu
      kvproof bench --record ci/recorded
    """
    if record is not None:
        if only:
            raise BadInput("a record has every row; leave out --only or --record.")
        check_folder(record)
    if device is not None:
        from kvproof.fuzz.cli import bench_device

        rounds = repeat or (bench_device.QUICK if quick else bench_device.ROUNDS)
        return bench_device.run(rounds, only, record, as_json)
    others = contenders_of(against)
    chosen = _chosen(only, quick)
    to = console(as_json)
    with live(to, lambda count, spent: Text(f"{count}, {seconds(spent)}")) as line:
        line.count = "starting"

        def progress(text: str) -> None:
            line.count = text

        times = repeat or (QUICK if quick else REPEAT)
        report = run(others if chosen else [], chosen, times, quick=quick, progress=progress)
        report = replace(report, judging=measure(times, only, progress))
    if as_json:
        print_json(document(report))
    else:
        with trimmed(to):
            for table in report_of.tables(report):
                to.print(table)
                to.print()
            if report.outcomes:
                to.print(Text(f"{report_of.machine(report)} {report_of.reading(report)}"))
                to.print(Text(report_of.wins(report)))
    for remark in report_of.remarks(report):
        to.print(Text(remark))
    if record is not None:
        if report.complete:
            keep(report, record)
        else:
            to.print(Text(f"nothing was written to {record}: not everything was measured."))
    return code(report)


def _chosen(only: str, quick: bool) -> list[Row]:
    """The rows whose name contains the text."""
    chosen = [row for row in rows(quick) if only.lower() in row.name]
    if not chosen and not any(only.lower() in name.lower() for name in NAMES):
        names = ", ".join([*(row.name for row in rows(quick)), *NAMES])
        raise BadInput(f"no row has {only!r} in its name; there are {names}.")
    return chosen


def keep(report: Report, folder: Path) -> None:
    """Write the record: the figures and the table."""
    import msgspec

    figures = msgspec.json.encode(document(report), order="deterministic")
    table = report_of.markdown(report).encode()
    write_whole(folder / "bench.json", msgspec.json.format(figures, indent=2) + b"\n")
    write_whole(folder / "bench.md", table)


def code(report: Report) -> int:
    """4 when somebody broke or did other work, 2 when nobody was there to compare with our manager."""
    broken = any(each.state == "errored" for each in report.contenders)
    if broken or any(outcome.reason for outcome in report.outcomes):
        return HARNESS_FAULT
    return HOLDS if set(report.measured) > {OURS} or not report.outcomes else UNDECIDED
