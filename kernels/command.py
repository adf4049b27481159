"""What the kernels' own programs have in common: arguments that are refused in one sentence, with 3."""

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final, NoReturn

USAGE: Final = 3
"""As of `kvproof` itself."""


class Parser(argparse.ArgumentParser):
    """A parser of arguments whose errors are one sentence."""

    def error(self, message: str) -> NoReturn:
        """End the program with the first line of what is wrong."""
        self.exit(USAGE, f"{self.prog}: {message.splitlines()[0].rstrip('.')}.\n")


def at_least(least: int) -> Callable[[str], int]:
    """An argument that is a number, and not a smaller one."""

    def number(text: str) -> int:
        if (value := int(text)) < least:
            raise argparse.ArgumentTypeError(f"{value} is less than {least}")
        return value

    return number


def writable(text: str) -> Path:
    """An argument that is a folder to write to; it is made where there is none."""
    path = Path(text)
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise argparse.ArgumentTypeError(f"cannot write to folder {path}: {error.strerror}") from None
    return path
