"""Shards of token ids on the disk: their formats, checks, and ids that are mapped into memory; sources of several.

Reference: nanoGPT data/openwebtext/prepare.py (`.bin` without a header); lit-gpt packed_dataset.py and litdata's
    TokensLoader (`.bin` with a header); llm.c's data files, with a header of 256 words; numpy.lib.format (`.npy`)
"""

from __future__ import annotations

import hashlib
import mmap
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO, TypedDict, cast

import numpy as np

from blockyard.atomic_files import read_json
from blockyard.data.files.file_names import data_files
from blockyard.data.files.split_names import split_of_file
from blockyard.errors import UserError

SUFFIXES = (".bin", ".npy")
RAW = ("uint16", "uint32")  # of a file without a header
MOST_MAPPED = 128  # shards that a process has mapped at a time
_LITPKDS = {1: "uint8", 3: "int16", 4: "int32", 5: "int64", 8: "uint16"}  # a code of the header is a type
_LLM_C = {20240520: "uint16", 20240801: "uint32"}  # the first word of the header
_LOOK = 4096  # ids that are looked at for signs of another type
MANIFEST, PLAN, TOKENIZER = "manifest.json", "unfinished.json", "tokenizer.json"
FORMAT = "blockyard token shards"
_SAMPLED = 256  # pieces of a source that its fingerprint reads
_PIECE = 4096  # bytes


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
        """Return the location of id number `index`, for messages."""
        return f"token {index:,} (byte {self.offset + index * np.dtype(self.dtype).itemsize:,})"


@lru_cache(maxsize=MOST_MAPPED)
def _mapped(shard: Shard) -> Any:
    itemsize = np.dtype(shard.dtype).itemsize
    with shard.path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), shard.offset + shard.count * itemsize, access=mmap.ACCESS_READ)
    if hasattr(mmap, "MADV_RANDOM"):
        # Sequences are read in random order: pages around one would be read in advance for nothing.
        mapped.madvise(mmap.MADV_RANDOM)
    return np.frombuffer(mapped, dtype=shard.dtype, count=shard.count, offset=shard.offset)


def release() -> None:
    """Unmap all files."""
    # Pages that were read count as memory of the process as long as they are mapped.
    _mapped.cache_clear()


def read_shard(path: Path, dtype: str | None) -> Shard:
    """Return the shard in a file. Only the beginning of the file is read.

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
    return _checked(shard, size)


def _checked(shard: Shard, size: int) -> Shard:
    """Return the shard. Raises UserError for a file of another size, and without a token id."""
    end = shard.offset + shard.count * np.dtype(shard.dtype).itemsize
    if size != end or not shard.count:
        state = "is truncated" if size < end else "has bytes after its last token id"
        raise UserError(
            f"{shard.path} {state}: {shard.count:,} token ids of {shard.dtype} end at byte {end:,}, the file has "
            f"{size:,} bytes"
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
    if len(head) == 1024:
        magic, version, count = struct.unpack("<3I", head[:12])
        if magic in _LLM_C and version == 1:
            return Shard(path, _LLM_C[magic], 1024, count)
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
    """Raise UserError where ids read as uint16 are ids of uint32: every second one is then zero."""
    ids = np.frombuffer(start[: len(start) // 4 * 4], dtype="<u2")
    if len(ids) and not ids[1::2].any() and ids[::2].any():
        raise UserError(
            f"{path} looks like uint32: read as {RAW[0]}, every second token id is 0 from byte 2 on; "
            f"set data.dtype=uint32, or data.dtype={RAW[0]} if it is not"
        )


def litdata_shards(folder: Path, index: dict[str, Any]) -> list[Shard]:
    """Return the shards in litdata's index.json. Raises UserError for chunks that are not uncompressed token ids."""
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
        raise UserError(f"{index} lists {path.name}, which is missing")
    # A chunk begins with the number of its items, the start of each, and the end of the last, 4 bytes each.
    offset = 4 * (items + 2)
    size = path.stat().st_size
    itemsize, rest = divmod(size - offset, count)
    if rest or itemsize not in (2, 4, 8):
        raise UserError(f"{path} is truncated: {count:,} token ids follow byte {offset}, the file has {size:,} bytes")
    return Shard(path, {2: "uint16", 4: "int32", 8: "int64"}[itemsize], offset, count)


def beyond(shard: Shard, start: int, ids: Any, vocabulary: int) -> UserError | None:
    """Return an error for the first id beyond the vocabulary, or None.

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
    """Return the number of token ids in all shards."""
    return sum(shard.count for shard in shards)


class TokenizerRecord(TypedDict, total=False):
    """A tokenizer in a manifest. options: the ones that its token ids depend on; sha256: of its fitted state."""

    target: str
    options: dict[str, Any]
    sha256: str


class ShardRecord(TypedDict):
    """A shard in a manifest. bytes: of its text; sha256: of its ids; largest: of its ids."""

    file: str
    tokens: int
    bytes: int
    sha256: str
    largest: int


class SplitRecord(TypedDict):
    """A split in a manifest, with the sums over its shards."""

    tokens: int
    bytes: int
    shards: list[ShardRecord]


class Manifest(TypedDict, total=False):
    """The manifest that `blockyard tokenize` writes into a folder; empty where there is none."""

    format: str
    version: int
    dtype: str
    vocabulary: int
    plan: dict[str, object]
    tokenizer: TokenizerRecord
    splits: dict[str, SplitRecord]


@dataclass(frozen=True)
class TokenSource:
    """A file or folder of shards. manifest: of `blockyard tokenize`; empty where there is none."""

    path: Path
    shards: dict[str, list[Shard]]
    manifest: Manifest = field(default_factory=Manifest)

    def bytes_of_text(self, split: str) -> int | None:
        """Return the bytes of the text of a split, where the manifest has them."""
        part = (self.manifest.get("splits") or {}).get(split)
        return part["bytes"] if part else None

    def digest(self) -> str:
        """Return the SHA-256 of names, sizes and the manifest, and of some hundred pieces spread over all ids."""
        result = hashlib.sha256(str(sorted(self.manifest.items())).encode())
        shards = [(split, shard) for split in self.shards for shard in self.shards[split]]
        for split, shard in shards:
            result.update(f"{split} {shard.path.name} {shard.dtype} {shard.offset} {shard.count}\n".encode())
            with shard.path.open("rb") as file:
                end = shard.offset + shard.count * np.dtype(shard.dtype).itemsize
                for start in np.linspace(shard.offset, max(end - _PIECE, shard.offset), 1 + _SAMPLED // len(shards)):
                    file.seek(int(start))
                    result.update(file.read(_PIECE))
        return result.hexdigest()


def read_manifest(path: Path) -> Manifest:
    """Return the manifest of a folder, empty where it has none. Raises UserError for a damaged or unfinished one."""
    if not path.is_dir():
        return {}
    file = path / MANIFEST
    if not file.is_file():
        if (path / PLAN).is_file():
            raise UserError(f"{path} is not finished: run the same `blockyard tokenize` again, which continues it")
        return {}
    try:
        manifest = read_json(file)
    except (OSError, ValueError) as error:
        raise UserError(f"{file} cannot be read ({error}); write the shards again with `blockyard tokenize`") from error
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise UserError(f"{file} is not a manifest of `blockyard tokenize`; remove it to read the shards without it")
    return cast(Manifest, manifest)


def read_source(path: Path, dtype: str | None) -> TokenSource:
    """Return the shards of a file or folder by split. Raises UserError for files of other formats or other ids.

    Files without the name of a split are all of the split "train", from which the data cuts the others.
    """
    if path.is_file():
        return TokenSource(path, {"train": [read_shard(path, dtype)]})
    manifest = read_manifest(path)
    if manifest:
        return TokenSource(path, dict(_manifest_shards(path, manifest)), manifest)
    if (path / "index.json").is_file():
        return TokenSource(path, {"train": _litdata(path)})
    by_split: dict[str, list[Shard]] = {}
    unnamed = []
    for file in token_files(path):
        split = split_of_file(file.relative_to(path).parts[0])
        if split is None:
            unnamed.append(file)
        by_split.setdefault(split or "train", []).append(read_shard(file, dtype))
    for folder in sorted(file.parent for file in path.glob("*/index.json")):
        split = split_of_file(folder.name)
        if split is None:
            unnamed.append(folder)
        by_split.setdefault(split or "train", []).extend(_litdata(folder))
    if unnamed and set(by_split) - {"train"}:
        raise UserError(
            f"{unnamed[0]} does not say its split, and other files of {path} do; begin its name with train, val or test"
        )
    if "train" not in by_split:
        raise UserError(f"{path} has no file for training: no name there begins with train")
    return TokenSource(path, by_split)


def token_files(path: Path) -> list[Path]:
    """Return the `.bin` and `.npy` files under a folder, sorted, without folders that litdata wrote."""
    files = []
    for suffix in SUFFIXES:
        for file in path.rglob(f"*{suffix}"):
            if file.is_file() and not (file.parent / "index.json").is_file():
                files.append(file)
    return data_files(path, files)


def _litdata(folder: Path) -> list[Shard]:
    try:
        index = read_json(folder / "index.json")
    except (OSError, ValueError) as error:
        raise UserError(f"{folder / 'index.json'} cannot be read: {error}") from error
    return litdata_shards(folder, index if isinstance(index, dict) else {})


def _manifest_shards(path: Path, manifest: Manifest) -> Iterable[tuple[str, list[Shard]]]:
    try:
        listed = {split: record["shards"] for split, record in manifest["splits"].items()}
        dtype = np.dtype(manifest["dtype"])
        for split, shards in listed.items():
            yield split, [_listed(path / Path(record["file"]).name, int(record["tokens"]), dtype) for record in shards]
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path / MANIFEST} is damaged: {type(error).__name__} {error}") from error


def _listed(file: Path, tokens: int, dtype: Any) -> Shard:
    """Return a shard of the manifest. Raises UserError where the file has another size."""
    if not file.is_file():
        raise UserError(
            f"{file} is listed in the manifest but missing; write the shards again with `blockyard tokenize`"
        )
    return _checked(Shard(file, dtype.name, 0, tokens), file.stat().st_size)
