"""An image with a class: the rows of a table name its file, or hold its bytes."""

from __future__ import annotations

import io
import os
from collections.abc import Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from blockyard.contracts import DataSpec, Splits, Tokenizer
from blockyard.data.files.digest import sha256
from blockyard.data.files.file_names import spelled
from blockyard.data.files.images import decode_image, displayed
from blockyard.data.files.table_rows import TableRows
from blockyard.data.rows.kind import AssignedRows, Reads, RowKind
from blockyard.data.splits.augment import Augment
from blockyard.data.splits.images import ImageFiles, ImageSplit, LabelledImages, LazyImageSplit, image_splits
from blockyard.data.splits.simple_models import equally_spaced
from blockyard.errors import UserError

SAMPLE = 2000  # images of a part that are looked at in advance, where a table is too large for memory
_SHOWN = 10  # unreadable images that one message names


@dataclass(frozen=True)
class ImageColumn:
    """A column of images, and how they are decoded.

    name: of the column, of paths or of the bytes of files; root: what relative paths start from, None for the folder
    of the table; channels, size: of a decoded image; workers: threads that decode
    """

    name: str
    root: str | None
    channels: int
    size: int
    workers: int

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of an image."""
        return (self.channels, self.size, self.size)

    def keys(self, rows: TableRows) -> list[Hashable]:
        """Return the path of each row's image, from its table's folder or from `root`, or a hash of its bytes."""
        folders = [str(path.parent) for path in rows.files]
        if self.root is not None or len(set(folders)) == 1:
            # Relative to the one folder, so that data that have moved stay the same.
            folders = [""] * len(folders)
        keys: list[Hashable] = []
        for file, cell in zip(rows.file.tolist(), rows.table[self.name].to_pylist(), strict=True):
            content = _content(cell)
            keys.append(os.path.join(folders[file], content) if isinstance(content, str) else sha256([content or b""]))
        return keys

    def of(self, rows: TableRows) -> RowImages:
        """Return the images of all rows. Raises UserError naming the rows with an image that is no file."""
        root = None if self.root is None else Path(self.root).expanduser()
        images = RowImages(rows, self, root)
        images.check()
        return images


@dataclass(frozen=True)
class RowImages:
    """The images of a table. root: the start of relative paths; None is the folder of each row's file."""

    rows: TableRows
    column: ImageColumn
    root: Path | None

    def file(self, row: int) -> Path | bytes:
        """Return the path of a row's image, or its content."""
        content = _content(self.rows.table[self.column.name][row].as_py())
        if isinstance(content, bytes):
            return content
        root = self.rows.files[int(self.rows.file[row])].parent if self.root is None else self.root
        return root / (spelled(content, lambda name: (root / name).is_file()) or content)

    def open(self, row: int) -> tuple[Path | io.BytesIO, object]:
        """Return a row's image as `open_image` takes it, and its name for messages."""
        content = self.file(row)
        where = f"{self.rows.where(row)}, {self.column.name}:"
        if isinstance(content, bytes):
            return io.BytesIO(content), f"{where} the image"
        return content, f"{where} {content}"

    def check(self) -> None:
        """Raise UserError naming the rows whose image is no file."""
        absent = np.zeros(len(self.rows), dtype=bool)
        for row in range(len(self.rows)):
            content = self.file(row)
            absent[row] = isinstance(content, Path) and not content.is_file()
        first = self.file(int(absent.argmax())) if absent.any() else ""
        self.rows.refuse({f"{self.column.name} names a missing file, such as {first!s}": absent})

    def decode(self, row: int) -> Tensor:
        """Return an image uint8 (channels, size, size). Raises UserError naming its row and column."""
        return decode_image(*self.open(row), channels=self.column.channels, size=self.column.size)

    def decode_all(self, rows: Sequence[int]) -> Tensor:
        """Return the images of some rows, uint8 (n, channels, size, size). Raises UserError naming unreadable ones."""

        def attempt(row: int) -> Tensor | str:
            try:
                return self.decode(row)
            except UserError as error:
                return str(error)

        with ThreadPoolExecutor(max(self.column.workers, 1)) as pool:
            results = list(pool.map(attempt, rows))
        problems = [result for result in results if isinstance(result, str)]
        if problems:
            more = f"; and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
            raise UserError("; ".join(problems[:_SHOWN]) + more)
        return torch.stack([result for result in results if isinstance(result, Tensor)])


def _content(cell: Any) -> Any:
    """Return the bytes or the path of an image. Hugging Face datasets store both in a mapping."""
    if isinstance(cell, dict):
        # The name beside the bytes says nothing of the picture.
        return cell.get("bytes") or cell.get("path")
    return cell


@dataclass(frozen=True)
class ImageRows(RowKind):
    """Rows of images. augment: of those of training; memory_limit: megabytes of pixels that are kept in memory."""

    image: ImageColumn
    augment: Augment
    memory_limit: int

    @property
    def reads(self) -> Reads:
        """The contents of a row: "image"."""
        return "image"

    @property
    def things(self) -> str:
        """The name of inputs in messages."""
        return "images"

    def columns(self) -> dict[str, str]:
        """Return the column of the images."""
        return {"data.image": self.image.name}

    def cell_types(self) -> dict[str, str]:
        """Return that images are read as they are stored."""
        return {self.image.name: "stored"}

    def spec(self) -> DataSpec:
        """Return the shape of an image."""
        return DataSpec("image", self.image.shape, levels=256)

    def keys(self, rows: TableRows) -> list[Hashable]:
        """Return the path or the content of each image."""
        return self.image.keys(rows)

    def splits(self, assigned: AssignedRows, tokenizer: Tokenizer) -> tuple[Splits, str]:
        """Return the splits: in memory where all pixels fit there, else decoded batch by batch."""
        images = self.image.of(assigned.rows)
        targets = assigned.targets
        spec = replace(self.spec(), target="class", classes=assigned.classes)
        rows = [part.tolist() for part in assigned.parts]
        if torch.Size(self.image.shape).numel() * sum(map(len, rows)) <= self.memory_limit * 2**20:
            decoded = [images.decode_all(part) for part in rows]
            content = sha256(tensor for pair in zip(decoded, targets, strict=True) for tensor in pair)
            labelled = [LabelledImages(*pair) for pair in zip(decoded, targets, strict=True)]
            return image_splits(ImageSplit, labelled, labelled[0].images, self.augment, tokenizer, spec), content
        # Hashing the bytes of all files would take as long as training on them.
        files = [(row, images.file(row)) for part in rows for row in part]
        keys = self.image.keys(assigned.rows)  # relative to the table, so that moved data stay the same
        samples = [part[i] for part in rows for i in equally_spaced(len(part), SAMPLE).tolist()]
        parts = []
        for row, file in files:
            parts.append(f"{keys[row]} {file.stat().st_size}" if isinstance(file, Path) else file)
        content = sha256([*parts, *targets, *displayed(images.open(row) for row in samples)])
        workers = self.image.workers
        lazy = [ImageFiles(part, target, images.decode, workers) for part, target in zip(rows, targets, strict=True)]
        sample = equally_spaced(len(rows[0]), SAMPLE)
        return image_splits(LazyImageSplit, lazy, lazy[0].images(sample), self.augment, tokenizer, spec), content
