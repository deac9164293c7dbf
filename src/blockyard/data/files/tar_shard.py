"""Tar shards of samples, indexed once and then read member by member, in any order.

Source: the format of webdataset: files of one tar archive that follow each other and share their name up to the first
    dot are one sample
Reference: webdataset.WebDataset, whose grouping of names into samples is used here
"""

from __future__ import annotations

import io
import logging
import re
import tarfile
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

from torch import Tensor

from blockyard.atomic_files import read_json, remove_temporary, write_json
from blockyard.data.files.cache import IDLE, cache_dir
from blockyard.data.files.digest import sha256
from blockyard.errors import UserError, first_line

log = logging.getLogger("blockyard")

_BLOCK = 512  # bytes; an archive ends with two blocks of zeros
_META = re.compile(r"__[^/]*__($|/)")  # names that webdataset leaves out
LONGEST_LABEL = 1_000  # bytes
FORMAT = 1  # of an index
# Seconds since the last change of a shard, before which it is not cached: it could change once more within the
# resolution of the file system's clock.
_SETTLED = 2.0


class Member(NamedTuple):
    """Where a file lies inside a shard, in bytes."""

    start: int
    size: int


class TarSample(NamedTuple):
    """One sample. key: its name; files: its members by their endings; label: the text of one of them."""

    key: str
    files: Mapping[str, Member]
    label: str


def samples_of(shard: Path, label: str) -> list[TarSample]:
    """Return the samples of a shard, from a cached index where it has one, so that headers are read only once.

    An entry holds the size of the shard and the time of its last change, and is computed again where they differ.

    label: the ending of the members with the class. Raises UserError as `read_shard`.
    """
    path = cache_dir() / "shards" / f"{sha256([str(shard.absolute()), label])[:32]}.json"
    state = _state(shard, label)
    cached = _cached(path, state)
    if cached is not None:
        return cached
    samples = list(read_shard(shard, label))
    if state == _state(shard, label) and time.time() - state["mtime_ns"] / 1e9 > _SETTLED:
        _save(path, state, samples)
    return samples


def read_shard(shard: Path, label: str) -> Iterator[TarSample]:
    """Yield the samples of a shard; their images are not read.

    label: the ending of the members with the class. Raises UserError naming shard and member for an archive that is
    empty, compressed or damaged, names a file twice, or has a sample without a label.
    """
    from webdataset.tariterators import group_by_keys

    count = 0
    try:
        for sample in group_by_keys(_members(shard, label)):
            key = sample["__key__"]
            files = {name: member for name, member in sample.items() if isinstance(member, Member)}
            text = sample.get(label)
            if not isinstance(text, str):
                has = ", ".join(f".{name}" for name in files)
                raise UserError(
                    f"{shard}: {key} has no .{label}, which holds its class, only {has}; set data.label"
                    + dotted_name(key, files)
                )
            count += 1
            yield TarSample(key, files, text)
    except ValueError as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"{shard}: {error.args[0]}") from error
    if not count:
        raise UserError(f"{shard} has no samples; remove it")


def dotted_name(key: str, endings: Iterable[str]) -> str:
    """Return the end of a message that explains an ending with a dot; nothing where a sample has none. key: its name"""
    dotted = next((ending for ending in endings if "." in ending), None)
    if dotted is None:
        return ""
    return f"; a sample's name ends at its first dot: {key}.{dotted} is the file .{dotted} of the sample {key}"


def _members(shard: Path, label: str) -> Iterator[dict[str, Any]]:
    """Yield the files of a shard as webdataset names them, with the text of labels and the location of other files."""
    last = "its beginning"
    try:
        with _ShardFile(shard) as stream, tarfile.open(fileobj=stream, mode="r:") as archive, shard.open("rb") as file:
            while True:
                info = archive.next()
                if info is None:
                    break
                # tarfile would keep every member in memory, millions of them in a large shard.
                archive.members = []  # type: ignore[attr-defined]
                last = info.name
                if info.size < 0 or not info.offset_data <= archive.offset <= stream.length:
                    left = stream.length - info.offset_data
                    raise tarfile.ReadError(
                        f"it declares {info.size:,} bytes; {left:,} are left to the end of the file"
                    )
                if not info.isreg() or info.issparse() or _META.match(info.name):
                    continue
                data: Member | str = Member(info.offset_data, info.size)
                if info.name.lower().endswith(f".{label}"):
                    data = _label(shard, info, file)
                yield {"fname": info.name, "data": data, "__url__": str(shard)}
            file.seek(archive.offset)
            # tarfile takes a damaged header for the end.
            if file.read(_BLOCK) != bytes(_BLOCK):
                raise tarfile.ReadError("no end of the archive")
    except RecursionError as error:
        # tarfile reads the header that follows a long name within its reading of the long name.
        raise UserError(
            f"{shard} is damaged after {last}: hundreds of headers for long names follow each other without a file; "
            "write it again"
        ) from error
    except (tarfile.TarError, OverflowError, EOFError) as error:
        hint = "; shards must not be compressed" if last == "its beginning" and shard.stat().st_size else ""
        raise UserError(
            f"{shard} is damaged or truncated after {last} ({first_line(error)}); write it again{hint}"
        ) from error


class _ShardFile(io.BufferedReader):
    """A shard that gives no more bytes than the file has: a damaged header may declare any number of them."""

    def __init__(self, shard: Path) -> None:
        super().__init__(io.FileIO(shard))
        self.length = shard.stat().st_size

    def read(self, size: int | None = -1, /) -> bytes:
        """Return the next `size` bytes, or the rest of the file where it is shorter."""
        left = max(self.length - self.tell(), 0)
        if size is None or size < 0:
            size = left
        return super().read(min(size, left))


def _label(shard: Path, info: tarfile.TarInfo, file: Any) -> str:
    if info.size > LONGEST_LABEL:
        raise UserError(f"{shard}: {info.name} has {info.size:,} bytes, too many for the name of a class")
    file.seek(info.offset_data)
    try:
        text = str(file.read(info.size), "utf-8").strip()
    except UnicodeDecodeError as error:
        raise UserError(f"{shard}: {info.name} is not UTF-8 text ({error.reason})") from error
    if not text:
        raise UserError(f"{shard}: {info.name} is empty; it should hold the class")
    return text


class TarImages:
    """Images inside shards. where: (n, 3) int64, the number of the shard, and the start and size in bytes."""

    def __init__(self, shards: list[Path], where: Tensor) -> None:
        self.shards, self.where = shards, where

    def __len__(self) -> int:
        return len(self.where)

    def __getitem__(self, index: int) -> tuple[Path, Member]:
        shard, start, size = self.where[index].tolist()
        return self.shards[shard], Member(start, size)

    def select(self, indices: Tensor) -> TarImages:
        """Return the images of the samples `indices` (m,)."""
        return TarImages(self.shards, self.where[indices])


def read_member(shard: Path, member: Member) -> bytes:
    """Return the content of a member. Raises UserError where the shard has become shorter."""
    with shard.open("rb") as file:
        file.seek(member.start)
        content = file.read(member.size)
    if len(content) < member.size:
        raise UserError(f"{shard} is shorter than it was when the run began; restore it")
    return content


class MemberName(NamedTuple):
    """The name of a member for messages. It is looked up when the message is written."""

    shard: Path
    member: Member

    def __str__(self) -> str:
        with tarfile.open(self.shard, "r:") as archive:
            for info in archive:
                if info.offset_data == self.member.start:
                    return f"{self.shard}: {info.name}"
        return f"{self.shard}: a member"


class _ShardState(TypedDict):
    """The key of a cache entry: the file, its state and the ending of labels."""

    format: int
    shard: str
    label: str
    size: int
    mtime_ns: int


def _state(shard: Path, label: str) -> _ShardState:
    stat = shard.stat()
    return _ShardState(
        format=FORMAT, shard=str(shard.absolute()), label=label, size=stat.st_size, mtime_ns=stat.st_mtime_ns
    )


def _cached(path: Path, state: _ShardState) -> list[TarSample] | None:
    """Return the samples of an entry. None where there is none, it is damaged, or of another state of the shard."""
    try:
        entry = read_json(path)
        if {key: entry.get(key) for key in state} != state:
            return None
        samples = []
        for key, label, files in entry["samples"]:
            members = {name: Member(start, size) for name, start, size in files}
            samples.append(TarSample(key, members, label))
        return samples
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _save(path: Path, state: _ShardState, samples: list[TarSample]) -> None:
    listed = []
    for sample in samples:
        files = [[name, *member] for name, member in sample.files.items()]
        listed.append([sample.key, sample.label, files])
    try:
        write_json(path, {**state, "samples": listed}, indent=None, checked=True)
        remove_temporary(path.parent, untouched=IDLE)
    except OSError as error:
        log.warning("the index of shards is not cached in %s (%s); set BLOCKYARD_CACHE=FOLDER", path.parent, error)
