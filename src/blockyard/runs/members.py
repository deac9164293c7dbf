"""Files of runs and sweeps that leave this machine or come from another one, in a bundle or over a remote storage.

A list of members names each file with its SHA-256 and its size. The list and the files may come from a stranger: names
are compared with the names that runs and sweeps have, sizes with limits, and content with the list, while it is written
and before anything reads it.
"""

from __future__ import annotations

import hashlib
import os
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from blockyard.atomic_files import open_member

Members: TypeAlias = dict[str, tuple[str, int]]  # name -> (SHA-256 in hex, bytes)

FOLDER = r"(?!\.)[\w.-]{1,120}"  # the name of a sweep, or NAME-HASH
SEED = r"s\d{1,10}"
MAX_MEMBERS = 50_000  # a sweep of a thousand cells has 8,000
MAX_MEMBER = 2**30  # bytes of a file that is no checkpoint
MAX_LIST = 20_000_000  # bytes of a list of members
MANIFEST = "manifest.json"  # the file with a list of members
_CHUNK = 2**20
_RUN = re.compile(rf"(?!sweeps/){FOLDER}/{SEED}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
# Exceptions, besides UserError, of reading plain data with any content.
UNSOUND = (TypeError, KeyError, AttributeError, IndexError, ValueError, ArithmeticError, RecursionError)


class MemberError(ValueError):
    """A file with another content than its list of members says."""


def is_run(name: object) -> bool:
    """Return whether a text is the name of a run, `NAME-HASH/sSEED`, and so leads nowhere else as a path."""
    return isinstance(name, str) and bool(_RUN.fullmatch(name))


def folded(name: str) -> str:
    """Return the same text for all names that file systems of macOS and Windows take for one: of any case and form."""
    return unicodedata.normalize("NFC", name).casefold()


def as_json(members: Mapping[str, tuple[str, int]]) -> dict[str, dict[str, Any]]:
    """Return a list of members as plain data."""
    return {name: {"sha256": digest, "bytes": size} for name, (digest, size) in sorted(members.items())}


def from_json(content: Any) -> Members:
    """Return the list of members in plain data. Raises one of UNSOUND for other data."""
    members: Members = {}
    for name, member in dict(content).items():
        digest = str(member["sha256"])
        size = int(member["bytes"])
        if not _SHA256.fullmatch(digest) or size < 0:
            raise ValueError(f"{name!r:.200} has no SHA-256 or no size")
        members[str(name)] = (digest, size)
    return members


def digest_of(source: bytes | Path) -> tuple[str, int]:
    """Return SHA-256 and bytes of a content, or of a file as `open_member` opens it. Raises UserError, OSError."""
    sha256 = hashlib.sha256()
    size = 0
    chunks = [source] if isinstance(source, bytes) else chunks_of(source)
    for chunk in chunks:
        sha256.update(chunk)
        size += len(chunk)
    return sha256.hexdigest(), size


def chunks_of(path: Path) -> Iterator[bytes]:
    """Yield the content of a file that `open_member` opens, in parts. Raises UserError, OSError."""
    with os.fdopen(open_member(path), "rb") as file:
        while chunk := file.read(_CHUNK):
            yield chunk


def write_checked(folder: Path, name: str, chunks: Iterable[bytes], members: Members) -> None:
    """Write a member, which is not there yet, into a folder.

    The size in a list is its writer's word, so the bytes are counted before they are written.

    Raises MemberError where the content is not that of the list, OSError.
    """
    digest, size = members[name]
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    sha256 = hashlib.sha256()
    written = 0
    try:
        with path.open("xb") as file:
            for chunk in chunks:
                written += len(chunk)
                if written > size:
                    raise MemberError(f"{name} has more than the {size:,} bytes of its {MANIFEST}")
                sha256.update(chunk)
                file.write(chunk)
        if written < size:
            raise MemberError(f"{name} has {written:,} of the {size:,} bytes of its {MANIFEST}")
        if sha256.hexdigest() != digest:
            raise MemberError(f"the SHA-256 of {name} is not that of its {MANIFEST}: it was damaged or changed")
    except BaseException:
        path.unlink(missing_ok=True)  # nobody may take it for a checked one
        raise
