"""Your own images with a caption each: a folder with metadata.jsonl, as Hugging Face's image folders have it.

Source: the ImageFolder layout of Hugging Face datasets; Vinyals et al. 2015, Show and Tell (arXiv 1411.4555), for the
    task
Reference: datasets.load_dataset("imagefolder")

    metadata.jsonl   {"file_name": "noto/1f431.png", "text": "cat face", "split": "train"}
                     {"file_name": "noto/1f436.png", "text": "dog face"}      split may be left out of all lines

Images lie in the folder or in .zip archives in it. They are brought to `size` x `size` as the images of image_folder.
Without splits in the file `split_seed` draws them.
"""

from __future__ import annotations

import logging
import os
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Literal, cast

import torch
from torch import Tensor

from blockyard.contracts import (
    BatchSize,
    DataSpec,
    FittingValue,
    Length,
    Samples,
    Side,
    Splits,
    Text,
    Tokenizer,
)
from blockyard.data.files.digest import sha256
from blockyard.data.files.file_names import spelled
from blockyard.data.files.images import decode_image, read_picture
from blockyard.data.files.split_names import SPLIT, SPLIT_NAMES, split_number
from blockyard.data.files.tables import check_rows, column_names, lines_where, read_table
from blockyard.data.splits.captions import caption_parts
from blockyard.data.splits.fitting import equally_spaced_rows, fitting_context
from blockyard.data.splits.loaded import LoadedData
from blockyard.data.splits.row_splits import split_rows
from blockyard.data.splits.split import DrawnSplits
from blockyard.data.splits.text_tokenizer import text_tokenizer
from blockyard.errors import UserError

METADATA = "metadata.jsonl"
NAME = "file_name"
log = logging.getLogger("blockyard")


@dataclass(kw_only=True, eq=False)
class Captions(DrawnSplits, LoadedData):
    """Images with a caption each, decoded once.

    Options:
        path: the folder that holds metadata.jsonl
        text: the key of the captions in metadata.jsonl
        size: side of an image in pixels after resizing
        channels: 3 for color, 1 for grayscale
        blank: show an empty image, for the rival that sees nothing
        context: maximum tokens of a caption with its end token; longer ones are left out
        samples: maximum training images; null uses all
        train_size: training images to keep, before those with long captions are left out; null keeps all, and a
            smaller size selects a subset of a larger one
        validation_fraction: share of all images that is the validation split, if the file names none
        test_fraction: share of all images that is the test split, if the file names none
        split_seed: seed of the split; independent of the run's seed, so that all seeds share one split
        batch_size: images in a training step, over all processes
        eval_batch_size: images in a validation or test step, over all processes
    """

    path: Text = "data/captions"
    text: Text = "text"
    size: Side = 32
    channels: Literal[1, 3] = 3
    blank: bool = False
    context: Length = 32
    samples: Samples | None = None
    batch_size: BatchSize = 64
    eval_batch_size: BatchSize = 256

    @property
    def spec(self) -> DataSpec:
        """Captions of different lengths, each of an image."""
        source = DataSpec("image", (self.channels, self.size, self.size))
        return DataSpec("text", (self.context,), variable=True, source=source)

    def missing(self) -> str | None:
        """Return a message that says why there are no captions and the remedy, or None."""
        if (self._folder / METADATA).is_file():
            return None
        return f"no {METADATA} in {self._folder.absolute()}; set data.path=FOLDER that holds one, and the images"

    def fitting(self, length: Callable[[str], int], source_length: Callable[[str], int]) -> list[FittingValue]:
        """Return a context that holds most captions with their end token."""
        if self.missing() is not None:
            return []
        texts = read_captions(self._folder, self.text).texts
        lengths = [length(texts[row]) + 1 for row in equally_spaced_rows(len(texts))]
        return fitting_context("data.context", lengths, "captions")

    def load(self, tokenizer: Tokenizer) -> Splits:
        """Decode the images and encode the captions; fit the tokenizer on those of training if it has no state."""
        tokenizer = text_tokenizer(tokenizer)
        captioned = read_captions(self._folder, self.text)
        images = read_images(captioned, channels=self.channels, size=self.size)
        fractions = (self.validation_fraction, self.test_fraction)
        alike = torch.zeros(len(images), dtype=torch.int64)
        parts = split_rows(self._folder / METADATA, alike, captioned.assigned, fractions, self.split_seed)
        if self.samples is not None:
            parts[0] = parts[0][: self.samples]
        parts = [part[self.kept(number, len(part))] for number, part in enumerate(parts)]
        self._fingerprint = sha256([images, *captioned.names, *captioned.texts, *parts])
        return caption_parts(parts, images, captioned.names, captioned.texts, self.spec, tokenizer, blank=self.blank)

    def read_source(self, path: str) -> Tensor:
        """Return an image file as float32 (1, C, size, size) from -1 (black) to 1."""
        return read_picture(Path(os.path.expanduser(path)), channels=self.channels, size=self.size)

    @property
    def _folder(self) -> Path:
        return Path(os.path.expanduser(self.path))


@dataclass(frozen=True)
class Captioned:
    """Images of a folder with their captions, in the order of the file. assigned: the split of each, or None."""

    folder: Path
    names: list[str]
    texts: list[str]
    assigned: list[int] | None


def read_captions(folder: Path, text: str) -> Captioned:
    """Read the captions in the column `text`. Raises UserError naming every bad line, by its problem."""
    path = folder / METADATA
    has_split = SPLIT in column_names(path)
    columns = {"data.path": NAME, "data.text": text}
    if has_split:
        columns["the split of an image"] = SPLIT
    table = read_table(path, columns)
    members = _members(folder)
    texts = table[text]

    def there(name: str) -> bool:
        """Return whether a name is that of an image in an archive, or of a file below the folder."""
        if name in members:
            return True
        inside = not PurePosixPath(name).is_absolute() and ".." not in PurePosixPath(name).parts and "\0" not in name
        return inside and (folder / name).is_file()

    names = table[NAME].map(lambda name: spelled(name, there) or name, na_action="ignore")
    problems = {
        f"no {NAME}": lines_where(names.isna()),
        f"an empty {text}": lines_where(texts.isna() | (texts.str.strip() == "")),
        "its image is named in an earlier line": lines_where(names.notna() & names.duplicated()),
        "its image is neither in the folder nor in a .zip beside it": lines_where(
            names.notna() & ~names.map(there, na_action="ignore").eq(True)
        ),
    }
    if has_split:
        assigned = table[SPLIT].map(split_number, na_action="ignore")
        problems[f"its {SPLIT} is none of {SPLIT_NAMES}"] = lines_where(assigned.isna())
    check_rows(path, problems)
    splits = assigned.astype(int).tolist() if has_split else None
    return Captioned(folder, names.tolist(), texts.str.strip().tolist(), splits)


def read_images(captioned: Captioned, *, channels: int, size: int) -> Tensor:
    """Decode all images to uint8 (n, channels, size, size). Raises UserError naming all files that cannot be read."""
    images, problems = [], []
    for name, stream in _streams(captioned.folder, captioned.names):
        try:
            images.append(decode_image(stream, name, channels=channels, size=size))
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
    """Return the archive of each archived image. Raises UserError for an archive that cannot be read."""
    members: dict[str, Path] = {}
    for archive in sorted(folder.glob("*.zip")):
        try:
            with zipfile.ZipFile(archive) as opened:
                for name in opened.namelist():
                    if not name.endswith("/"):  # a folder
                        members[name] = archive
        except (OSError, zipfile.BadZipFile, NotImplementedError, ValueError) as error:
            raise UserError(f"{archive} cannot be read as an archive ({error}); repair or remove it") from error
    return members
