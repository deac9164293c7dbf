"""An image with a text that is written: the image is the source, the text the sequence."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import ClassVar

from blockyard.contracts import DataSpec, Splits, Tokenizer
from blockyard.data.files.digest import sha256
from blockyard.data.files.table_rows import TableRows
from blockyard.data.rows.images import ImageColumn
from blockyard.data.rows.kind import AssignedRows, Reads, RowKind
from blockyard.data.splits.captions import caption_parts


@dataclass(frozen=True)
class ImageTextRows(RowKind):
    """Rows of an image and a text. text: the column; context: tokens of a text that are kept."""

    text: str
    image: ImageColumn
    context: int

    @property
    def texts(self) -> tuple[str, ...]:
        """The column of the texts."""
        return (self.text,)

    def columns(self) -> dict[str, str]:
        """Return the columns of the texts and the images."""
        return {"data.text": self.text, "data.image": self.image.name}

    def cell_types(self) -> dict[str, str]:
        """Return that images are read as they are stored."""
        return {self.image.name: "stored"}

    def spec(self) -> DataSpec:
        """Return what a text is, with the image as its source."""
        return DataSpec("text", (self.context,), variable=True, source=DataSpec("image", self.image.shape))

    def keys(self, rows: TableRows) -> list[Hashable]:
        """Return the text and the image of each row."""
        return list(zip(rows.texts(self.text), self.image.keys(rows), strict=True))


@dataclass(frozen=True)
class CaptionRows(ImageTextRows):
    """Rows of an image and the text that a model writes. Rows with a longer text are left out."""

    writes: ClassVar[bool] = True

    @property
    def reads(self) -> Reads:
        """The name of the kind."""
        return "caption"

    def splits(self, assigned: AssignedRows, tokenizer: Tokenizer) -> tuple[Splits, str]:
        """Return the splits; fit the tokenizer on the texts of training unless it has a state."""
        rows = assigned.rows
        images = self.image.of(rows).decode_all(range(len(rows)))
        texts = [text.strip() for text in rows.texts(self.text)]
        names = [str(rows.where(row)) for row in range(len(texts))]
        splits = caption_parts(assigned.parts, images, names, texts, assigned.spec, tokenizer, blank=False)
        return splits, sha256([images, *texts, *assigned.parts])
