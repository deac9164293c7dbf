"""Compressed files, with a bound on what is read into memory: a megabyte can be a gigabyte of zeros."""

from __future__ import annotations

import gzip
import os
import zipfile
from functools import lru_cache
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from blockyard.errors import UserError

_GROWTH = 1_032  # bytes that a byte of deflate can stand for (RFC 1951)
_BLOCK = 2**20


def open_text(path: Path, encoding: str = "utf-8-sig", **options: Any) -> TextIO:
    """Open a text file, plain or .gz. options: of `open`, such as newline"""
    opener: Any = gzip.open if path.suffix.lower() == ".gz" else open
    file: TextIO = opener(path, "rt", encoding=encoding, **options)
    return file


def most_bytes() -> int:
    """Return how many bytes of a file may be read into memory: half of the machine's memory."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


def check_gzip(path: Path) -> None:
    """Raise UserError for a .gz file with more content than fits into memory; OSError, EOFError for a damaged file.

    Nothing is unpacked where the file is too small for that.
    """
    if path.suffix != ".gz":
        return
    most = most_bytes()
    status = path.stat()
    if status.st_size * _GROWTH <= most:
        return
    # The time of the last change is a part of the cache's key alone.
    if _holds_more(path, status.st_mtime_ns, most):
        raise UserError(
            f"{path} holds more than {most / 2**30:.1f} GiB, half of this machine's memory, in "
            f"{status.st_size / 2**20:,.1f} MiB; split it into several files"
        )


@lru_cache(maxsize=64)
def _holds_more(path: Path, _written: int, most: int) -> bool:
    """Return whether a .gz file holds more than `most` bytes; a table is looked at several times."""
    size = 0
    with gzip.open(path) as file:
        while size <= most:
            block = file.read(_BLOCK)
            if not block:
                break
            size += len(block)
    return size > most


def check_member(path: Path, archive: zipfile.ZipFile, member: str) -> None:
    """Raise UserError for an array of an .npz that is larger than the memory, or than its bytes in the file."""
    info = next((info for info in archive.infolist() if info.filename == member), None)
    if info is None:  # an array that was saved under its plain name
        return
    if info.flag_bits & 1:
        raise UserError(f"{path}: {member} is encrypted; save the arrays without a password")
    with archive.open(info) as file:
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(file)
    size = dtype.itemsize
    for length in shape:
        size *= length
    if dtype.hasobject or size <= min(most_bytes(), info.file_size):
        return
    if size > info.file_size:
        raise UserError(f"{path}, {member}: its header says {size:,} bytes, and it has {info.file_size:,}; restore it")
    raise UserError(
        f"{path}, {member} holds {size / 2**30:.1f} GiB, more than half of this machine's memory; use an .npy file, "
        "which is read from the disk as it is needed"
    )
