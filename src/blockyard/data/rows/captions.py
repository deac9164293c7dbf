"""An image with a text that is written: the image is the source, the text the sequence."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from blockyard.contracts import DataSpec, InputReader, NewInputs, Splits, TextTokenizer, Tokenizer
from blockyard.data.files.digest import sha256
from blockyard.data.files.table_rows import TableRows
from blockyard.data.files.tables import kind_of
from blockyard.data.rows.images import ImageColumn
from blockyard.data.rows.kind import AssignedRows, Reads, RowKind
from blockyard.data.splits.captions import caption_parts
from blockyard.data.splits.columns import ColumnSplit, Pictures, Ragged
from blockyard.errors import UserError


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
        """Return the specification of a text, with the image as its source."""
        return DataSpec("text", (self.context,), variable=True, source=DataSpec("image", self.image.shape))

    def keys(self, rows: TableRows) -> list[Hashable]:
        """Return the text and the image of each row."""
        return list(zip(rows.texts(self.text), self.image.keys(rows), strict=True))

    def read_new(self, inputs: Sequence[str], reader: InputReader) -> NewInputs:
        """Return the rows of tables with an image and a text each. Relative paths start from the table's folder."""
        if reader.source:
            return reader.read(inputs)
        assert isinstance(reader.tokenizer, TextTokenizer)
        if any(kind_of(Path(text)) is None for text in inputs):
            columns = f"{self.image.name} and {self.text}"
            raise UserError(
                f"{reader.run} reads a picture and a text together; give a table with the columns {columns}"
            )
        rows = self.new_rows(inputs)
        rows.refuse({f"no {column}": rows.blank(column) for column in (self.image.name, self.text)})
        images = self.image.of(rows)
        texts = rows.texts(self.text)
        token_ids = [reader.tokenizer.encode(text)[: reader.max_len] for text in texts]
        rows.refuse({f"no token is left of the {self.text}": np.array([not ids for ids in token_ids])})
        names = [f"{rows.where(row)}: {text}" for row, text in enumerate(texts)]
        pictures = Pictures(images.decode_all(range(len(rows))))
        return NewInputs(names, ColumnSplit(Ragged.of(token_ids), source=pictures))


@dataclass(frozen=True)
class CaptionRows(ImageTextRows):
    """Rows of an image and the text that a model writes. Rows with a longer text are left out."""

    writes: ClassVar[bool] = True

    @property
    def reads(self) -> Reads:
        """The contents of a row."""
        return "caption"

    def splits(self, assigned: AssignedRows, tokenizer: Tokenizer) -> tuple[Splits, str]:
        """Return the splits; fit the tokenizer on the texts of training unless it has a state."""
        rows = assigned.rows
        images = self.image.of(rows).decode_all(range(len(rows)))
        texts = [text.strip() for text in rows.texts(self.text)]
        names = [str(rows.where(row)) for row in range(len(texts))]
        splits = caption_parts(assigned.parts, images, names, texts, assigned.spec, tokenizer, blank=False)
        return splits, sha256([images, *texts, *assigned.parts])
