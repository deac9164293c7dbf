"""Reading pairs from tab-separated columns."""

from __future__ import annotations

import csv
import gzip
from pathlib import Path

from blockyard.data._pairs import Pair

SPLIT = "split"  # the column that deals the pairs
NAMES = {"train": 0, "val": 1, "valid": 1, "validation": 1, "dev": 1, "test": 2}


def read_pairs(path: Path, source: str, target: str) -> tuple[list[Pair], list[int] | None]:
    """The pairs of a file and, where a column `split` names it, the part of each (0 train, 1 validation, 2 test).

    source, target: names in the first line, or numbers from 1; with numbers and no column `split`, the
        first line is a pair like the others
    Raises ValueError for what is no such table.
    """
    lines = _lines(path)
    head = lines[0] if lines else []
    columns = [_column(path, head, key, name) for key, name in (("source", source), ("target", target))]
    titled = SPLIT in head or not (source.isdigit() and target.isdigit())
    body = lines[1:] if titled else lines
    for number, row in enumerate(body, start=1 + titled):
        if len(row) < (len(head) if SPLIT in head else 1 + max(columns)):
            raise ValueError(f"line {number} of {path} has {len(row)} columns, too few; it separates them by tabs")
    pairs = [(row[columns[0]], row[columns[1]]) for row in body]
    return pairs, _parts(path, [row[head.index(SPLIT)] for row in body]) if SPLIT in head else None


def _lines(path: Path) -> list[list[str]]:
    try:
        with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8-sig", newline="") as file:
            return [row for row in csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE) if row]
    except (UnicodeDecodeError, OSError, EOFError, csv.Error) as error:
        raise ValueError(f"{path} cannot be read as a table of texts ({error}); give UTF-8, plain or .gz") from error


def _column(path: Path, head: list[str], key: str, name: str) -> int:
    place = head.index(name) if name in head else int(name) - 1 if name.isdigit() else -1
    if not 0 <= place < len(head):
        has = ", ".join(head)[:200]
        raise ValueError(f"data.{key}={name}: {path} has the columns {has}; name one, or give its number from 1")
    return place


def _parts(path: Path, said: list[str]) -> list[int]:
    strange = sorted(set(said) - NAMES.keys())
    if strange:
        raise ValueError(f"the column {SPLIT} of {path} says {', '.join(strange)[:200]}; it takes {', '.join(NAMES)}")
    return [NAMES[word] for word in said]
