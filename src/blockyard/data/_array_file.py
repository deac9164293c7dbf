"""Reading arrays from disk: .npz with several by name, or one .npy, which is mapped into memory.

Reference: numpy.load, without pickles
"""

from __future__ import annotations

import struct
import tokenize
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from blockyard.data._unpacked import check_member
from blockyard.errors import UserError, first_line, near

KINDS = (".npz", ".npy")
# What numpy and zipfile raise for a file that is damaged, encrypted, compressed in an unknown way or nested too deep.
UNREADABLE = (
    *(OSError, EOFError, ValueError, KeyError, TypeError, OverflowError, MemoryError, SyntaxError, RuntimeError),
    *(zipfile.BadZipFile, zlib.error, struct.error, tokenize.TokenError),
)


def read_array(path: Path, name: str, key: str) -> np.ndarray:
    """Returns an array of a file: the one called `name` of an .npz, or that of an .npy. Raises UserError.

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
    """Returns the names of the arrays of an .npz; none of another file, or of one that cannot be read."""
    try:
        with zipfile.ZipFile(path) as archive:
            return [name.removesuffix(".npy") for name in archive.namelist()]
    except UNREADABLE:
        return []


def refuse_rows(path: Path, name: str, problem: str, bad: Any) -> None:
    """Raises UserError naming the rows, from 0, for which a mask (n,) holds."""
    if bad.any():
        some = np.flatnonzero(bad)
        more = f" and {len(some) - 20:,} more" if len(some) > 20 else ""
        raise UserError(f"{path}, {name}, rows {', '.join(map(str, some[:20]))}{more} (from 0): {problem}")


def _checked(path: Path, name: str, array: np.ndarray) -> np.ndarray:
    if array.dtype.kind not in "biufUS":
        raise UserError(f"{path}, {name}: values of type {array.dtype} are neither numbers nor text")
    if array.ndim == 0 or not array.size:
        raise UserError(f"{path}, {name}: an empty array, of shape {array.shape}")
    return array
