"""The subject of a question: what a file holds, and the options by which blockyard reads it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blockyard.ask.sample import TableSample
from blockyard.config.override_grammar import to_override
from blockyard.data.files.split_names import SPLIT


@dataclass(frozen=True)
class Setting:
    """An override of the sweep file, and the reason for it."""

    key: str
    value: Any
    reason: str = ""

    @property
    def override(self) -> str:
        """The override as it is typed."""
        return to_override(self.key, self.value)


@dataclass(frozen=True)
class FileContents:
    """The data in a file, and what is read from it.

    summary: one line about it
    settings: by which it is read
    sample: where the file is too large to be read whole
    """

    summary: str
    settings: tuple[Setting, ...]
    sample: TableSample | None = None


def data_setting(choice: str, reason: str) -> Setting:
    """Return the choice of `data`."""
    return Setting("data", choice, reason)


def path_setting(path: Path, key: str = "data.path") -> Setting:
    """Return the option that names a file or folder."""
    return Setting(key, str(path))


def molecules(path: Path, summary: str, reason: str, keys: Sequence[str]) -> FileContents:
    """Return molecules, whose splits are drawn where no key or column names them."""
    read = [data_setting("molecules", reason), path_setting(path)]
    if SPLIT not in keys:
        read.append(Setting("data.split", None, f"splits are drawn: there is no {SPLIT}"))
    return FileContents(summary, tuple(read))
