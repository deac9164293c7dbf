"""What text data sets share: encoding once, windows, lines and packed documents.

A row of a batch holds `context` + 1 symbols, so that an objective can ask for the one after each;
`DataSpec.shape` counts the `context` tokens that a model sees.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from blockyard.contracts import Batch, Count, DataModule, DataSpec, Split, Splits, TextTokenizer, Tokenizer
from blockyard.data._split import sha256


class Documents(NamedTuple):
    """The texts of each part."""

    train: list[str]
    validation: list[str]
    test: list[str]


class Windows:
    """A stream of symbols cut into rows of `context` + 1, neighbours sharing one symbol.

    With `key` None, row i starts at i * context. With a key all rows are moved by one offset drawn
    from it, below `context`; a row that would reach over the end is moved back to end there. One
    key per epoch thus shows the stream once per epoch, cut elsewhere each time.

    stream: (T,) int32 symbols; segment: (T,) int32 documents of a packed stream, or None
    """

    redrawn = False

    def __init__(self, stream: Tensor, segment: Tensor | None, context: int, bytes_per_token: float) -> None:
        self.stream, self.segment, self.context = stream, segment, context
        self.bytes_per_token = bytes_per_token

    def __len__(self) -> int:
        return (len(self.stream) - 1) // self.context

    def at_length(self, rows: int, factor: int) -> Windows:
        """The text of the first `rows` rows in rows `factor` times as long."""
        stop = rows * self.context + 1
        segment = None if self.segment is None else self.segment[:stop]
        return Windows(self.stream[:stop], segment, self.context * factor, self.bytes_per_token)

    def batch(self, order: Tensor, key: int | None) -> Batch:
        """Inputs (B, context + 1); segment of that shape, counted from 0 in each row, where packed."""
        offset = 0 if key is None else key % self.context
        start = (order * self.context + offset).clamp_max(len(self.stream) - 1 - self.context)
        index = start[:, None] + torch.arange(self.context + 1)  # (B, context + 1)
        inputs = self.stream[index].long()
        if self.segment is None:
            return Batch(inputs)
        segment = self.segment[index].long()
        return Batch(inputs, segment=segment - segment[:, :1])


class Lines:
    """Every line a row of its own, padded on the right to the longest of its batch.

    A line of more than `context` + 1 symbols is cut there. Padding is symbol 0.

    stream: (T,) int32 symbols of all lines; lengths: (n,) int64 symbols of each
    """

    def __init__(self, stream: Tensor, lengths: Tensor, context: int, bytes_per_token: float) -> None:
        self.stream, self.bytes_per_token = stream, bytes_per_token
        self.start = lengths.cumsum(0) - lengths
        self.lengths = lengths.clamp_max(context + 1)

    def __len__(self) -> int:
        return len(self.lengths)

    def batch(self, order: Tensor, key: int | None) -> Batch:
        """Inputs (B, longest) and lengths (B,)."""
        lengths = self.lengths[order]
        place = torch.arange(max(2, int(lengths.max())))
        index = (self.start[order][:, None] + place).clamp_max(len(self.stream) - 1)  # (B, longest)
        inputs = self.stream[index].long().masked_fill(place >= lengths[:, None], 0)
        return Batch(inputs, lengths=lengths)


class TextData(DataModule):
    """Text in memory, encoded once. Subclasses say which documents belong to which part.

    Options:
        batch_size: rows in a training step, over all processes
        eval_batch_size: rows in a validation or test step, over all processes
        context: tokens a model sees of a row
        sample: window cuts rows out of the running text; line makes every line of two tokens or more a row
        packed: documents (or lines) keep apart within a row: own positions, no attention, no target across
    """

    incidental = frozenset({"eval_batch_size"})

    def __init__(
        self,
        *,
        batch_size: Count = 32,
        eval_batch_size: Count = 64,
        context: Count = 128,
        sample: Literal["window", "line"] = "window",
        packed: bool = False,
    ) -> None:
        self.batch_size, self.eval_batch_size = batch_size, eval_batch_size
        self.context, self.sample, self.packed = context, sample, packed
        self._fingerprint: str | None = None

    @property
    def spec(self) -> DataSpec:
        """Rows of `context` tokens; of different lengths where lines are not packed."""
        variable = self.sample == "line" and not self.packed
        return DataSpec("text", (self.context,), variable=variable, packed=self.packed, resizable=not variable)

    @abstractmethod
    def documents(self) -> Documents:
        """The texts, read and split."""

    def load(self, tokenizer: Tokenizer) -> Splits:
        """Read, split, fit the tokenizer on the training part (unless its state was loaded), encode."""
        if not isinstance(tokenizer, TextTokenizer):
            raise ValueError(f"text data needs a tokenizer of texts, not {type(tokenizer).__name__}")
        parts = self.documents()
        self._fingerprint = sha256(text for part in parts for text in (str(len(part)), *part))
        if not tokenizer.state():
            tokenizer.fit(parts.train)
        named = zip(parts._fields, parts, strict=True)
        return Splits(*(self._encode(name, texts, tokenizer) for name, texts in named))

    def fingerprint(self) -> str:
        """SHA-256 of the texts, part by part."""
        assert self._fingerprint is not None, "fingerprint() is valid after load()"
        return self._fingerprint

    def _encode(self, name: str, texts: Sequence[str], tokenizer: TextTokenizer) -> Split:
        units = lines_of(texts) if self.sample == "line" else texts
        encoded = ((unit, torch.tensor(tokenizer.encode(unit), dtype=torch.int32)) for unit in units)
        # A line of one symbol asks for none after it; a batch of such lines would have no loss.
        least = 2 if self.sample == "line" else 1
        kept = [(unit, row) for unit, row in encoded if len(row) >= least]
        if not kept:
            what = "has no line of two tokens or more" if self.sample == "line" else "is empty"
            raise ValueError(f"the {name} part of the text {what}; raise its fraction or give more text")
        rows = [row for _, row in kept]
        stream, lengths = torch.cat(rows), torch.tensor([len(row) for row in rows])
        bytes_per_token = sum(len(unit.encode()) for unit, _ in kept) / len(stream)
        if self.spec.variable:
            return Lines(stream, lengths, self.context, bytes_per_token)
        if len(stream) <= self.context:
            raise ValueError(
                f"the {name} part has {len(stream)} tokens, data.context={self.context} needs one more than that; "
                f"take data.context={len(stream) - 1} or less, or more text"
            )
        segment = torch.arange(len(rows), dtype=torch.int32).repeat_interleave(lengths) if self.packed else None
        return Windows(stream, segment, self.context, bytes_per_token)


def lines_of(texts: Sequence[str]) -> list[str]:
    """Every line that is not blank, with its line feed."""
    return [line + "\n" for text in texts for line in text.split("\n") if line.strip()]
