"""The captions of a folder's metadata.jsonl, and the images that they belong to, as files or in archives beside it."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import BinaryIO, cast

import torch
from torch import Tensor

from blockyard.data._decode import decode_stream
from blockyard.data._pair_file import NAMES, SPLIT
from blockyard.data._table_file import column_names, read_table
from blockyard.data._table_rows import check_rows, lines_where
from blockyard.errors import UserError

METADATA = "metadata.jsonl"
NAME = "file_name"


@dataclass(frozen=True)
class Captioned:
    """A folder's images and captions, in the order of the file. assigned: the split of each, or None."""

    folder: Path
    names: list[str]
    texts: list[str]
    assigned: list[int] | None


def read_captions(folder: Path, text: str) -> Captioned:
    """Reads the captions in the column `text`. Raises UserError naming every line that is none, by its problem."""
    path = folder / METADATA
    has_split = SPLIT in column_names(path)
    columns = {"data.path": NAME, "data.text": text, **({"the split of an image": SPLIT} if has_split else {})}
    table = read_table(path, columns)
    names, texts = table[NAME], table[text]
    members = _members(folder)
    problems = {
        f"no {NAME}": lines_where(names.isna()),
        f"an empty {text}": lines_where(texts.isna() | (texts.str.strip() == "")),
        "its image is named in an earlier line": lines_where(names.notna() & names.duplicated()),
        "its image is neither in the folder nor in a .zip beside it": lines_where(
            names.notna() & ~names.map(lambda name: name is not None and _is_there(folder, members, name)).astype(bool)
        ),
    }
    if has_split:
        problems[f"its {SPLIT} is none of {', '.join(NAMES)}"] = lines_where(~table[SPLIT].isin(list(NAMES)))
    check_rows(path, problems)
    assigned = [NAMES[name] for name in table[SPLIT]] if has_split else None
    return Captioned(folder, names.tolist(), texts.str.strip().tolist(), assigned)


def read_images(captioned: Captioned, *, channels: int, size: int) -> Tensor:
    """Decodes all images: uint8 (n, channels, size, size). Raises UserError naming all that are none."""
    images, problems = [], []
    for name, stream in _streams(captioned.folder, captioned.names):
        try:
            images.append(decode_stream(stream, name, channels=channels, size=size, on_white=True))
        except UserError as error:
            problems.append(str(error))
    if problems:
        more = f"; and {len(problems) - 10} more" if len(problems) > 10 else ""
        raise UserError(f"{captioned.folder}: {'; '.join(problems[:10])}{more}")
    return torch.stack(images)


def _streams(folder: Path, names: Sequence[str]) -> Iterator[tuple[str, BinaryIO]]:
    members = _members(folder)
    with ExitStack() as stack:
        opened: dict[Path, zipfile.ZipFile] = {}
        for name in names:
            if name not in members:
                with (folder / name).open("rb") as file:
                    yield name, file
                continue
            archive = members[name]
            if archive not in opened:
                opened[archive] = stack.enter_context(zipfile.ZipFile(archive))
            with opened[archive].open(name) as member:
                yield name, cast(BinaryIO, member)


def _members(folder: Path) -> dict[str, Path]:
    """The archive of each image that is in one. Raises UserError for an archive that cannot be read."""
    members: dict[str, Path] = {}
    for archive in sorted(folder.glob("*.zip")):
        try:
            with zipfile.ZipFile(archive) as opened:
                members |= dict.fromkeys((name for name in opened.namelist() if not name.endswith("/")), archive)
        except (OSError, zipfile.BadZipFile, NotImplementedError, ValueError) as error:
            raise UserError(f"{archive} cannot be read as an archive ({error}); repair or remove it") from error
    return members


def _is_there(folder: Path, members: dict[str, Path], name: str) -> bool:
    """Whether a name is that of an image in an archive, or of a file below the folder."""
    if name in members:
        return True
    inside = not PurePosixPath(name).is_absolute() and ".." not in PurePosixPath(name).parts and "\0" not in name
    return inside and (folder / name).is_file()
