"""The interface of a kind of row, and rows that are assigned to splits."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from torch import Tensor

from blockyard.contracts import DataSpec, InputReader, NewInputs, Splits, Tokenizer
from blockyard.data.files.file_names import new_file
from blockyard.data.files.table_rows import TableRows, read_rows

Reads = Literal["text", "pair", "image", "caption", "question", "numbers"]


@dataclass(frozen=True)
class AssignedRows:
    """The rows of each split, and the targets of all rows.

    path: of the table, for messages; spec: of the data; label: the column of the classes, where they are predicted
    parts: the rows of the training, validation and test split, ascending; target: (rows,) int64 classes, zeros where
    there are none; classes: their number, None where real values are predicted
    values: (rows, T) float64, or None; slices: (rows,) int64, or None
    """

    path: str
    rows: TableRows
    spec: DataSpec
    parts: list[Tensor]
    label: str
    target: Tensor
    classes: int | None
    values: Tensor | None
    slices: Tensor | None

    @property
    def targets(self) -> list[Tensor]:
        """The classes of each split, (n,) int64."""
        return [self.target[part] for part in self.parts]


class RowKind(ABC):
    """The columns of a row that a model reads. Subclasses hold them with the options of their kind.

    writes: whether the model writes the row's text, so that neither a label nor values are predicted
    keeps_slices: whether the batches of its splits have the slices of their samples
    """

    writes: ClassVar[bool] = False
    keeps_slices: ClassVar[bool] = False

    @property
    @abstractmethod
    def reads(self) -> Reads:
        """The contents of a row."""

    @property
    def things(self) -> str:
        """The name of inputs in messages."""
        return "rows"

    @property
    def texts(self) -> tuple[str, ...]:
        """The columns of texts that a model reads, or writes."""
        return ()

    @abstractmethod
    def columns(self) -> dict[str, str]:
        """Return the columns, by the option that names them. Raises UserError where there are none."""

    def cell_types(self) -> dict[str, str]:
        """Return the type of the cells of each column, "number" or "stored"; others are text."""
        return {}

    def problems(self, rows: TableRows) -> dict[str, np.ndarray]:
        """Return a mask (n,) of the rows that cannot be used, by reason."""
        return {}

    @abstractmethod
    def spec(self) -> DataSpec:
        """Return the specification of the inputs, without targets."""

    @abstractmethod
    def keys(self, rows: TableRows) -> list[Hashable]:
        """Return the inputs of each row, to tell repeated ones."""

    def read_new(self, inputs: Sequence[str], reader: InputReader) -> NewInputs:
        """Return new rows. Raises UserError where they cannot be read."""
        return reader.read(inputs)

    def new_rows(self, inputs: Sequence[str]) -> TableRows:
        """Read the columns of tables that are named on the command line. Raises UserError as `read_rows` does."""
        return read_rows([new_file(text) for text in inputs], self.columns(), self.cell_types())

    @abstractmethod
    def splits(self, assigned: AssignedRows, tokenizer: Tokenizer) -> tuple[Splits, str]:
        """Return the splits, without real-valued targets, and a hash of their content."""
