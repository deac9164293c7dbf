"""Paths in the overrides of a sweep file: as the command line reads them, or else beside the file.

A relative path names what lies in the working folder, as for `blockyard train`. What is not there and lies beside the
sweep file is meant there, so that a file and its data work from any folder.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from blockyard.sweep.spec.override_text import to_override

# Options that take the path of a file or a folder.
KEYS = ("data.path", "data.root", "data.splits", "init.from", "objective.teacher", "tokenizer.path")
_NOT_PLAIN = set("[]{}(),*$'\"")  # a list, a pattern, an interpolation or a quoted text


def beside(overrides: Iterable[str], file: Path) -> tuple[str, ...]:
    """The overrides with the absolute path where a relative one exists only beside `file`."""
    return tuple(_beside(text, file.absolute().parent) for text in overrides)


def _beside(override: str, folder: Path) -> str:
    key, _, value = override.partition("=")
    if key.lstrip("+") not in KEYS or not value or _NOT_PLAIN & set(value) or os.path.isabs(value):
        return override
    there = Path(os.path.normpath(folder / value))
    if value.startswith("~") or os.path.lexists(value) or not there.exists():
        return override
    return to_override(key, str(there))
