"""The names of splits: in a column that assigns rows, and at the beginning of the name of a file."""

from __future__ import annotations

SPLIT = "split"  # the usual name of the column
SPLIT_NUMBERS = {"train": 0, "val": 1, "valid": 1, "validation": 1, "dev": 1, "test": 2}
SPLIT_NAMES = ", ".join(SPLIT_NUMBERS)


def split_number(name: str) -> int | None:
    """Return 0 for train, 1 for validation, 2 for test and None for any other text; case is ignored."""
    return SPLIT_NUMBERS.get(name.lower())


def split_of_file(name: str) -> str | None:
    """Return train, validation or test where a name begins with a name of it: train.bin, val_000.bin; else None."""
    first = name.partition(".")[0].replace("-", "_").partition("_")[0].rstrip("0123456789").lower()
    if first in SPLIT_NUMBERS:
        return ("train", "validation", "test")[SPLIT_NUMBERS[first]]
    return None
