"""Reading series with a class each: the text files .ts of the UCR and UEA archives, and arrays in .npz.

    @classLabel true up down          header of a .ts file
    @data
    1.0,2.5,?:0.1,0.2,0.3:up          channels between colons, the class last; ? is a missing value

An .npz has X_train (n, channels, steps) or (n, steps) and y_train (n,), and may have X_test and y_test. Steps at the
end without a value in any channel are padding.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from blockyard.data.files.arrays import UNREADABLE
from blockyard.errors import UserError, first_line, quoted

MOST_LINES = 8  # wrong lines that a message names


class Records(NamedTuple):
    """Series (steps, C) float32 with NaN for missing values, of different lengths, and the class of each."""

    series: list[Tensor]
    labels: list[str]


def read_ts(path: Path) -> Records:
    """Read a .ts file. Raises UserError naming every line that is wrong, and why."""
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read as text: {error}") from error
    start = next((number for number, line in enumerate(lines) if line.strip().lower() == "@data"), None)
    if start is None:
        raise UserError(f"{path} has no line @data; expected a .ts file of the UCR or UEA archive")
    for line in lines[:start]:
        key, _, rest = line.strip().lower().partition(" ")
        if (key, rest.split(" ")[0]) == ("@timestamps", "true"):
            raise UserError(f"{path}: series with time stamps are not supported; write their values at equal steps")
        if (key, rest.split(" ")[0]) == ("@classlabel", "false"):
            raise UserError(f"{path}: its series have no classes (@classLabel false)")
    records = Records([], [])
    problems = []
    channels: int | None = None
    for number, line in enumerate(lines[start + 1 :], start=start + 2):
        if not line.strip() or line.startswith("#"):
            continue
        try:
            values, label = _parse(line)
            channels = channels or values.shape[1]
            if values.shape[1] != channels:
                raise ValueError(f"{values.shape[1]} channels, and {channels} in the first line")
            records.series.append(values)
            records.labels.append(label)
        except ValueError as error:
            problems.append(f"line {number}: {error}")
    if problems:
        more = f" and {len(problems) - MOST_LINES} more" if len(problems) > MOST_LINES else ""
        raise UserError(f"{path}: {'; '.join(problems[:MOST_LINES])}{more}")
    return records


def _parse(line: str) -> tuple[Tensor, str]:
    *parts, label = line.strip().split(":")
    if not parts or not label.strip():
        raise ValueError("no class behind the last colon")
    channels = [[_number(text) for text in part.split(",")] for part in parts]
    if len({len(row) for row in channels}) != 1:
        raise ValueError(f"channels of {' and '.join(str(len(row)) for row in channels)} steps")
    return _checked(torch.tensor(channels, dtype=torch.float32).T.contiguous()), label.strip()


def _number(text: str) -> float:
    if text.strip() == "?":
        return float("nan")
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{quoted(text.strip())} is not a number") from None


def _checked(values: Tensor) -> Tensor:
    """Return the values (steps, C) without padding at their end. Raises ValueError for an infinite one, or none."""
    if values.isinf().any():
        raise ValueError("an infinite value")
    there = (~values.isnan()).any(1).nonzero()
    if not len(there):
        raise ValueError("no value")
    return values[: int(there[-1]) + 1]


def read_npz(path: Path) -> tuple[Records, Records | None]:
    """Read the training and the test series of an .npz. Raises UserError for other content."""
    try:
        with np.load(path, allow_pickle=False) as arrays:
            names = sorted(arrays.files)
            content = {name: arrays[name] for name in ("X_train", "y_train", "X_test", "y_test") if name in names}
    except UNREADABLE as error:
        raise UserError(f"{path} cannot be read as .npz: {first_line(error)}") from error
    if "X_train" not in content or "y_train" not in content or ("X_test" in content) != ("y_test" in content):
        raise UserError(f"{path} has {', '.join(names) or 'no arrays'}; expected X_train, y_train, and X_test, y_test")
    train = _records(path, "train", content["X_train"], content["y_train"])
    test = _records(path, "test", content["X_test"], content["y_test"]) if "X_test" in content else None
    return train, test


def _records(path: Path, part: str, x: np.ndarray, y: np.ndarray) -> Records:
    if x.ndim == 2:
        x = x[:, None]
    if x.ndim != 3 or x.dtype.kind not in "fiu" or y.shape != (len(x),):
        raise UserError(
            f"{path}: X_{part} of shape {x.shape} ({x.dtype}) and y_{part} of shape {y.shape}; expected numbers "
            "(n, channels, steps) or (n, steps), and a class for each (n,)"
        )
    series, problems = [], []
    for number, values in enumerate(torch.from_numpy(x.astype(np.float32)).transpose(1, 2)):
        try:
            series.append(_checked(values))
        except ValueError as error:
            problems.append(f"X_{part}[{number}]: {error}")
    if problems:
        raise UserError(f"{path}: {'; '.join(problems[:MOST_LINES])}")
    return Records(series, [str(label) for label in y.tolist()])
