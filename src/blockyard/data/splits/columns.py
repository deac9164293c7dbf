"""Splits whose samples are columns in memory, and how a column becomes a part of a batch.

column                           in a batch
a tensor (n, ...)                (B, ...)
Ragged: n sequences, one stream  (B, longest, ...), padded on the right, and lengths (B,)
Pictures: bytes (n, C, H, W)     float32 (B, C, H, W) from -1 to 1
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import Tensor

from blockyard.contracts import Batch
from blockyard.data.files.images import levels_to_floats


class Column(Protocol):
    """A column that is more than a tensor."""

    def __len__(self) -> int:
        """Return the number of samples."""

    def take(self, order: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the values of the samples `order` (B,), and their lengths (B,) where they are padded."""


class ColumnSplit:
    """Samples in memory, a column for each part of a batch. Nothing is augmented."""

    def __init__(
        self, inputs: Tensor | Column, target: Tensor | Column | None = None, source: Tensor | Column | None = None
    ) -> None:
        self.inputs, self.target, self.source = inputs, target, source

    def __len__(self) -> int:
        return len(self.inputs)

    @property
    def lengths(self) -> Tensor | None:
        """The items of each sample (n,), those of its source included; None where all have the same number."""
        lengths = [column.lengths for column in (self.inputs, self.source) if isinstance(column, Ragged)]
        return sum(lengths[1:], lengths[0]) if lengths else None

    def batch(self, order: Tensor, key: int | None) -> Batch:
        """Return the samples `order` (B,), padded to the longest of them."""
        inputs, lengths = _take(self.inputs, order)
        target, _ = _take(self.target, order)
        source, source_lengths = _take(self.source, order)
        return Batch(inputs, target, lengths=lengths, source=source, source_lengths=source_lengths)


def _take(column: Tensor | Column | None, order: Tensor) -> tuple[Any, Tensor | None]:
    if column is None or isinstance(column, Tensor):
        return (None if column is None else column[order]), None
    return column.take(order)


@dataclass(frozen=True, eq=False)
class Ragged:
    """Sequences of any length in one stream.

    stream: (all items, ...), token ids as int32; lengths: (n,) int64; fill: stands behind the end of a shorter sequence
    """

    stream: Tensor
    lengths: Tensor
    fill: float = 0

    @classmethod
    def of(cls, sequences: Sequence[Sequence[int]] | Sequence[Tensor], fill: float = 0) -> Ragged:
        """Join lists of token ids, or tensors (T, ...)."""
        lengths = torch.tensor([len(sequence) for sequence in sequences], dtype=torch.int64)
        if sequences and isinstance(sequences[0], Tensor):
            return cls(torch.cat(list(sequences)), lengths, fill)  # type: ignore[arg-type]
        stream = torch.tensor([token_id for sequence in sequences for token_id in sequence], dtype=torch.int32)
        return cls(stream, lengths, fill)

    @cached_property
    def start(self) -> Tensor:
        """The index of each sequence's first item in the stream, (n,) int64."""
        return self.lengths.cumsum(0) - self.lengths

    def __len__(self) -> int:
        return len(self.lengths)

    def sequences(self) -> list[list[int]]:
        """Return the sequences as lists of token ids."""
        return [part.tolist() for part in self.stream.split(self.lengths.tolist())]

    def take(self, order: Tensor) -> tuple[Tensor, Tensor]:
        """Return the sequences `order` (B,) as (B, longest), token ids as int64, and their lengths (B,)."""
        lengths = self.lengths[order]
        return gather(self.stream, self.start[order], lengths, self.fill), lengths


def gather(stream: Tensor, start: Tensor, lengths: Tensor, fill: float = 0) -> Tensor:
    """Return the parts of a stream that begin at `start` (B,) as (B, longest, ...), filled behind their ends."""
    position = torch.arange(int(lengths.max()))
    # The last sequence may be shorter than the longest: what is read beyond the stream is padding, filled below.
    index = (start[:, None] + position).clamp_max(len(stream) - 1)  # (B, longest)
    values = stream[index]
    # Token ids are stored in half of the bytes that an embedding table asks for.
    values = values.long() if values.dtype == torch.int32 else values
    padding = position >= lengths[:, None]
    return values.masked_fill(padding.view(*padding.shape, *[1] * (values.ndim - 2)), fill)


@dataclass(frozen=True, eq=False)
class Pictures:
    """Images uint8 (n, C, height, width). blank: all are shown as the mean level, for a model that sees nothing."""

    images: Tensor
    blank: bool = False

    def __len__(self) -> int:
        return len(self.images)

    def take(self, order: Tensor) -> tuple[Tensor, None]:
        """Return the images `order` (B,) as float32 from -1 (black) to 1."""
        pixels = levels_to_floats(self.images[order])
        return torch.zeros_like(pixels) if self.blank else pixels, None
