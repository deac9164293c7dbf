"""Shared parts of text data sets: texts are encoded once, then read as windows, lines or packed documents.

A sequence of a batch holds `context` + 1 tokens, so that an objective can predict the token after each;
`DataSpec.shape` counts the `context` tokens that a model reads.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from blockyard.contracts import Batch, BatchSize, DataSpec, Length, Splits, TextTokenizer, Tokenizer
from blockyard.data.files.digest import sha256
from blockyard.data.splits.loaded import LoadedData
from blockyard.data.splits.row_splits import warn_of_cut
from blockyard.data.splits.split import DrawnSplits, by_size
from blockyard.data.splits.text_tokenizer import text_tokenizer


class SplitDocuments(NamedTuple):
    """The texts of each split."""

    train: list[str]
    validation: list[str]
    test: list[str]


class Windows:
    """A token stream cut into sequences of `context` + 1, neighbours sharing one token.

    With `key` None, sequence i starts at i * context. A key shifts all sequences by one offset below
    `context` that is drawn from it; a sequence that would run over the end is moved back to end there.
    One key per epoch thus shows the stream once per epoch, cut at different places each time.

    stream: (T,) int32 token ids; segment: (T,) int32 documents of a packed stream, or None
    texts: (T,) int32, the text of each token, by its number in the split; None is one text
    """

    redrawn = False

    def __init__(
        self,
        stream: Tensor,
        segment: Tensor | None,
        context: int,
        bytes_per_token: float,
        texts: Tensor | None = None,
    ) -> None:
        self.stream, self.segment, self.context, self.texts = stream, segment, context, texts
        self.bytes_per_token = bytes_per_token

    def __len__(self) -> int:
        return (len(self.stream) - 1) // self.context

    def first(self, count: int) -> Windows:
        """Return the text of the first `count` sequences."""
        if count == len(self):
            return self
        return self.at_length(count, 1)

    def at_length(self, count: int, factor: int) -> Windows:
        """Return the text of the first `count` sequences in sequences `factor` times as long."""
        stop = count * self.context + 1
        segment = None if self.segment is None else self.segment[:stop]
        texts = None if self.texts is None else self.texts[:stop]
        return Windows(self.stream[:stop], segment, self.context * factor, self.bytes_per_token, texts)

    def document_of(self, order: Tensor) -> Tensor:
        """Return the text in which each sequence starts, (B,); sequences of one text are not independent."""
        if self.texts is None:
            return torch.zeros_like(order)
        return self.texts[order * self.context].to(order.dtype)

    def batch(self, order: Tensor, key: int | None) -> Batch:
        """Return inputs (B, context + 1), and if packed a segment of that shape, from 0 in each sequence."""
        offset = 0 if key is None else key % self.context
        start = (order * self.context + offset).clamp_max(len(self.stream) - 1 - self.context)
        index = start[:, None] + torch.arange(self.context + 1)  # (B, context + 1)
        inputs = self.stream[index].long()
        if self.segment is None:
            return Batch(inputs)
        segment = self.segment[index].long()
        return Batch(inputs, segment=segment - segment[:, :1])


class Lines:
    """Each line is a sequence of its own, padded on the right to the longest of its batch.

    Lines of more than `context` + 1 tokens are truncated. The padding is token id 0.

    stream: (T,) int32 token ids of all lines; lengths: (n,) int64 tokens of each, kept as `whole` before they are cut
    texts: (n,) int32, the text of each line, by its number in the split; None is one text
    """

    def __init__(
        self, stream: Tensor, lengths: Tensor, context: int, bytes_per_token: float, texts: Tensor | None = None
    ) -> None:
        self.stream, self.bytes_per_token, self.texts = stream, bytes_per_token, texts
        self.start = lengths.cumsum(0) - lengths
        self.whole = lengths
        self.lengths = lengths.clamp_max(context + 1)

    def __len__(self) -> int:
        return len(self.lengths)

    def first(self, count: int) -> Lines:
        """Return the first `count` lines."""
        lines = copy(self)
        lines.start, lines.lengths, lines.whole = self.start[:count], self.lengths[:count], self.whole[:count]
        return lines

    def document_of(self, order: Tensor) -> Tensor:
        """Return the text that each line is from, (B,); lines of one text are not independent."""
        if self.texts is None:
            return torch.zeros_like(order)
        return self.texts[order].to(order.dtype)

    def batch(self, order: Tensor, key: int | None) -> Batch:
        """Return inputs (B, longest) and lengths (B,)."""
        lengths = self.lengths[order]
        position = torch.arange(max(2, int(lengths.max())))
        index = (self.start[order][:, None] + position).clamp_max(len(self.stream) - 1)  # (B, longest)
        inputs = self.stream[index].long().masked_fill(position >= lengths[:, None], 0)
        return Batch(inputs, lengths=lengths)


@dataclass(kw_only=True, eq=False)
class TextData(DrawnSplits, LoadedData):
    """Text in memory, encoded once. Subclasses implement `documents`.

    Options:
        validation_fraction: share of the text that is the validation split
        test_fraction: share of the text that is the test split
        split_seed: seed of the split; independent of the run's seed, so that all seeds share one split
        batch_size: sequences in a training step, over all processes
        eval_batch_size: sequences in a validation or test step, over all processes
        context: tokens of a sequence that a model reads
        sample: window cuts sequences out of the running text; line makes each line of two tokens or more a sequence
        packed: keep documents (or lines) within a sequence apart: own positions, no attention or target across
        train_size: training sequences to keep, from the beginning of the text; null keeps all. The vocabulary is that
            of all of it
        validation_size: validation sequences to keep, likewise
        test_size: test sequences to keep, likewise
    """

    batch_size: BatchSize = 32
    eval_batch_size: BatchSize = 64
    context: Length = 128
    sample: Literal["window", "line"] = "window"
    packed: bool = False

    @property
    def spec(self) -> DataSpec:
        """Sequences of `context` tokens; of different lengths if they are lines that are not packed."""
        variable = self.sample == "line" and not self.packed
        return DataSpec("text", (self.context,), variable=variable, packed=self.packed, resizable=not variable)

    @abstractmethod
    def documents(self) -> SplitDocuments:
        """Read and split the texts."""

    def load(self, tokenizer: Tokenizer) -> Splits:
        """Read and encode the splits; fit the tokenizer on the training split unless its state was loaded."""
        tokenizer = text_tokenizer(tokenizer)
        documents = self.documents()
        self._fingerprint = sha256(text for texts in documents for text in (str(len(texts)), *texts))
        if not tokenizer.state():
            tokenizer.fit(documents.train)
        parts = [self._encode(name, texts, tokenizer) for name, texts in documents._asdict().items()]
        kept = [part.first(self.size_of(number, len(part))) for number, part in enumerate(parts)]
        read: list[int] = []
        for part in kept:
            if isinstance(part, Lines):
                # The last token of a line is predicted, and not read.
                read += (part.whole - 1).tolist()
        warn_of_cut(read, self.context, "lines")
        return Splits(*kept)

    def split_by_size(self, texts: Sequence[str]) -> SplitDocuments:
        """Assign whole texts to the splits by `split_seed`."""
        fractions = (self.validation_fraction, self.test_fraction)
        validation, test, train = by_size([len(text) for text in texts], fractions, self.split_seed)
        parts = [[texts[i] for i in split] for split in (train, validation, test)]
        return SplitDocuments(*parts)

    def _encode(self, name: str, texts: Sequence[str], tokenizer: TextTokenizer) -> Windows | Lines:
        by_line = self.sample == "line"
        # A line of one token has no next token to predict; a batch of such lines would have no loss.
        minimum = 2 if by_line else 1
        sequences: list[Tensor] = []
        text_numbers: list[int] = []
        num_bytes = 0
        for number, text in enumerate(texts):
            for unit in nonblank_lines([text]) if by_line else [text]:
                # NumPy reads a list four times as fast as torch does.
                token_ids = torch.from_numpy(np.array(tokenizer.encode(unit), np.int32))
                if len(token_ids) >= minimum:
                    sequences.append(token_ids)
                    text_numbers.append(number)
                    num_bytes += len(unit.encode())
        if not sequences:
            problem = "has no line of two tokens or more" if by_line else "is empty"
            raise ValueError(f"the {name} split of the text {problem}; raise its fraction or use a longer text")
        source = torch.tensor(text_numbers, dtype=torch.int32)
        stream = torch.cat(sequences)
        lengths = torch.tensor([len(token_ids) for token_ids in sequences])
        bytes_per_token = num_bytes / len(stream)
        if self.spec.variable:
            return Lines(stream, lengths, self.context, bytes_per_token, source)
        if len(stream) <= self.context:
            raise ValueError(
                f"data.context={self.context}: the {name} split has {len(stream)} tokens and needs at least "
                f"{self.context + 1}; use data.context={len(stream) - 1} or less, or a longer text"
            )
        segment = torch.arange(len(sequences), dtype=torch.int32).repeat_interleave(lengths) if self.packed else None
        source = source.repeat_interleave(lengths)
        return Windows(stream, segment, self.context, bytes_per_token, source)


def nonblank_lines(texts: Sequence[str]) -> list[str]:
    """Return every line that is not blank, with its line feed."""
    lines = []
    for text in texts:
        lines += [line + "\n" for line in text.split("\n") if line.strip()]
    return lines
