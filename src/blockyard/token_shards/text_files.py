"""Text files of any size: their length in characters, places in them, and the texts between two places.

The texts of a table's column become such files: a text follows the other, each ended by a line break. They lie in
FOLDER.texts while shards are written, are the same at every start, and are removed at the end.
"""

from __future__ import annotations

import codecs
import contextlib
import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from blockyard.atomic_files import TEMPORARY, is_regular, replacing
from blockyard.data.files.file_names import data_files
from blockyard.data.files.table_rows import read_rows
from blockyard.data.files.tables import kind_of
from blockyard.errors import UserError, fold

_READ = 2**24  # bytes
_WINDOW = 2**16  # bytes in which a place to cut is looked for
_OVERLAP = 16  # bytes of the window before: three whole characters and parts of two
# After a line's end or before a space, between words: cut there, the two parts have the same tokens as the whole.
_CUT = re.compile(r"(?<=\S)(?:\n(?=\S)|(?= \S))")
PACKED = frozenset({".gz", ".zst", ".xz", ".bz2", ".zip"})
_ROWS = 10_000  # texts that are written at a time
_OWN = re.compile(rf"[0-9]{{5,}}-.*\.txt|{re.escape(TEMPORARY)}.*", re.S)  # names of the files


@dataclass(frozen=True)
class TextSource:
    """A file. start: bytes of its byte order mark, before its text; characters: after the mark."""

    path: str
    size: int
    start: int
    characters: int
    sha256: str

    def record(self) -> dict[str, object]:
        """Return plain data."""
        return asdict(self)


@dataclass(frozen=True)
class Span:
    """The text of a file from one byte to another."""

    path: str
    start: int
    stop: int

    @property
    def size(self) -> int:
        """Bytes."""
        return self.stop - self.start

    def read(self) -> str:
        """Return the text. Raises UserError for a file that has become shorter."""
        with open(self.path, "rb") as file:
            file.seek(self.start)
            content = file.read(self.size)
        if len(content) != self.size:
            raise UserError(f"{self.path} changed: it ends before byte {self.stop:,}")
        return content.decode("utf-8")


def find_files(paths: list[Path], pattern: str) -> list[Path]:
    """Return the files, and files in folders that match the pattern, sorted. Raises UserError for other paths."""
    files = []
    for path in paths:
        if path.is_dir():
            files += data_files(path, filter(is_regular, path.rglob(pattern)))
            if not any(file.is_relative_to(path) for file in files):
                raise UserError(f"no file {pattern} under {path}; set pattern=*.EXTENSION")
        elif path.is_file():
            files.append(path)
        else:
            raise UserError(f"nothing at {path}")
    for file in files:
        if file.suffix == ".json":
            raise UserError(f"{file} is JSON; tokenize reads tables as JSON Lines (.jsonl), an object in each line")
        if file.suffix in PACKED and not kind_of(file):
            raise UserError(f"{file} is compressed; tokenize reads plain text and tables: unpack it first")
    if len(set(files)) < len(files):
        raise UserError(f"{next(file for file in files if files.count(file) > 1)} is named twice")
    return files


def scan(path: Path) -> TextSource:
    """Read a file once. Raises UserError naming the first byte that is not UTF-8, or an empty file."""
    digest = hashlib.sha256()
    characters = 0
    size = 0
    for text, content in _decoded(path, 0):
        digest.update(content)
        size += len(content)
        characters += len(text)
    if not size:
        raise UserError(f"{path} is empty (0 bytes); remove it")
    with path.open("rb") as file:
        start = len(codecs.BOM_UTF8) if file.read(3) == codecs.BOM_UTF8 else 0
    return TextSource(str(path), size, start, characters - bool(start), digest.hexdigest())


def byte_of(source: TextSource, character: int) -> int:
    """Return the first byte of character number `character` of a file."""
    if character >= source.characters:
        return source.size
    place = source.start
    for text, _ in _decoded(Path(source.path), source.start):
        if character <= len(text):
            return place + len(text[:character].encode())
        place += len(text.encode())
        character -= len(text)
    return place


def cut(span: Span, size: int) -> Iterator[Span]:
    """Yield spans of about `size` bytes. They end between two words, so that together they have the whole's tokens."""
    start = span.start
    while span.stop - start > size:
        place = _next_cut(span, start + size)
        if place >= span.stop:
            break
        yield Span(span.path, start, place)
        start = place
    yield Span(span.path, start, span.stop)


def _next_cut(span: Span, place: int) -> int:
    """Return the first byte from `place` on at which a text may be cut, or the end of the span."""
    with open(span.path, "rb") as file:
        file.seek(place)
        content = b""
        while place + len(content) < span.stop:
            content += file.read(min(_WINDOW, span.stop - place - len(content)))
            # The window may begin inside a character, whose further bytes are 10xxxxxx, and end inside another one.
            skipped = next((n for n, byte in enumerate(content) if byte & 0xC0 != 0x80), len(content))
            text = content[skipped:].decode("utf-8", errors="ignore")
            match = _CUT.search(text)
            if match:
                return place + skipped + len(text[: match.end()].encode())
            place += max(0, len(content) - _OVERLAP)
            content = content[-_OVERLAP:]
    return span.stop


def _decoded(path: Path, start: int) -> Iterator[tuple[str, bytes]]:
    """Yield the text of a file in parts, each with the bytes that were read for it. Raises UserError."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    place = start
    with path.open("rb") as file:
        file.seek(start)
        while True:
            try:
                content = file.read(_READ)
            except OSError as error:
                raise UserError(f"{path} cannot be read: {error.strerror}; make it readable or remove it") from error
            pending = len(decoder.getstate()[0])
            try:
                text = decoder.decode(content, final=not content)
            except UnicodeDecodeError as error:
                where = place - pending + error.start
                raise UserError(f"{path} is not UTF-8 text (byte {where:,}); convert or remove it") from error
            place += len(content)
            if not content:
                return
            yield text, content


def texts_folder(folder: Path) -> Path:
    """Return the folder of the texts of tables while the shards of `folder` are written."""
    return folder.with_name(f"{folder.name}.texts")


def without_tables(files: Sequence[Path], folder: Path, column: str | None) -> list[Path]:
    """Return the files with a text file in place of each table, in the same order.

    column: of the texts. Raises UserError for tables without it, a column without tables, and rows without text.
    """
    tables = [file for file in files if kind_of(file)]
    if column is None:
        if tables:
            raise UserError(f"{tables[0]} is a table; name the column of its texts: column=text")
        return list(files)
    if not tables:
        raise UserError(f"column={column} has no effect: no table is among the files")
    target = texts_folder(folder)
    others = [file.name for file in _listed(target) if not _OWN.fullmatch(file.name)]
    if others:
        raise UserError(f"{target} is needed for the texts of tables and holds {fold(others)}; move it, or choose out=")
    target.mkdir(parents=True, exist_ok=True)
    texts = []
    for number, file in enumerate(files):
        if kind_of(file):
            file = _extracted(file, target / f"{number:05}-{file.name}.txt", column)
        texts.append(file)
    return texts


def remove_texts(folder: Path) -> None:
    """Remove the texts of tables, once the shards of `folder` are written, and nothing else."""
    target = texts_folder(folder)
    for file in _listed(target):
        if _OWN.fullmatch(file.name) and not file.is_dir():
            file.unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # it is not there, or somebody put something into it meanwhile
        target.rmdir()


def _listed(target: Path) -> list[Path]:
    return sorted(target.iterdir()) if target.is_dir() else []


def _extracted(table: Path, path: Path, column: str) -> Path:
    rows = read_rows([table], {"column": column}, {column: "text"})
    rows.refuse({f"no {column}": rows.blank(column)})
    with replacing(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        for start in range(0, len(rows), _ROWS):
            texts = rows.texts(column, range(start, min(start + _ROWS, len(rows))))
            file.writelines(f"{text}\n" for text in texts)
    return path
