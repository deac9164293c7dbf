"""Images that the rows of a table name or hold: read, checked by row, and split as any images are."""

from __future__ import annotations

import io
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from blockyard.contracts import Splits, Tokenizer
from blockyard.data._decode import ImageFiles, LazyImageSplit, decode_stream
from blockyard.data._images import ImageData, ImageSplit, LabelledImages
from blockyard.data._split import sha256
from blockyard.data._table_columns import Rows
from blockyard.errors import UserError

SAMPLE = 2000  # images that give the channel statistics of a table too large for memory
_SHOWN = 10  # unreadable images that one message names


@dataclass(frozen=True)
class RowImages:
    """The images of a table. column: of paths, or of the bytes of files; root: what relative paths start from."""

    rows: Rows
    column: str
    root: Path
    channels: int
    size: int

    def file(self, row: int) -> Path | bytes:
        """Returns the path of a row's image, or its content."""
        cell: Any = self.rows.table[self.column][row].as_py()
        if isinstance(cell, dict):  # as Hugging Face datasets store images
            cell = cell.get("bytes") or cell.get("path")
        if isinstance(cell, bytes):
            return cell
        return self.root.joinpath(cell)

    def check(self) -> None:
        """Raises UserError naming the rows whose image is no file."""
        absent = np.zeros(len(self.rows), dtype=bool)
        for row in range(len(self.rows)):
            content = self.file(row)
            absent[row] = isinstance(content, Path) and not content.is_file()
        first = self.file(int(absent.argmax())) if absent.any() else ""
        self.rows.refuse({f"{self.column} names a missing file, such as {first!s}": absent})

    def decode(self, row: int, *, on_white: bool = False) -> Tensor:
        """Returns an image uint8 (channels, size, size). Raises UserError naming its row and column."""
        content = self.file(row)
        stream = io.BytesIO(content) if isinstance(content, bytes) else content
        name = "the image" if isinstance(content, bytes) else content
        try:
            return decode_stream(stream, name, channels=self.channels, size=self.size, on_white=on_white)
        except UserError as error:
            raise UserError(f"{self.rows.where(row)}, {self.column}: {error}") from error

    def decode_all(self, rows: Sequence[int], workers: int, *, on_white: bool = False) -> Tensor:
        """Returns the images of some rows, uint8 (n, channels, size, size). Raises UserError naming unreadable ones."""

        def attempt(row: int) -> Tensor | str:
            try:
                return self.decode(row, on_white=on_white)
            except UserError as error:
                return str(error)

        with ThreadPoolExecutor(max(workers, 1)) as pool:
            results = list(pool.map(attempt, rows))
        problems = [result for result in results if isinstance(result, str)]
        if problems:
            more = f"; and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
            raise UserError("; ".join(problems[:_SHOWN]) + more)
        return torch.stack([result for result in results if isinstance(result, Tensor)])


@dataclass(kw_only=True, eq=False)
class TableImages(ImageData):
    """Splits of images whose rows are known. Not a choice of its own: `Table` makes it.

    Options:
        side: of an image in pixels after resizing
        channels: 3 for color, 1 for grayscale
        classes: number of classes
        memory_limit: megabytes of pixels up to which all images are decoded into memory
        workers: threads that decode
    """

    classes: Any = None
    shape: Any = None
    side: int
    channels: int
    memory_limit: int
    workers: int
    content: str = field(default="", init=False)

    def read(self) -> tuple[LabelledImages, LabelledImages]:
        """Is not called: `of_rows` reads."""
        raise AssertionError("the parts are given")

    def of_rows(
        self, images: RowImages, parts: Sequence[Tensor], targets: Sequence[Tensor], tokenizer: Tokenizer
    ) -> Splits:
        """Returns the splits. parts: the rows of each; targets: their classes (n,) int64."""
        self.shape = (self.channels, self.side, self.side)
        rows = [part.tolist() for part in parts]
        if torch.Size(self.shape).numel() * sum(map(len, rows)) <= self.memory_limit * 2**20:
            decoded = [images.decode_all(part, self.workers) for part in rows]
            self.content = sha256(tensor for pair in zip(decoded, targets, strict=True) for tensor in pair)
            labelled = [LabelledImages(*pair) for pair in zip(decoded, targets, strict=True)]
            return self.splits(ImageSplit, labelled, labelled[0].images, tokenizer)
        # Hashing the bytes of all files would take as long as training on them.
        files = [[images.file(row) for row in part] for part in rows]
        self.content = sha256(
            f"{file!s} {file.stat().st_size}" if isinstance(file, Path) else file for part in files for file in part
        )
        lazy = [ImageFiles(part, own, images.decode, self.workers) for part, own in zip(rows, targets, strict=True)]
        sample = torch.linspace(0, len(rows[0]) - 1, min(SAMPLE, len(rows[0]))).long()
        return self.splits(LazyImageSplit, lazy, lazy[0].images(sample), tokenizer)
