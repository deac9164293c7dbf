"""A text with a class, or two texts joined by the start token.

Source: the layout of the GLUE tasks, Wang et al. 2018 (arXiv 1804.07461)
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor

from blockyard.contracts import DataSpec, InputReader, NewInputs, Splits, TextTokenizer, Tokenizer
from blockyard.data.files.digest import sha256
from blockyard.data.files.table_rows import TableRows
from blockyard.data.files.tables import kind_of
from blockyard.data.rows.kind import AssignedRows, Reads, RowKind
from blockyard.data.splits.columns import ColumnSplit, Ragged
from blockyard.data.splits.labelled_texts import LabelledSplit, LabelledTexts
from blockyard.data.splits.row_splits import warn_of_cut
from blockyard.data.splits.text_tokenizer import text_tokenizer
from blockyard.errors import UserError

_CHUNK = 4096  # rows that are read at a time


@dataclass(frozen=True)
class TextRows(RowKind):
    """Rows of texts. text, pair: the columns; context: tokens of a row that a model reads, further ones are cut."""

    keeps_slices: ClassVar[bool] = True

    text: str | None
    pair: str | None
    context: int

    @property
    def reads(self) -> Reads:
        """The contents of a row."""
        return "text" if self.pair is None else "pair"

    @property
    def things(self) -> str:
        """The name of inputs in messages."""
        return f"{self.reads}s"

    @property
    def texts(self) -> tuple[str, ...]:
        """The columns of texts. Raises UserError where the first is not named."""
        if self.text is None:
            raise UserError("data.text=null: a row has nothing to read; name data.text, data.image or data.columns")
        if self.pair is None:
            return (self.text,)
        return (self.text, self.pair)

    def columns(self) -> dict[str, str]:
        """Return the columns of the texts."""
        return dict(zip(("data.text", "data.pair"), self.texts, strict=False))

    def spec(self) -> DataSpec:
        """Return the specification of a text or a pair."""
        return DataSpec("text", (self.context,), variable=True, joined=self.pair is not None)

    def keys(self, rows: TableRows) -> list[Hashable]:
        """Return the text of each row, or both."""
        columns = [rows.texts(name) for name in self.texts]
        if len(columns) == 1:
            return list(columns[0])
        return list(zip(*columns, strict=True))

    def splits(self, assigned: AssignedRows, tokenizer: Tokenizer) -> tuple[Splits, str]:
        """Return the splits; fit the tokenizer on the texts of training unless it has a state."""
        splits = labelled_splits(assigned, tokenizer, self.texts, self.context)
        return splits, sha256(_cells(assigned, [assigned.label, *self.texts]))

    def read_new(self, inputs: Sequence[str], reader: InputReader) -> NewInputs:
        """Return both texts of each row of tables, joined as in training; single texts as for other data."""
        if self.pair is None:
            return reader.read(inputs)
        assert isinstance(reader.tokenizer, TextTokenizer)
        if any(kind_of(Path(text)) is None for text in inputs):
            columns = " and ".join(self.texts)
            raise UserError(f"{reader.run} reads two texts an input; give a table with the columns {columns}")
        rows = self.new_rows(inputs)
        rows.refuse({f"no {name}": rows.blank(name) for name in self.texts})
        pairs = list(zip(*(rows.texts(name) for name in self.texts), strict=True))
        start = reader.tokenizer.spec(self.spec()).start
        token_ids = [join_ids([reader.tokenizer.encode(text) for text in pair], start, self.context) for pair in pairs]
        return NewInputs([" | ".join(pair) for pair in pairs], ColumnSplit(Ragged.of(token_ids)))


def labelled_splits(assigned: AssignedRows, tokenizer: Tokenizer, columns: Sequence[str], context: int) -> Splits:
    """Return the splits of texts in one or two columns; fit the tokenizer on the training texts if it has no state.

    Warns of texts that are longer than the context.
    """
    tokenizer = text_tokenizer(tokenizer)
    if not tokenizer.state():
        tokenizer.fit(list(texts_of(assigned.rows, columns, assigned.parts[0])))
    whole: list[int] = []
    train, *rest = (_encoded(assigned, part, tokenizer, columns, context, whole) for part in assigned.parts)
    warn_of_cut(whole, context, "texts" if len(columns) == 1 else "pairs")
    classes = max(assigned.classes or 0, 1)
    return Splits(*(LabelledSplit(part, tokenizer, train, classes, variable=True) for part in (train, *rest)))


def texts_of(rows: TableRows, columns: Sequence[str], part: Tensor) -> Iterator[str]:
    """Yield the texts of the rows `part` (n,), both of a pair after one another."""
    for chunk in part.split(_CHUNK):
        cells = [rows.texts(name, chunk.tolist()) for name in columns]
        for row in zip(*cells, strict=True):
            yield from row


def _encoded(
    assigned: AssignedRows,
    part: Tensor,
    tokenizer: TextTokenizer,
    columns: Sequence[str],
    context: int,
    whole: list[int],
) -> LabelledTexts:
    """Return some rows as token ids, at most `context` of each; the texts of a pair with the start token between.

    whole: takes the tokens that each row has before it is cut
    """
    encoded, lengths = [], []
    start = tokenizer.spec(assigned.spec).start if len(columns) > 1 else None
    texts = texts_of(assigned.rows, columns, part)
    for row in zip(*[texts] * len(columns), strict=True):
        token_ids = [tokenizer.encode(text) for text in row]
        whole.append(sum(map(len, token_ids)) + len(token_ids) - 1)  # with the start token between two
        ids = join_ids(token_ids, start, context)
        lengths.append(len(ids))
        encoded.append(torch.tensor(ids, dtype=torch.int32))
    tokens = torch.tensor(lengths, dtype=torch.int64)
    begin = tokens.cumsum(0) - tokens
    slices = None if assigned.slices is None else assigned.slices[part]
    return LabelledTexts(torch.cat(encoded), begin, tokens, assigned.target[part], slices, separator=start)


def join_ids(ids: Sequence[list[int]], start: int | None, context: int) -> list[int]:
    """Return one text cut to `context` token ids; or two with the start token between, the longer one cut first."""
    if start is None:
        return ids[0][:context]
    first, second = ids
    room = max(context - 1, 0)
    half = room // 2
    if len(first) + len(second) > room:
        keep = max(half, room - len(second))
        first, second = first[:keep], second[: max(room - min(len(first), keep), 0)]
    return [*first, start, *second]


def shown_texts(
    rows: TableRows, columns: Sequence[str], indices: Sequence[int], tokenizer: TextTokenizer, context: int
) -> list[str]:
    """Return the text of some rows as far as a model reads it; for pairs both texts, whole, with a blank between."""
    cells = [rows.texts(name, indices) for name in columns]
    if len(cells) > 1:
        return [" ".join(row) for row in zip(*cells, strict=True)]
    return [_beginning(text, tokenizer, context) for text in cells[0]]


def _beginning(text: str, tokenizer: TextTokenizer, count: int) -> str:
    """Return the longest beginning of a text with at most `count` tokens."""
    if len(tokenizer.encode(text)) <= count:
        return text
    low, high = 0, len(text)
    while low < high:
        middle = (low + high + 1) // 2
        if len(tokenizer.encode(text[:middle])) <= count:
            low = middle
        else:
            high = middle - 1
    return text[:low]


def _cells(assigned: AssignedRows, columns: Sequence[str]) -> Iterator[str]:
    """Yield the cells of each split, row by row: the label, then the texts."""
    rows = assigned.rows
    present = [name for name in columns if name in rows.table.column_names]
    for part in assigned.parts:
        yield str(len(part))
        for chunk in part.split(_CHUNK):
            cells = [rows.texts(name, chunk.tolist()) for name in present]
            yield from map(" ".join, zip(*cells, strict=True))
