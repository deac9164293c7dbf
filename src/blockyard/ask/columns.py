"""The roles of a table's columns: numbers, texts, classes, times, and the names of images and sounds."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePosixPath

from blockyard.data.files.images import SUFFIXES as IMAGES
from blockyard.data.files.sounds import SUFFIXES as SOUNDS

MOST_CLASSES = 100  # distinct cells of a column that is taken for classes
MOST_CODES = 20  # distinct whole numbers of a column that is taken for classes
REPEATED = 5  # rows for each class, in the mean
TARGET_NAMES = (
    *("label", "labels", "class", "target", "y", "category", "species", "diagnosis", "outcome", "sentiment"),
    *("rating", "stars", "score", "price", "quality", "survived", "churn"),
)
TIME_NAMES = ("year", "month", "week", "day", "date", "hour", "time", "step", "t")  # of a column that counts times
# With points a date has three parts: two are a number.
_TIME = re.compile(r"(\d{1,4}[-/]\d{1,2}([-/]\d{1,4})?|\d{1,4}\.\d{1,2}\.\d{1,4})([T ]\d{1,2}:\d{2}.*)?")
_WITH_COMMA = re.compile(r"[-+]?\d+([.,]\d+)*")
_BETWEEN_LABELS = ("|", ";", ",")
MOSTLY = 0.5  # share of the cells from which on those that are no numbers are named


@dataclass(frozen=True)
class TableColumn:
    """A column of a table. cells: as text, without the blank ones; num_rows: of the table"""

    name: str
    cells: Sequence[str]
    num_rows: int

    @cached_property
    def distinct(self) -> set[str]:
        """The cells, each once."""
        return set(self.cells)

    @cached_property
    def numeric(self) -> bool:
        """True where every cell is a number."""
        return bool(self.cells) and all(_is_number(cell) for cell in self.distinct)

    @property
    def with_comma(self) -> str | None:
        """A cell such as 1,5 or 1,234, where every cell is a number that may have a comma; else None."""
        if self.numeric or not all(_WITH_COMMA.fullmatch(cell) for cell in self.distinct):
            return None
        return next((cell for cell in self.cells if "," in cell), None)

    @property
    def not_a_number(self) -> str | None:
        """The first cell that is not a number, such as n/a, in a column that mostly has numbers; else None."""
        others = [cell for cell in self.cells if not _is_number(cell)]
        if not others or len(others) > (1 - MOSTLY) * len(self.cells):
            return None
        return others[0]

    @property
    def several_labels(self) -> str | None:
        """A cell such as red|round, where the cells of classes combine fewer labels; else None."""
        for separator in _BETWEEN_LABELS:
            combined = [cell for cell in self.distinct if separator in cell]
            labels = {label.strip() for cell in self.distinct for label in cell.split(separator)}
            if combined and self.classes and len(labels) < len(self.distinct):
                return min(combined)
        return None

    @property
    def counted(self) -> bool:
        """True for the numbers of the rows, which say nothing about them: each is there once, and they rise by one."""
        if len(self.distinct) < self.num_rows or not all(cell.isdigit() for cell in self.distinct):
            return False
        numbers = [int(cell) for cell in self.cells]
        return max(numbers) - min(numbers) == self.num_rows - 1

    @cached_property
    def times(self) -> bool:
        """True where every cell is a date, each once; and for the years or other units that a column counts by name."""
        if self.counted and self.name.lower() in TIME_NAMES:
            return True
        return len(self.distinct) == self.num_rows and all(_TIME.fullmatch(cell.strip()) for cell in self.distinct)

    @property
    def images(self) -> bool:
        """True where every cell names an image file."""
        return self._are_files(tuple(IMAGES))

    @property
    def sounds(self) -> bool:
        """True where every cell names a sound file."""
        return self._are_files(SOUNDS)

    @property
    def classes(self) -> bool:
        """True where few cells are distinct, and each of them is there several times."""
        most = MOST_CLASSES
        if self.numeric:
            most = MOST_CODES
        whole = not self.numeric or all(float(cell).is_integer() for cell in self.distinct)
        return whole and len(self.distinct) <= min(most, self.num_rows / REPEATED)

    @property
    def texts(self) -> bool:
        """True for running text: cells with several words, or of many letters."""
        if self.numeric or self.times or not self.cells or self.images or self.sounds:
            return False
        return not self.classes and self.mean_length > 12 and not self.not_a_number

    @property
    def mean_length(self) -> float:
        """The mean number of characters of a cell."""
        return sum(map(len, self.cells)) / max(1, len(self.cells))

    def _are_files(self, suffixes: tuple[str, ...]) -> bool:
        if not self.cells:
            return False
        return all(PurePosixPath(cell.replace("\\", "/")).suffix.lower() in suffixes for cell in self.distinct)


def named_target(columns: Sequence[TableColumn]) -> TableColumn | None:
    """Return the column whose name says that it is predicted; None without one."""
    by_name = {column.name.lower(): column for column in columns}
    for name in TARGET_NAMES:
        if name in by_name:
            return by_name[name]
    return None


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True
