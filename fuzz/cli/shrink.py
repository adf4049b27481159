"""`kvproof shrink`."""

from pathlib import Path

import click
import msgspec
from rich.text import Text

from kvproof.fuzz import cases
from kvproof.fuzz.cases import Case, CaseError
from kvproof.fuzz.cli.console import console, print_json
from kvproof.fuzz.cli.device import with_device
from kvproof.fuzz.cli.errors import HOLDS, BadInput
from kvproof.fuzz.cli.failures import shrunk
from kvproof.fuzz.cli.files import check_file
from kvproof.fuzz.reports.wording import plural
from kvproof.spec import operations as op


class Size(msgspec.Struct, frozen=True):
    """How large a case is."""

    operations: int
    blocks: int
    tokens: int

    @classmethod
    def of(cls, case: Case) -> "Size":
        """Measure a case; `tokens` are those of its prompts."""
        tokens = sum(op.count_of(each.tokens) for each in case.operations if isinstance(each, op.Submit))
        return cls(len(case.operations), case.config.blocks, tokens)

    def __str__(self) -> str:
        counted = (self.operations, "operation"), (self.blocks, "block"), (self.tokens, "prompt token")
        return ", ".join(plural(count, thing) for count, thing in counted)


@click.command(short_help="Make a failing case small.")
@click.argument("path", metavar="CASE", type=click.Path(path_type=Path))
@with_device
@click.option("--out", type=click.Path(path_type=Path), help="Where to write; NAME.min.json by default.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON to stdout.")
def command(path: Path, out: Path | None, as_json: bool) -> int:
    """Make a failing case as small as it gets, with the same clause violated.

    The case itself is left as it is, unless --out names it.

    \b
    Examples:
      kvproof shrink found.json                  writes found.min.json
      kvproof shrink found.json --out small.json
    """
    to = console(as_json)
    case = cases.load(path)
    target = out or path.with_name(f"{path.stem}.min.json")
    check_file(target)
    if case.expected.result != "violated":
        raise BadInput(f"{path} expects no violation, so there is nothing to shrink.")
    try:
        small = shrunk(to, case)
    except CaseError as error:
        raise CaseError(f"{path}: {error}") from None
    cases.save(small, target)
    before, after = Size.of(case), Size.of(small)
    if as_json:
        print_json({"case": str(target), "clause": small.expected.clause, "before": before, "after": after})
    else:
        to.print(Text(f"{small.expected.clause} still falls"))
        to.print(Text(f"  before  {before}"))
        to.print(Text(f"  after   {after}"))
        to.print(Text(f"  written to {target}"), soft_wrap=True)
    return HOLDS
