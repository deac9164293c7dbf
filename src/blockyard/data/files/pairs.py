"""Reading pairs of texts from tab-separated columns."""

from __future__ import annotations

import csv
import re
import zlib
from pathlib import Path

from blockyard.data.files.split_names import SPLIT, SPLIT_NAMES, SPLIT_NUMBERS, split_number
from blockyard.data.files.unpacked import open_text

Pair = tuple[str, str]  # source, target
_NAME = re.compile(r"[A-Za-z_][\w-]{0,19}")  # of a column


def read_pairs(path: Path, source: str, target: str) -> tuple[list[Pair], list[int] | None]:
    """Read the pairs of a file and the split of each (0 train, 1 validation, 2 test) from its column `split`.

    The second result is None for a file without that column.

    source, target: column names from the header line, or column numbers from 1; with numbers and no column
        `split`, the file has no header line
    Raises ValueError for a file that is not such a table.
    """
    lines = _lines(path)
    header = lines[0][1] if lines else []
    has_split = SPLIT in header
    has_header = has_split or not (source.isdigit() and target.isdigit())
    names = header if has_header else []  # a first line of texts may hold a number, which names no column
    source_column = _column(path, header, names, "source", source)
    target_column = _column(path, header, names, "target", target)
    required = len(header) if has_split else 1 + max(source_column, target_column)
    pairs: list[Pair] = []
    splits: list[str] = []
    for number, row in lines[1:] if has_header else lines:
        if len(row) < required:
            raise ValueError(
                f"line {number} of {path} has {len(row)} columns, too few: expected {required} separated by tabs"
            )
        pairs.append((row[source_column], row[target_column]))
        if has_split:
            splits.append(row[header.index(SPLIT)])
    return pairs, _splits(path, splits) if has_split else None


def fitting_sides(path: Path, source: str, target: str) -> tuple[str, str]:
    """Return the columns of a file if it has them, else its first two.

    The first two are named as in the first line where that looks like a header.

    Raises ValueError as `read_pairs` does.
    """
    lines = [cells for _, cells in _lines(path)]
    if not lines:
        return source, target
    header = lines[0]
    if source in header and target in header:
        return source, target
    names = [name for name in header if name != SPLIT]
    others = [cell for cells in lines[1:] for cell in cells]
    texts = [cell for cell in others if not _NAME.fullmatch(cell)]
    is_header = SPLIT in header or (all(map(_NAME.fullmatch, header)) and 2 * len(texts) > len(others))
    if not is_header or len(names) < 2:
        return "1", "2"
    return names[0], names[1]


def _lines(path: Path) -> list[tuple[int, list[str]]]:
    """Return the number and the cells of each line that is not empty."""
    try:
        with open_text(path, newline="") as file:
            reader = csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
            return [(reader.line_num, row) for row in reader if row]
    except (UnicodeDecodeError, OSError, EOFError, csv.Error, zlib.error) as error:
        raise ValueError(
            f"{path} cannot be read as a tab-separated table ({error}); expected UTF-8, plain or .gz"
        ) from error


def _column(path: Path, header: list[str], names: list[str], key: str, name: str) -> int:
    """Return the index of a column. key: of the option that names it. Raises ValueError for one that is not there."""
    index = -1
    if name in names:
        index = names.index(name)
    elif name.isdigit():
        index = int(name) - 1
    if not 0 <= index < len(header):
        listed = ", ".join(header)[:200]
        raise ValueError(
            f"data.{key}={name}: the first line of {path} has the columns {listed}; use a name or a number from 1, "
            "such as data.source=1 data.target=2 for a file without a header line"
        )
    return index


def _splits(path: Path, values: list[str]) -> list[int]:
    unknown = sorted(value for value in set(values) if split_number(value) is None)
    if unknown:
        raise ValueError(
            f"unknown values in column {SPLIT} of {path}: {', '.join(unknown)[:200]}; allowed: {SPLIT_NAMES}"
        )
    return [SPLIT_NUMBERS[value.lower()] for value in values]
