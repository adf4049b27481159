"""The option `--device`: where a command's devices run."""

import functools
from collections.abc import Callable
from typing import Any

import click
from rich.console import Console
from rich.text import Text

from kvproof.fuzz import devices
from kvproof.fuzz.cli.console import live, say, seconds


def with_device(run: Callable[..., int]) -> Callable[..., int]:
    """Give a command the option; while it runs, devices are made on the backend that was chosen."""

    @click.option(
        "--device",
        type=click.Choice(devices.NAMES),
        default=devices.DEFAULT,
        show_default=True,
        help="Where device memory is and its kernels run.",
    )
    @functools.wraps(run)
    def command(*args: Any, device: str, **options: Any) -> int:
        with live(Console(stderr=True), _building):
            backend = devices.make(device, say)
        with devices.using(backend):
            return run(*args, **options)

    return command


def _building(_: str, spent: float) -> Text:
    return Text(f"building the device's kernels, {seconds(spent)}")


def level_3() -> str:
    """Which backend runs, for the line that sums a command up."""
    return f"level 3 on {devices.current().name}"


def on_device() -> str:
    """The option as a command needs it to run where this one does."""
    name = devices.current().name
    return "" if name == devices.DEFAULT else f" --device {name}"


def elsewhere() -> str:
    """Which backend runs, where it isn't the usual one."""
    return "" if devices.current().name == devices.DEFAULT else f", {level_3()}"
