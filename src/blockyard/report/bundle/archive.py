"""The ZIP file of a bundle: the same bytes for the same content, and read without trust in its writer.

    manifest.json                                            format, versions, SHA-256 and size of every other member
    ro-crate-metadata.json                                   the same files as an RO-Crate, see crate.py
    outputs/sweeps/NAME/plan.json, comparison.json, report.html
    outputs/NAME-HASH/sSEED/config.yaml, run.json, ...

A reader refuses, before it unpacks anything: names that lead elsewhere or differ in case alone, links, folders,
encryption, other methods of compression, bytes that belong to no member, members over each other, and more members,
bytes or compression than a bundle has. Only names of a bundle are taken, so no pickle can be among them. While it
unpacks, it counts the bytes that come out, and compares their SHA-256 with the manifest.

Reference: APPNOTE.TXT of PKWARE for the format; Fifield 2019, A better zip bomb, for members over each other
"""

from __future__ import annotations

import json
import os
import re
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TypeAlias

from blockyard.atomic_files import is_regular, read_member, replacing
from blockyard.errors import UserError, first_line, printable, quoted
from blockyard.runs.members import (
    FOLDER,
    MANIFEST,
    MAX_LIST,
    MAX_MEMBER,
    MAX_MEMBERS,
    SEED,
    MemberError,
    Members,
    as_json,
    digest_of,
    folded,
    from_json,
    write_checked,
)

CRATE = "ro-crate-metadata.json"
FORMAT = 1
ROOT = "outputs"
SWEEP_MEMBERS = ("plan.json", "comparison.json", "report.html")
RUN_MEMBERS = (
    *("config.yaml", "run.json", "status.json", "metrics.csv", "summary.json", "predictions-test.npz"),
    *("written-test.jsonl", "extrapolation-test.json", "comparison.json", "report.html"),
    *("model.safetensors", "tokenizer.json", "source_tokenizer.json"),
)
_MEMBER = re.compile(
    rf"{re.escape(CRATE)}"
    rf"|{ROOT}/(?:sweeps/{FOLDER}/(?:{'|'.join(map(re.escape, SWEEP_MEMBERS))})"
    rf"|(?!sweeps/){FOLDER}/{SEED}/(?:{'|'.join(map(re.escape, RUN_MEMBERS))}))"
)
_TIME = (1980, 1, 1, 0, 0, 0)  # the earliest that the format has
_UNIX, _MODE = 3, stat.S_IFREG | 0o644
_END = b"PK\x05\x06" + bytes(18)  # what the file ends in, without a comment
_HEADER = 30  # bytes of a member before its name

MAX_FILE = 2**31 - 1  # beyond it, members have fields of their own
MAX_TOTAL = 8 * 2**30
MAX_RATIO = 400  # bytes out of one byte, beyond the first `_SMALL`; a plan compresses by 60
_SMALL = 2**20
_CHUNK = 2**20
# All that zipfile raises for damaged files; the two unusual ones are for compression and encryption that it lacks.
_UNREADABLE = (zipfile.BadZipFile, zlib.error, struct.error, EOFError, NotImplementedError, RuntimeError, ValueError)

Source: TypeAlias = bytes | Path  # the content of a member, or the file that has it


@dataclass(frozen=True)
class BundleManifest:
    """The content of manifest.json.

    kind: sweep or run; name: of the sweep's folder or the run, `NAME-HASH/sSEED`
    versions: of the packages that its runs used, package -> versions
    members: name -> (SHA-256 in hex, bytes)
    """

    kind: str
    name: str
    versions: dict[str, list[str]]
    members: Members

    def as_json(self) -> bytes:
        """Return the content of manifest.json."""
        content = {"format": FORMAT, "kind": self.kind, "name": self.name, "versions": self.versions}
        return (json.dumps({**content, "members": as_json(self.members)}, indent=1, sort_keys=True) + "\n").encode()


def digests(members: Mapping[str, Source]) -> Members:
    """Return SHA-256 in hex and bytes by member. Raises UserError for one that is too large, OSError."""
    digest_by_member: Members = {}
    for member, source in members.items():
        digest_by_member[member] = digest_of(source)
        size = digest_by_member[member][1]
        if size > MAX_MEMBER:
            raise UserError(f"{member} has {size:,} bytes; a bundle holds files of at most {MAX_MEMBER:,}")
    return digest_by_member


def write_archive(path: Path, manifest: BundleManifest, members: Mapping[str, Source]) -> None:
    """Write a bundle atomically: the bytes are a function of the arguments and of zlib's version. Raises OSError."""
    try:
        # Without the ZIP64 fields, which a reader refuses, zipfile raises for a file that is too large.
        with replacing(path) as temporary, zipfile.ZipFile(temporary, "w", allowZip64=False) as archive:
            for member, source in [(MANIFEST, manifest.as_json()), *sorted(members.items())]:
                assert member == MANIFEST or _MEMBER.fullmatch(member), member
                # A fixed time, system and mode: the same content is the same file on every machine.
                info = zipfile.ZipInfo(member, _TIME)
                info.create_system = _UNIX
                info.external_attr = _MODE << 16
                archive.writestr(info, _content(source), zipfile.ZIP_DEFLATED, 9)
    except zipfile.LargeZipFile:
        raise UserError(f"{path} would have more than {MAX_FILE:,} bytes; leave weights=true out") from None


def _content(source: Source) -> bytes:
    if isinstance(source, bytes):
        return source
    return read_member(source)


def unpack(path: Path, folder: Path) -> BundleManifest:
    """Write every member of a bundle into `folder`, which is empty, and return the manifest.

    Runs nothing of the bundle. Raises UserError for a file that is not a bundle of this format, that could do harm, or
    that has a member with another SHA-256 than its manifest says.
    """
    if not is_regular(path):
        # A link without a target does not exist, and yet its name is there.
        if os.path.lexists(path):
            raise UserError(f"{path}: it is not a regular file")
        raise UserError(f"{path}: no such file")
    size = path.stat().st_size
    if size > MAX_FILE:
        raise _refused(path, f"it has {size:,} bytes, at most {MAX_FILE:,} are read")
    try:
        with path.open("rb") as file, zipfile.ZipFile(file) as archive:
            file.seek(-len(_END), os.SEEK_END)
            end = file.read()
            if not end.startswith(_END[:4]):
                raise _refused(path, "it has a comment, or bytes behind its list of members")
            disk, disk_of_list, on_disk, members = struct.unpack_from("<4H", end, 4)
            if (disk, disk_of_list) != (0, 0) or {on_disk, members} != {len(archive.infolist())}:
                raise _refused(path, f"its end names {members:,} members, and its list has {len(archive.infolist()):,}")
            return _unpack(archive, path, folder)
    except UserError:
        raise
    except _UNREADABLE as error:
        raise _refused(path, f"it is damaged or no ZIP file ({first_line(error)})") from error
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or first_line(error)}") from error


def _unpack(archive: zipfile.ZipFile, path: Path, folder: Path) -> BundleManifest:
    infos = archive.infolist()
    _check_infos(infos, path, archive.start_dir)
    named = {info.filename: info for info in infos}
    if MANIFEST not in named:
        raise _refused(path, f"it has no {MANIFEST}; `blockyard bundle` writes bundles")
    if named[MANIFEST].file_size > MAX_LIST:
        raise _refused(path, f"its {MANIFEST} has {named[MANIFEST].file_size:,} bytes")
    manifest = _manifest(archive.read(named[MANIFEST]), path)
    unlisted = sorted(named.keys() - manifest.members.keys() - {MANIFEST})
    missing = sorted(manifest.members.keys() - named.keys())
    if unlisted:
        raise _refused(path, f"it holds {unlisted[0]}, which its {MANIFEST} lacks")
    if missing:
        raise _refused(path, f"it lacks {missing[0]}")
    for name, (_, count) in manifest.members.items():
        size = named[name].file_size
        if size != count:
            raise _refused(path, f"{name} would unpack to {size:,} bytes, its {MANIFEST} says {count:,}")
        with archive.open(named[name]) as member:
            try:
                write_checked(folder, name, _chunks(member), manifest.members)
            except MemberError as error:
                raise _refused(path, str(error)) from error
    return manifest


def _chunks(member: IO[bytes]) -> Iterator[bytes]:
    while chunk := member.read(_CHUNK):
        yield chunk


def _check_infos(infos: list[zipfile.ZipInfo], path: Path, start: int) -> None:
    """Raise UserError for a list of members that no bundle has. start: where the list itself begins in the file."""
    if len(infos) > MAX_MEMBERS:
        raise _refused(path, f"it has {len(infos):,} members, at most {MAX_MEMBERS:,} are read")
    total = 0
    seen: set[str] = set()
    end = 0  # of the member before
    for info in sorted(infos, key=lambda info: info.header_offset):
        name = info.filename
        total += info.file_size
        reason = _problem(info)
        if reason is None and folded(name) in seen:
            reason = "it is there twice, or differs from another in case alone"
        seen.add(folded(name))
        if reason is None and info.header_offset != end:
            reason = "it lies over another member, or behind bytes of none"
        if reason is not None:
            raise _refused(path, f"member {quoted(name)}: {reason}")
        end = info.header_offset + _HEADER + len(info.orig_filename.encode()) + info.compress_size
    if total > MAX_TOTAL:
        raise _refused(path, f"it would unpack to {total:,} bytes, at most {MAX_TOTAL:,} are")
    if infos and end != start:
        raise _refused(path, "bytes of no member lie before its list of members")


def _problem(info: zipfile.ZipInfo) -> str | None:
    """Return why a bundle cannot have this member, or None."""
    kind = stat.S_IFMT(info.external_attr >> 16)
    if info.filename != MANIFEST and not _MEMBER.fullmatch(info.filename):
        return "it is not a file of a run or a sweep, so nothing is written under its name"
    if kind not in (0, stat.S_IFREG):
        return "it is a link, or no regular file"
    if info.flag_bits & 0x1:
        return "it is encrypted"
    if info.flag_bits & 0x8 or info.extra:
        return "its size stands behind it, or it has fields of its own, as in no bundle"
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        return "it is compressed by another method than deflate"
    if info.file_size > MAX_MEMBER:
        return f"it would unpack to {info.file_size:,} bytes, at most {MAX_MEMBER:,} are"
    if info.file_size > _SMALL + MAX_RATIO * info.compress_size:
        return f"it would unpack to {info.file_size / max(info.compress_size, 1):,.0f} times its bytes"
    return None


def _manifest(content: bytes, path: Path) -> BundleManifest:
    """Return the manifest. Raises UserError where it is damaged or of another format."""
    try:
        raw = json.loads(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise _refused(path, f"its {MANIFEST} is damaged ({first_line(error)})") from error
    if not isinstance(raw, dict) or "format" not in raw:
        raise _refused(path, f"its {MANIFEST} is damaged (no format)")
    if raw["format"] != FORMAT:
        raise _refused(path, f"it has format {quoted(raw['format'])}; this version reads {FORMAT}")
    try:
        members = from_json(raw["members"])
        versions: dict[str, list[str]] = {}
        for package, numbers in dict(raw["versions"]).items():
            versions[str(package)] = [str(number) for number in list(numbers)]
        manifest = BundleManifest(str(raw["kind"]), str(raw["name"]), versions, members)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise _refused(path, f"its {MANIFEST} is damaged ({first_line(error)})") from error
    record = f"{ROOT}/{manifest.name}/run.json"
    if manifest.kind == "sweep":
        record = f"{ROOT}/sweeps/{manifest.name}/plan.json"
    if manifest.kind not in ("sweep", "run") or record not in members:
        raise _refused(path, f"its {MANIFEST} names {quoted(manifest.kind)} {quoted(manifest.name)}, which it lacks")
    return manifest


def _refused(path: Path, reason: str) -> UserError:
    return UserError(printable(f"{path} is not read: {reason}"))
