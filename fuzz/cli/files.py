"""Places to write: tried before the work begins, written whole or not at all."""

import os
import tempfile
from pathlib import Path

from kvproof.fuzz.cli.errors import BadInput


def check_folder(folder: Path) -> None:
    """Make sure that files can be written below a folder that may not exist yet. Leaves no trace."""
    place = folder.absolute()
    while not os.path.lexists(place) and place != place.parent:
        place = place.parent
    try:
        with tempfile.TemporaryFile(dir=place):
            pass
    except OSError as error:
        raise BadInput(f"cannot write to folder {folder}: {error.strerror}.") from None


def check_file(path: Path) -> None:
    """Make sure that a file can be written here."""
    if path.is_dir():
        raise BadInput(f"cannot write {path}: it is a folder.")
    try:
        check_folder(path.parent)
    except BadInput as error:
        raise BadInput(str(error).replace(f"to folder {path.parent}", str(path))) from None


def write_whole(path: Path, data: bytes) -> None:
    """Write a file whole or not at all."""
    made = ""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
            made = file.name
            file.write(data)
        os.chmod(made, 0o644)
        os.replace(made, path)
    except OSError as error:
        if made:
            Path(made).unlink(missing_ok=True)
        raise BadInput(f"cannot write {path}: {error.strerror}.") from None
