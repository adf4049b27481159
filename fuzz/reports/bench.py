"""The table of a bench, for a terminal and as Markdown."""

import math
from collections.abc import Iterator, Sequence
from typing import Final

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from kvproof.fuzz.engines.bench import OURS, Judging, Outcome, Rate, Report, Value
from kvproof.fuzz.engines.bench_harness import EXPLORED
from kvproof.fuzz.engines.bench_rows import BLOCK_SIZE, Work
from kvproof.fuzz.reports.wording import plural

WIDE: Final = 3
"""Others in one table, so that it fits into 80 columns."""
_WORK: Final = ("times", "blocks taken", "tokens hit", "keys lost", "keys made")


def short(value: float) -> str:
    """Three digits, as they are read: `0.262`, `48.6`, `2,548`, `97.6k`, `2.33M`."""
    if value >= 999_500:
        return f"{_digits(value / 1e6)}M"
    if value >= 9_995:
        return f"{_digits(value / 1e3)}k"
    return f"{value:,.0f}" if value >= 999.5 else _digits(value)


def _digits(value: float) -> str:
    if value <= 0:
        return "0"
    decimals = max(0, 2 - math.floor(math.log10(value) + 1e-9))
    return f"{value:.{min(decimals, 4)}f}"


def percent(share: float) -> str:
    """A share."""
    return f"{100 * share:.0f} %" if share >= 0.0995 else f"{100 * share:.1f} %"


# --- sentences ----------------------------------------------------------------------------


def machine(report: Report) -> str:
    """What it ran on, and how quiet that was."""
    it = report.machine
    load = "" if it.load is None else f", load {it.load}"
    return (
        f"{plural(it.cores, 'core')}, Python {it.python}, {it.system}{load}; "
        f"the measured process had a core for {percent(report.share)} of the time."
    )


def reading(report: Report) -> str:
    """How to read the table."""
    return (
        f"CPU time, median of {report.repeat} in turn; block size {BLOCK_SIZE}, one full-attention group, "
        f"events off, collector on and frozen after set-up. × is how many times as good {OURS} is as the "
        "best of the others, above 1 it wins, 1.00 is equal. Spread is (max − min) / median, the widest in "
        "the row."
    )


def wins(report: Report) -> str:
    """In how many rows ours is the best, and in how many no other is better."""
    standings = [outcome.standing for outcome in report.outcomes if outcome.ratio is not None]
    if not standings:
        return "There was nothing to compare with."
    ahead, equal = standings.count("ahead"), standings.count("equal")
    also = f" and equal in {equal}" if equal else ""
    return f"{OURS} is ahead in {ahead} of {plural(len(standings), 'row')}{also}."


def remarks(report: Report) -> Iterator[str]:
    """Who was not measured, and which rows do not count."""
    for each in report.contenders:
        if each.state != "measured":
            yield f"{each.name}: {each.state}: {each.reason}"
    for outcome in report.outcomes:
        if outcome.reason:
            yield f"{outcome.row.name} does not count: {outcome.reason}"


# --- terminal -----------------------------------------------------------------------------


def tables(report: Report) -> Iterator[RenderableType]:
    """The rates, in as many tables as the others need, and the work behind them."""
    others = [name for name in report.measured if name != OURS]
    if report.outcomes:
        for start in range(0, max(1, len(others)), WIDE):
            yield _rates(report, [OURS, *others[start : start + WIDE]])
        yield _work(report)
    if report.judging is not None:
        yield _judging(report.judging)


def _rates(report: Report, names: Sequence[str]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    table.add_column("", no_wrap=True)
    table.add_column("", no_wrap=True)
    for name in (*names, "×", "spread"):
        table.add_column(name.replace("==", "\n"), justify="right", no_wrap=True, vertical="bottom")
    for outcome in report.outcomes:
        cells = [_cell(outcome.values.get(name)) for name in names]
        table.add_row(outcome.row.name, outcome.row.unit, *cells, _ratio(outcome), _spread(outcome))
    return table


def _cell(value: Value | None) -> str:
    return short(value.median) if value is not None else "–"


def _ratio(outcome: Outcome) -> Text:
    if outcome.ratio is None:
        return Text("–", "dim")
    styles = {"ahead": "green", "equal": "", "behind": "red"}
    return Text(f"{outcome.ratio:.2f}", styles[outcome.standing])


def _spread(outcome: Outcome) -> str:
    return percent(max((value.spread for value in outcome.values.values()), default=0.0))


def _work(report: Report) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold", title_justify="left")
    table.title = Text("Work of one repetition, the same for all", "dim")
    table.add_column("", no_wrap=True)
    for name in _WORK:
        table.add_column(name, justify="right")
    for outcome in report.outcomes:
        table.add_row(outcome.row.name, *_counts(outcome))
    return table


def _counts(outcome: Outcome) -> list[str]:
    work: Work = outcome.work
    times = f"{outcome.row.count:,}"
    return [times, *(f"{count:,}" for count in (work.taken, work.hit, work.evicted, work.keyed))]


def _judging(judging: Judging) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold", title_justify="left")
    table.title = Text(f"The harness. {overhead(judging)}".rstrip(), "dim")
    for name in ("", *_JUDGED):
        table.add_column(name, justify="right" if name else "left")
    for rate in judging.rates:
        table.add_row(rate.name.removeprefix("harness: "), *_judged(rate))
    return table


_JUDGED: Final = ("operations/s", "spread", "allocations", "hits", "refusals", "evictions")


def _judged(rate: Rate) -> list[str]:
    rates = [short(rate.value.median), percent(rate.value.spread)]
    if (mix := rate.mix) is None:
        return [*rates, *"–" * 4]
    counts = (mix.allocations, mix.hits, mix.refusals, mix.evictions)
    return [*rates, *(f"{count:,}" for count in counts)]


def overhead(judging: Judging) -> str:
    """What judging costs, where that was measured."""
    if judging.overhead is None:
        return ""
    first = judging.rates[0].name.removeprefix("harness: ")
    return f"A judged operation ({first}) takes {judging.overhead:.1f} times the manager's part of it."


# --- Markdown -----------------------------------------------------------------------------


def markdown(report: Report) -> str:
    """The whole report as a document."""
    names = report.measured
    head = ["", "unit", *(name.replace("==", " ") for name in names), "×", "best other"]
    rates = [_line(outcome, names) for outcome in report.outcomes]
    work = [[outcome.row.name, *_counts(outcome)] for outcome in report.outcomes]
    parts = [
        "# Bench",
        "Written by `kvproof bench --record`; nothing here is typed.",
        f"{machine(report)} {plural(round(report.seconds), 'second')} in all."
        + (" Quick: small repetitions." if report.quick else ""),
        f"{reading(report)} Behind each median stands its own.",
        _grid(head, rates),
        wins(report),
        "## Work of one repetition, the same for all",
        _grid(["", *_WORK], work),
    ]
    if report.judging is not None:
        judged = [[rate.name.removeprefix("harness: "), *_judged(rate)] for rate in report.judging.rates]
        parts += [
            "## The harness",
            "Judged operations a second of CPU time on the reference, pools of 3 to 12 blocks, every clause "
            "of the level on each operation. Exploration does every sequence of its preset, where each "
            f"transition is an operation; median of {min(EXPLORED, report.repeat)}. "
            f"{overhead(report.judging)}".rstrip(),
            _grid(["", *_JUDGED], judged),
        ]
    return "\n\n".join(parts) + "\n"


def _line(outcome: Outcome, names: Sequence[str]) -> list[str]:
    values = [_with_spread(outcome.values.get(name)) for name in names]
    ratio = f"{outcome.ratio:.2f}" if outcome.ratio is not None else "–"
    return [outcome.row.name, outcome.row.unit, *values, ratio, _plain(outcome.best_other)]


def _with_spread(value: Value | None) -> str:
    return f"{short(value.median)} ({percent(value.spread)})" if value is not None else "–"


def _plain(name: str) -> str:
    return name.replace("==", " ") or "–"


def _grid(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; figures to the right."""
    words = {"", "unit", "best other"}
    rule = "|" + "|".join("---" if name in words else "---:" for name in head) + "|"
    lines = ["| " + " | ".join(cells) + " |" for cells in (head, *rows)]
    return "\n".join([lines[0], rule, *lines[1:]])
