"""A folder on a remote storage, as fsspec opens it: s3://bucket/prefix, gs://..., sftp://host/folder, file:///folder.

Reference: https://filesystem-spec.readthedocs.io, section "API Reference"
"""

from __future__ import annotations

import contextlib
import errno
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from blockyard.config.untrusted.local_path import check_inside
from blockyard.errors import UserError, first_line, printable
from blockyard.runs.redact import redact_text

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

_ADDRESS = re.compile(r"(?P<scheme>[A-Za-z][\w+.-]*)://(?P<path>.*)", re.DOTALL)
_CHUNK = 2**22  # bytes
_SMALL = 2**20  # bytes; smaller files are read together
_TOGETHER = 64  # files
_WAY_OUT = {
    "FileNotFoundError": "the bucket or folder does not exist",
    "PermissionError": "access is denied; check the name of the bucket and your credentials",
    "ConnectionError": "it cannot be reached; check the network",
    "EndpointConnectionError": "it cannot be reached; check the network, and AWS_ENDPOINT_URL if it is set",
    "gaierror": "it cannot be reached; check the network",
    "NoCredentialsError": "credentials are missing; for s3 set AWS_PROFILE, or AWS_ACCESS_KEY_ID and its secret",
}


class TransferError(Exception):
    """The storage failed while something was read or written. The message says where and why, without secrets."""


@dataclass(frozen=True)
class Remote:
    """A folder on a storage. Every method raises TransferError where the storage fails.

    root: its path in the file system; address: as it was typed, without secrets
    """

    file_system: AbstractFileSystem
    root: str
    address: str

    @classmethod
    def open(cls, address: str) -> Remote:
        """Return the folder of an address. Nothing is read yet. Raises UserError."""
        import fsspec

        shown = printable(redact_text(address))
        match = _ADDRESS.fullmatch(address)
        if match is None or "::" in address:
            raise UserError(f"{shown!r} is not an address of a storage; write s3://bucket/folder, or file:///folder")
        scheme = match["scheme"].lower()
        options = {}
        if scheme in ("file", "local"):
            options["auto_mkdir"] = True
        try:
            file_system, root = fsspec.core.url_to_fs(address, **options)
        except ImportError as error:
            package = "pip install 'blockyard[remote]'" if scheme in ("s3", "s3a") else first_line(error)
            raise UserError(f"{shown}: {scheme} needs a package that is not installed: {package}") from error
        except ValueError as error:
            raise UserError(f"{shown}: {redact_text(first_line(error))}") from error
        except Exception as error:  # a file system may connect when it is made, and fail in any way
            raise UserError(f"{shown} cannot be opened: {_reason(error)}") from error
        root = root.rstrip("/")
        if not root:
            raise UserError(f"{shown} names no bucket or folder; write {scheme}://NAME/FOLDER")
        return cls(file_system, root, shown)

    @property
    def local(self) -> Path | None:
        """Return the path of a folder of this machine, or of one that is mounted; None for any other."""
        protocols = self.file_system.protocol
        if isinstance(protocols, str):
            protocols = (protocols,)
        if "file" in protocols:
            return Path(self.root)
        return None

    def listing(self) -> dict[str, int]:
        """Return the size of each file below the folder by its name there; links are left out."""
        with self._explained():
            self.file_system.invalidate_cache()  # another process may have written since this one has looked
            entries = self.file_system.find(self.root, detail=True)
        beginning = f"{self.root}/"
        sizes = {}
        for path, info in entries.items():
            if path.startswith(beginning) and info.get("type") == "file" and not info.get("islink"):
                sizes[path.removeprefix(beginning)] = int(info.get("size") or 0)
        return sizes

    def read(self, sizes: Mapping[str, int]) -> Iterator[tuple[str, Iterable[bytes]]]:
        """Yield each file with its content in parts, at most one byte more than its size.

        Small files come first, many read in parallel where the storage can.
        """
        small = [name for name, size in sizes.items() if 0 < size <= _SMALL]
        for start in range(0, len(small), _TOGETHER):
            names = small[start : start + _TOGETHER]
            for name, content in zip(names, self._contents(names, sizes), strict=True):
                yield name, [content]
        for name, size in sizes.items():
            if size == 0:  # an object store refuses to read a part of nothing
                yield name, []
            elif size > _SMALL:
                yield name, self._parts(name, size)

    def _contents(self, names: list[str], sizes: Mapping[str, int]) -> list[bytes]:
        paths = [self._path(name) for name in names]
        ends = [sizes[name] + 1 for name in names]
        with self._explained():
            contents = self.file_system.cat_ranges(paths, [0] * len(paths), ends)
            for content in contents:
                if isinstance(content, Exception):
                    raise content
        return [bytes(content) for content in contents]

    def _parts(self, name: str, size: int) -> Iterator[bytes]:
        left = size + 1
        with self._explained(), self.file_system.open(self._path(name), "rb") as file:
            while left > 0 and (part := file.read(min(_CHUNK, left))):
                left -= len(part)
                yield part

    def write(self, name: str, parts: Iterable[bytes]) -> None:
        """Write a file, in place of an older one.

        A folder of this machine may be shared with a stranger: a link in it that leads out of it is refused by
        UserError. So are files that `parts` refuses.
        """
        path = self._path(name)
        if self.local is not None:
            check_inside(Path(path), self.local)
        with self._explained():
            self.file_system.makedirs(path.rpartition("/")[0], exist_ok=True)
            with self.file_system.open(path, "wb") as file:
                for part in parts:
                    file.write(part)

    def remove(self, names: Iterable[str]) -> None:
        """Remove files, as far as they are there."""
        for name in names:
            with self._explained(), contextlib.suppress(FileNotFoundError):
                self.file_system.rm_file(self._path(name))

    def _path(self, name: str) -> str:
        return f"{self.root}/{name}"

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except UserError:
            raise
        except Exception as error:  # each library of a storage has exceptions of its own
            raise TransferError(f"{self.address}: {_reason(error)}") from error


def _reason(error: BaseException) -> str:
    """Return what failed, in one sentence without secrets."""
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return "no space is left there"
    text = redact_text(first_line(error))
    for kind in type(error).__mro__:
        if kind.__name__ in _WAY_OUT:
            return printable(f"{_WAY_OUT[kind.__name__]} ({text})")
    return printable(f"{type(error).__name__}: {text}")
