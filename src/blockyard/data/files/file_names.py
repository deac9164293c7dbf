"""The names of files: names that are no data, and spellings of other systems."""

from __future__ import annotations

import logging
import unicodedata
from collections.abc import Callable, Collection, Iterable
from functools import cache
from pathlib import Path

from blockyard.atomic_files import is_regular
from blockyard.errors import UserError, shortened

log = logging.getLogger("blockyard")

# Names, in lower case, that Windows, macOS's archives and network storage leave in folders.
_SYSTEM = frozenset({"thumbs.db", "desktop.ini", "__macosx", "@eadir"})


def is_hidden(name: str) -> bool:
    """Return whether a file or folder of this name is no data: hidden by a leading dot, or left there by a system."""
    return name.startswith(".") or name.lower() in _SYSTEM


def data_files(root: Path, files: Iterable[Path], suffixes: Collection[str] = ()) -> list[Path]:
    """Return the files that are data, sorted. One line of the log counts the others, once in a process.

    root: the folder or archive of the files; its own name hides nothing
    suffixes: of files that are read, in lower case; without any, all are
    """
    depth = len(root.parts)
    data, hidden, others = [], [], []
    for file in sorted(files):
        if any(map(is_hidden, file.parts[depth:])):
            hidden.append(file)
        elif suffixes and file.suffix.lower() not in suffixes:
            others.append(file)
        else:
            data.append(file)
    counts = []
    for kind, left_out in (("hidden or of the system", hidden), ("of other formats", others)):
        if left_out:
            counts.append(f"{len(left_out)} {kind}, such as {left_out[0].relative_to(root)}")
    if counts:
        _report(logging.WARNING if others else logging.INFO, f"{root}: files left out: {'; '.join(counts)}")
    return data


@cache
def _report(level: int, message: str) -> None:
    log.log(level, "%s", message)


def new_file(text: str) -> Path:
    """Return the file that an argument of the command line names. Raises UserError where there is none."""
    path = Path(text).expanduser()
    if not is_regular(path):
        raise UserError(f"no file {shortened(text)}")
    return path


def spelled(name: str, exists: Callable[[str], bool]) -> str | None:
    """Return a file's name as it is on the disk, None where there is no such file. exists: of a spelling.

    Accents may be composed or not, as macOS writes them, and folders may end in the backslash of Windows.
    """
    if exists(name):
        return name
    for path in (name, name.replace("\\", "/")):
        for form in ("NFC", "NFD"):
            spelling = unicodedata.normalize(form, path)
            if exists(spelling):
                return spelling
    return None
