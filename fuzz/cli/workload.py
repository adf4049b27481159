"""`kvproof workload`."""

from pathlib import Path
from typing import Any

import click
from rich.text import Text

from kvproof.fuzz.cli.console import console, live, print_json, seconds, verdict
from kvproof.fuzz.cli.errors import CODES
from kvproof.fuzz.reports.terminal import one_line
from kvproof.fuzz.reports.wording import plural


@click.command(short_help="Run a request trace.")
@click.argument("trace", metavar="TRACE")
@click.option("--blocks", type=click.IntRange(min=1), required=True, help="Usable blocks of the pool.")
@click.option("--limit", type=click.IntRange(min=1), help="Only the first requests.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON to stdout.")
def command(trace: str, blocks: int, limit: int | None, as_json: bool) -> int:
    """Run a request trace through the allocator, with every record judged.

    TRACE is one that ships (mooncake_conversation_2k, mooncake_conversation,
    mooncake_synthetic, claude_code_sessions), whose hits and evictions must be those of
    definition D4; or a file in one of their formats, .jsonl, .jsonl.gz or .jsonl.xz.

    \b
    Examples:
      kvproof workload mooncake_conversation_2k --blocks 1000
      kvproof workload conversation.jsonl.gz --blocks 20000 --limit 500 --json
    """
    from kvproof.fuzz.engines import traces, workload

    to = console(as_json)
    read = traces.read_trace(traces.bundled(trace) if trace in traces.BUNDLED else Path(trace))
    known = traces.expected(read).get(blocks) if limit is None or limit >= len(read.lines) else None
    total = min(limit or len(read.lines), len(read.lines))
    with live(
        to, lambda count, spent: Text(f"{count} of {plural(total, 'request')}, {seconds(spent)}")
    ) as line:
        line.count = "0"

        def progress(done: int) -> None:
            line.count = f"{done:,}"

        result = workload.run(read, blocks, limit=limit, progress=progress)
    violations: list[dict[str, Any]] = []
    if result.violation is not None:
        found = result.violation
        violations.append({"clause": found.code, "sentence": found.sentence, "message": one_line(found)})
    counted = (result.hit_blocks, result.evictions)
    differs = known is not None and not violations and counted != known
    word = "violated" if violations or differs else "holds" if result.requests else "undecided"
    rate = round(result.operations / max(result.seconds, 1e-9))
    if as_json:
        print_json(
            {
                "trace": read.name,
                "blocks": blocks,
                "requests": result.requests,
                "hit_blocks": result.hit_blocks,
                "evictions": result.evictions,
                "expected": {"hit_blocks": known[0], "evictions": known[1]} if known else None,
                "violations": violations,
                "operations": result.operations,
                "ops_per_second": rate,
                "verdict": word,
            }
        )
        return CODES[word]
    for each in violations:
        to.print(Text(f"✗ {each['message']}"))
    counts = (result.requests, "request"), (result.hit_blocks, "hit block"), (result.evictions, "eviction")
    to.print(Text(f"{read.name}, {plural(blocks, 'block')}"))
    to.print(Text(f"  {', '.join(plural(*each) for each in counts)}"))
    if known is not None:
        says = f"definition D4 says {plural(known[0], 'hit block')}, {plural(known[1], 'eviction')}"
        to.print(Text(f"  {'but' if differs else 'as'} {says}"))
    tail = f": {plural(result.operations, 'operation')}, {rate:,} a second, {seconds(result.seconds)}"
    to.print(verdict(word) + Text(tail, ""))
    return CODES[word]
