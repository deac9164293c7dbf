"""One shard of token ids on the disk: its format, the checks of it, and its ids, mapped into memory.

Reference: nanoGPT data/openwebtext/prepare.py (`.bin` without a header); lit-gpt packed_dataset.py and litdata's
    TokensLoader (`.bin` with a header); llm.c's data files, which have one of 256 words; numpy.lib.format (`.npy`)
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from blockyard.errors import UserError

SUFFIXES = (".bin", ".npy")
RAW = ("uint16", "uint32")  # of a file without a header
MOST_MAPPED = 128  # shards that a process has mapped at a time
_LITPKDS = {1: "uint8", 3: "int16", 4: "int32", 5: "int64", 8: "uint16"}  # a code of the header is a type
_LLM_C = {20240520: "uint16", 20240801: "uint32"}  # the first word of the header
_LOOK = 4096  # ids that are looked at for signs of another type


@dataclass(frozen=True)
class Shard:
    """Token ids in a file: `count` of the numpy type `dtype`, from byte `offset` on."""

    path: Path
    dtype: str
    offset: int
    count: int

    @property
    def ids(self) -> Any:
        """The ids (count,), mapped: nothing is read before it is used."""
        return _mapped(self)

    def place(self, index: int) -> str:
        """Returns where id number `index` lies, for messages."""
        return f"token {index:,} (byte {self.offset + index * np.dtype(self.dtype).itemsize:,})"


@lru_cache(maxsize=MOST_MAPPED)
def _mapped(shard: Shard) -> Any:
    itemsize = np.dtype(shard.dtype).itemsize
    with shard.path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), shard.offset + shard.count * itemsize, access=mmap.ACCESS_READ)
    if hasattr(mmap, "MADV_RANDOM"):  # sequences are read in random order: what lies around one is of no use
        mapped.madvise(mmap.MADV_RANDOM)
    return np.frombuffer(mapped, dtype=shard.dtype, count=shard.count, offset=shard.offset)


def release() -> None:
    """Let go of the mapped files. Pages that were read count as memory of the process as long as they are mapped."""
    _mapped.cache_clear()


def read_shard(path: Path, dtype: str | None) -> Shard:
    """Returns the shard in a file, which is not read beyond its beginning.

    dtype: of a `.bin` file without a header; None takes uint16, if the ids do not look like another type
    Raises UserError for a file that is empty, truncated or of another format or type.
    """
    try:
        with path.open("rb") as file:
            size = path.stat().st_size
            if not size:
                raise UserError(f"{path} is empty (0 bytes); remove it, or write it again")
            shard = _npy(path, file) if path.suffix == ".npy" else _bin(path, file, size, dtype)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}") from error
    end = shard.offset + shard.count * np.dtype(shard.dtype).itemsize
    if size != end or not shard.count:
        state = "is truncated" if size < end else "has bytes after its last token id"
        raise UserError(
            f"{path} {state}: {shard.count:,} token ids of {shard.dtype} end at byte {end:,}, "
            f"the file has {size:,} bytes"
        )
    return shard


def _npy(path: Path, file: BinaryIO) -> Shard:
    try:
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(file)
    except (ValueError, EOFError) as error:
        raise UserError(f"{path} is not a .npy file, or it is truncated: {error}") from error
    if len(shape) != 1 or dtype.kind not in "iu":
        raise UserError(f"{path} holds {dtype} of shape {shape}; token ids are whole numbers of shape (n,)")
    return Shard(path, dtype.str, file.tell(), shape[0])


def _bin(path: Path, file: BinaryIO, size: int, dtype: str | None) -> Shard:
    head = file.read(1024)
    if head.startswith(b"LITPKDS"):
        if len(head) < 24:
            raise UserError(f"{path} is truncated: its header of 24 bytes ends at byte {size}")
        _, code, count = struct.unpack("<QBQ", head[7:24])
        if code not in _LITPKDS:
            raise UserError(f"{path} holds no token ids: the type in its header is number {code}")
        return Shard(path, _LITPKDS[code], 24, count)
    if len(head) == 1024 and (header := struct.unpack("<3I", head[:12]))[0] in _LLM_C and header[1] == 1:
        return Shard(path, _LLM_C[header[0]], 1024, header[2])
    itemsize = np.dtype(dtype or RAW[0]).itemsize
    if size % itemsize:
        raise UserError(
            f"{path} is truncated, or not of {dtype or RAW[0]}: it has {size:,} bytes, "
            f"and a token id of {itemsize} bytes is cut at byte {size - size % itemsize:,}"
        )
    if dtype is None:
        _check_type(path, head + file.read(2 * _LOOK - len(head)))
    return Shard(path, dtype or RAW[0], 0, size // itemsize)


def _check_type(path: Path, start: bytes) -> None:
    """Raises UserError where ids read as uint16 are ids of uint32: every second one is then zero."""
    ids = np.frombuffer(start[: len(start) // 4 * 4], dtype="<u2")
    if len(ids) and not ids[1::2].any() and ids[::2].any():
        raise UserError(
            f"{path} looks like uint32: read as {RAW[0]}, every second token id is 0 from byte 2 on; "
            f"set data.dtype=uint32, or data.dtype={RAW[0]} if it is not"
        )


def litdata_shards(folder: Path, index: dict[str, Any]) -> list[Shard]:
    """Returns the shards that litdata's index.json lists. Raises UserError for what is not uncompressed token ids."""
    file = folder / "index.json"
    config, chunks = index.get("config") or {}, index.get("chunks")
    formats = config.get("data_format") or [""]
    if config.get("compression") or not str(formats[0]).startswith("no_header_") or not isinstance(chunks, list):
        raise UserError(f"{file} does not describe uncompressed chunks of token ids (litdata's TokensLoader)")
    return [_litdata_shard(folder / str(chunk["filename"]), chunk, file) for chunk in chunks]


def _litdata_shard(path: Path, chunk: dict[str, Any], index: Path) -> Shard:
    items, count = chunk.get("chunk_size"), chunk.get("dim")
    if not isinstance(items, int) or not isinstance(count, int) or not count:
        raise UserError(f"{index}: {path.name} has no chunk_size or no dim; only chunks of token ids have both")
    if not path.is_file():
        raise UserError(f"{index} lists {path.name}, which is not there")
    offset, size = 4 * (items + 2), path.stat().st_size  # the number of items, then where each starts and the last ends
    itemsize, rest = divmod(size - offset, count)
    if rest or itemsize not in (2, 4, 8):
        raise UserError(f"{path} is truncated: {count:,} token ids follow byte {offset}, the file has {size:,} bytes")
    return Shard(path, {2: "uint16", 4: "int32", 8: "int64"}[itemsize], offset, count)


def beyond(shard: Shard, start: int, ids: Any, vocabulary: int) -> UserError | None:
    """Returns the error of the first id that is none of the vocabulary, or None.

    ids: the ids of the shard from number `start` on
    """
    wrong = np.flatnonzero((ids >= vocabulary) | (ids < 0))
    if not len(wrong):
        return None
    index = int(wrong[0])
    return UserError(
        f"{shard.path}: {shard.place(start + index)} is {int(ids[index])}, and the vocabulary has {vocabulary:,} token "
        "ids; give the data's true vocabulary, or its true type with data.dtype"
    )


def total(shards: Sequence[Shard]) -> int:
    """Returns the token ids of all shards."""
    return sum(shard.count for shard in shards)
