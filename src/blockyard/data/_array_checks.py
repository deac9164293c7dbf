"""What an array of inputs holds, by its type and shape, and whether its values can be read as that."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np

from blockyard.data._array_file import refuse_rows
from blockyard.errors import UserError

Kind = Literal["image", "symbols", "series", "vector"]


def kind_of(values: np.ndarray, kind: Kind | Literal["auto"], where: str) -> Kind:
    """Returns what the inputs are. kind: the option; where: the file and the array. Raises UserError."""
    if kind == "auto":
        if values.ndim == 2:
            kind = "vector" if values.dtype.kind == "f" else "symbols"
        else:
            kind = "image" if values.dtype == np.uint8 else "series"
    axes = {"image": (3, 4), "symbols": (2,), "series": (3,), "vector": (2,)}[kind]
    right = values.dtype == np.uint8 if kind == "image" else values.dtype.kind in ("biu" if kind == "symbols" else "f")
    if values.ndim not in axes or not right:
        raise UserError(
            f"{where}: {values.dtype} of shape {values.shape} is no {kind} (images are uint8, "
            "token ids integers (n, N), series floats (n, steps, C), vectors floats (n, F)); convert it"
        )
    return kind


def check_inputs(
    values: np.ndarray, kind: Kind | Literal["auto"], vocabulary: int | None, path: Path, name: str
) -> None:
    """Raises UserError for a shape that is nothing known, infinite values, and ids beyond the vocabulary."""
    if values.dtype.kind not in "biuf" or not 2 <= values.ndim <= 4:
        raise UserError(f"{path}, {name}: {values.dtype} of shape {values.shape}; inputs are numbers, 2 to 4 axes")
    if values.dtype.kind == "f":
        bad = np.isinf(values).reshape(len(values), -1).any(1)
        refuse_rows(path, name, "an infinite value", bad)
    elif kind_of(values, kind, f"{path}, {name}") == "symbols":
        most = vocabulary or int(values.max()) + 1
        bad = ((values < 0) | (values >= most)).reshape(len(values), -1).any(1)
        refuse_rows(path, name, f"a token id below 0 or from data.vocabulary={most} on", bad)


def check_targets(target: np.ndarray, values: np.ndarray, kind: Kind, path: Path, name: str) -> None:
    """Raises UserError for targets of another number of rows, of NaN, and of a shape that is nothing known."""
    if len(target) != len(values):
        raise UserError(f"{path}: {len(values)} rows of inputs and {len(target)} targets")
    if target.dtype.kind == "f":
        refuse_rows(path, name, "the target is not finite", ~np.isfinite(target).reshape(len(target), -1).all(1))
    elif target.ndim > 1 and (kind != "symbols" or target.shape != values.shape):
        raise UserError(f"{path}, {name}: {target.dtype} of shape {target.shape}; classes have one axis")


def image_shape(shape: tuple[int, ...]) -> tuple[int, int, int]:
    """Returns channels, height and width of an image of the array, (H, W), (C, H, W) or (H, W, C)."""
    if len(shape) == 2:
        return (1, shape[0], shape[1])
    return (shape[2], shape[0], shape[1]) if channels_are_last(shape) else (shape[0], shape[1], shape[2])


def channels_are_last(shape: tuple[int, ...]) -> bool:
    """Returns whether the channels of an image of this shape are its last axis."""
    return len(shape) == 3 and shape[2] in (1, 3) and shape[0] not in (1, 3)
