"""Where output goes: tables and live lines on one console, JSON on stdout alone."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click
import msgspec
from rich.console import Console
from rich.live import Live
from rich.text import Text

STYLES = {
    "holds": "green",
    "proved": "green",
    "violated": "bold red",
    "refuted": "bold red",
    "blind": "bold red",
    "errored": "bold red",
    "undecided": "yellow",
    "skipped": "dim",
}


def console(json: bool = False) -> Console:
    """Everything that a person reads: stdout, or stderr where stdout is kept for JSON."""
    return Console(stderr=json, highlight=False)


def print_json(value: object) -> None:
    """The one JSON document of a command."""
    encoded = msgspec.json.encode(value, order="deterministic", enc_hook=str)
    click.echo(msgspec.json.format(encoded, indent=2).decode())


def verdict(word: str) -> Text:
    """A verdict in its colour."""
    return Text(word, STYLES.get(word, ""))


def seconds(value: float) -> str:
    """A duration."""
    return f"{value:.1f} s" if value < 100 else f"{value:.0f} s"


class Line:
    """A line that is redrawn while its work goes on. `count` is what there is to say of the progress."""

    def __init__(self, draw: Callable[[str, float], Text]) -> None:
        self._draw = draw
        self._start = time.perf_counter()
        self.count = ""

    @property
    def seconds(self) -> float:
        """Since the line began."""
        return time.perf_counter() - self._start

    def __rich__(self) -> Text:
        return self._draw(self.count, self.seconds)


@contextmanager
def live(to: Console, draw: Callable[[str, float], Text]) -> Iterator[Line]:
    """Show a live line while the block runs; it vanishes at the end. Nothing where it can't be redrawn."""
    line = Line(draw)
    if not to.is_terminal:
        yield line
        return
    with Live(line, console=to, refresh_per_second=8, transient=True):
        yield line


def say(text: str) -> None:
    """A sentence on stderr."""
    print(f"kvproof: {text}", file=sys.stderr)
