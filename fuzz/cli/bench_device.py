"""`kvproof bench --device`: the kernels on this machine, beside numpy and torch."""

from pathlib import Path

import msgspec
from rich.text import Text

from kvproof.fuzz.cli.console import console, live, print_json, seconds
from kvproof.fuzz.cli.errors import HOLDS, BadInput
from kvproof.fuzz.cli.files import write_whole
from kvproof.fuzz.engines.bench import machine_now
from kvproof.fuzz.reports import bench_device as report_of
from kvproof.fuzz.reports.terminal import trimmed
from kvproof.kernels import bench
from kvproof.kernels.builds import BuildError

ROUNDS, QUICK = 31, 5


def run(rounds: int, only: str, record: Path | None, as_json: bool) -> int:
    """Measure, show and record. Raises `BadInput` where there is no such row or no compiler."""
    if not any(only in name for name in bench.names()):
        raise BadInput(f"no row has {only!r} in its name; there are {', '.join(bench.names())}.")
    to = console(as_json)
    with live(to, lambda count, spent: Text(f"{count}, {seconds(spent)}")) as line:

        def progress(name: str) -> None:
            line.count = name

        try:
            rows = bench.measure(rounds, only, progress)
        except BuildError as error:
            raise BadInput(f"there is no device cpu here: {str(error).splitlines()[0]}") from None
    machine = machine_now()
    document = report_of.document(rows, rounds, machine)
    if as_json:
        print_json(document)
    else:
        with trimmed(to):
            to.print(report_of.table(rows))
            to.print()
            to.print(Text(report_of.READING.format(rounds=rounds)))
            to.print(Text(report_of.summary(rows)))
    if record is not None:
        figures = msgspec.json.encode(document, order="deterministic")
        write_whole(record / "device.json", msgspec.json.format(figures, indent=2) + b"\n")
        write_whole(record / "device.md", report_of.markdown(rows, rounds, machine).encode())
    return HOLDS
