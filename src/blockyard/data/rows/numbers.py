"""Columns of numbers, as one vector a row."""

from __future__ import annotations

import logging
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from blockyard.contracts import DataSpec, InputReader, NewInputs, Splits, Tokenizer
from blockyard.data.files.digest import sha256
from blockyard.data.files.table_rows import TableRows
from blockyard.data.rows.kind import AssignedRows, Reads, RowKind
from blockyard.data.splits.columns import ColumnSplit
from blockyard.data.splits.vectors import vector_splits

log = logging.getLogger("blockyard")


@dataclass(frozen=True)
class NumberRows(RowKind):
    """Rows of numbers. names: the columns."""

    names: tuple[str, ...]

    @property
    def reads(self) -> Reads:
        """The contents of a row."""
        return "numbers"

    def columns(self) -> dict[str, str]:
        """Return the columns of the numbers."""
        return {f"data.columns[{number}]": name for number, name in enumerate(self.names)}

    def cell_types(self) -> dict[str, str]:
        """Return "number" for every column."""
        return dict.fromkeys(self.names, "number")

    def problems(self, rows: TableRows) -> dict[str, np.ndarray]:
        """Return a mask of the rows without any number."""
        return {"no value in any of data.columns": np.isnan(rows.numbers(self.names)).all(1)}

    def spec(self) -> DataSpec:
        """Return the length of a vector."""
        return DataSpec("vector", (len(self.names),))

    def keys(self, rows: TableRows) -> list[Hashable]:
        """Return the numbers of each row."""
        return [row.tobytes() for row in rows.numbers(self.names)]

    def splits(self, assigned: AssignedRows, tokenizer: Tokenizer) -> tuple[Splits, str]:
        """Return the splits, standardized by the training rows; warn of missing values."""
        numbers = torch.from_numpy(assigned.rows.numbers(self.names))
        self._warn_of_missing(numbers, assigned.path)
        values = [numbers[part] for part in assigned.parts]
        splits = vector_splits(values, assigned.targets, self.names, assigned.classes)
        return Splits(*splits), sha256([*values, *assigned.targets])

    def read_new(self, inputs: Sequence[str], reader: InputReader) -> NewInputs:
        """Return the rows of tables, standardized as the training rows were."""
        rows = self.new_rows(inputs)
        mean, std = reader.test().scale
        values = ((torch.from_numpy(rows.numbers(self.names)) - mean) / std).float()
        return NewInputs([rows.where(row) for row in range(len(rows))], ColumnSplit(values))

    def _warn_of_missing(self, numbers: Tensor, path: str) -> None:
        counts = {name: int(gone) for name, gone in zip(self.names, numbers.isnan().sum(0), strict=True) if gone}
        if counts:
            shown = ", ".join(f"{count} of {name}" for name, count in list(counts.items())[:10])
            log.warning("%s: of %d rows, values are missing: %s; the mean stands for them", path, len(numbers), shown)
