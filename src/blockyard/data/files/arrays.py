"""Reading arrays from disk: .npz with several by name, or one .npy, which is mapped into memory.

Reference: numpy.load, without pickles
"""

from __future__ import annotations

import math
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np

from blockyard.data.files.unpacked import check_member
from blockyard.errors import UserError, first_line, near

KINDS = (".npz", ".npy")
Kind = Literal["image", "symbols", "series", "vector"]
_CHECKED = 2**20  # values that are looked at together: an array may be mapped, and larger than the memory
# Raised by numpy and zipfile for a file that is damaged, encrypted, compressed in an unknown way or nested too deep.
UNREADABLE = (
    *(OSError, EOFError, ValueError, KeyError, TypeError, OverflowError, MemoryError, SyntaxError, RuntimeError),
    *(zipfile.BadZipFile, zlib.error, struct.error, tokenize.TokenError),
)


def read_array(path: Path, name: str, key: str) -> np.ndarray:
    """Return the array `name` of an .npz, or the array of an .npy. Raises UserError.

    key: of the option that names it, for messages
    """
    try:
        if path.suffix == ".npy":
            # Copy on write, because torch takes no memory that it must not write.
            return _checked(path, "the array", np.load(path, mmap_mode="c", allow_pickle=False))
        with np.load(path, allow_pickle=False) as archive:
            if name not in archive.files:
                close = near(name, archive.files)
                hint = f"; did you mean {close[0]}?" if close else ""
                raise UserError(
                    f"{key}={name}: {path} has no such array; it has {', '.join(archive.files)[:400]}{hint}"
                )
            check_member(path, archive.zip, f"{name}.npy")
            return _checked(path, name, archive[name])
    except UserError:
        raise
    except ValueError as error:
        if "allow_pickle" in str(error):
            raise UserError(
                f"{path}, {name}: an array of objects, such as rows of different lengths; pad the rows to one length, "
                "or use data=series_table for series of several"
            ) from error
        raise UserError(f"{path} cannot be read as an array: {first_line(error)}") from error
    except (SyntaxError, tokenize.TokenError) as error:  # numpy reads a header as Python's literals
        raise UserError(f"{path} cannot be read as an array: its header is damaged") from error
    except UNREADABLE as error:
        raise UserError(f"{path} cannot be read as an array: {first_line(error)}") from error


def names_of(path: Path) -> list[str]:
    """Return the names of the arrays of an .npz; none of another file, or of one that cannot be read."""
    try:
        with zipfile.ZipFile(path) as archive:
            return [name.removesuffix(".npy") for name in archive.namelist()]
    except UNREADABLE:
        return []


def refuse_rows(path: Path, name: str, problem: str, bad: Any) -> None:
    """Raise UserError naming the rows, from 0, for which a mask (n,) holds."""
    if bad.any():
        some = np.flatnonzero(bad)
        more = f" and {len(some) - 20:,} more" if len(some) > 20 else ""
        raise UserError(f"{path}, {name}, rows {', '.join(map(str, some[:20]))}{more} (from 0): {problem}")


def _checked(path: Path, name: str, array: np.ndarray) -> np.ndarray:
    if array.dtype.kind not in "biufUS":
        raise UserError(f"{path}, {name}: values of type {array.dtype} are neither numbers nor text")
    if array.ndim == 0 or not array.size:
        raise UserError(f"{path}, {name}: an empty array, of shape {array.shape}")
    # Torch takes no numbers whose bytes are in the order of another machine.
    if array.dtype.isnative:
        return array
    return array.astype(array.dtype.newbyteorder("="))


def kind_of(values: np.ndarray, kind: Kind | Literal["auto"], where: str) -> Kind:
    """Return the kind of an array of inputs, by its type and shape. Raises UserError where it is not of `kind`.

    kind: the option; where: the file and the array
    """
    if kind == "auto":
        if values.ndim == 2:
            kind = "vector" if values.dtype.kind == "f" else "symbols"
        else:
            kind = "image" if values.dtype == np.uint8 else "series"
    if kind == "image":
        fits = values.dtype == np.uint8 and values.ndim in (3, 4)
    elif kind == "symbols":
        fits = values.dtype.kind in "biu" and values.ndim == 2
    else:
        fits = values.dtype.kind == "f" and values.ndim == (3 if kind == "series" else 2)
    if not fits:
        raise UserError(
            f"{where}: {values.dtype} of shape {values.shape} cannot be read as {kind} (images are uint8, "
            "token ids integers (n, N), series floats (n, steps, C), vectors floats (n, F)); convert it"
        )
    return kind


def check_inputs(
    values: np.ndarray, kind: Kind | Literal["auto"], vocabulary: int | None, path: Path, name: str
) -> None:
    """Raise UserError for an unknown shape, infinite values, and ids beyond the vocabulary."""
    if values.dtype.kind not in "biuf" or not 2 <= values.ndim <= 4:
        raise UserError(f"{path}, {name}: {values.dtype} of shape {values.shape}; inputs are numbers, 2 to 4 axes")
    if values.dtype.kind == "f":
        refuse_rows(path, name, "an infinite value", _rows_with(values, np.isinf))
    elif kind_of(values, kind, f"{path}, {name}") == "symbols":
        most = vocabulary or int(values.max()) + 1
        bad = _rows_with(values, lambda ids: (ids < 0) | (ids >= most))
        refuse_rows(path, name, f"a token id below 0 or from data.vocabulary={most} on", bad)


def _rows_with(values: np.ndarray, bad: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """Return a mask (n,) of the rows that have a bad value."""
    step = max(1, _CHECKED // max(1, math.prod(values.shape[1:])))
    masks = []
    for start in range(0, len(values), step):
        part = values[start : start + step]
        masks.append(bad(part).reshape(len(part), -1).any(1))
    return np.concatenate(masks)


def check_targets(target: np.ndarray, values: np.ndarray, kind: Kind, path: Path, name: str) -> None:
    """Raise UserError for targets of another number of rows, of NaN, and of an unknown shape."""
    if len(target) != len(values):
        raise UserError(f"{path}: {len(values)} rows of inputs and {len(target)} targets")
    if target.dtype.kind == "f":
        if target.ndim > 2:
            raise UserError(f"{path}, {name}: floats of shape {target.shape}; values are (n,) or (n, T)")
        refuse_rows(path, name, "the target is not finite", ~np.isfinite(target).reshape(len(target), -1).all(1))
    elif target.ndim > 1 and (kind != "symbols" or target.shape != values.shape):
        raise UserError(f"{path}, {name}: {target.dtype} of shape {target.shape}; classes have one axis")


def image_shape(shape: tuple[int, ...]) -> tuple[int, int, int]:
    """Return channels, height and width of an image of the array, (H, W), (C, H, W) or (H, W, C)."""
    if len(shape) == 2:
        return (1, shape[0], shape[1])
    if channels_are_last(shape):
        return (shape[2], shape[0], shape[1])
    return (shape[0], shape[1], shape[2])


def channels_are_last(shape: tuple[int, ...]) -> bool:
    """Return whether the channels of an image of this shape are its last axis."""
    return len(shape) == 3 and shape[2] in (1, 3) and shape[0] not in (1, 3)
