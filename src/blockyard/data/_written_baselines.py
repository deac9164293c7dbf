"""A rival of models that write from a source: the word before alone, counted in the training split."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

import torch
from torch import Tensor

from blockyard.contracts import Batch
from blockyard.data._pairs import RaggedSequences

LEAST = 1e-3  # the count of a pair of tokens that training lacks


class WrittenBaselines(ABC):
    """A split whose targets are sequences of token ids, with a model of pairs of tokens fitted on training."""

    @abstractmethod
    def __len__(self) -> int:
        """Returns the number of samples."""

    @abstractmethod
    def batch(self, order: Tensor, key: int | None) -> Batch:
        """Returns the samples `order` (B,)."""

    @abstractmethod
    def fitted(self) -> RaggedSequences:
        """Returns sequences of the training split, with their start and end tokens."""

    def baselines(self) -> Iterator[tuple[str, Tensor]]:
        """Yields the logits (n, N, V) of the token that follows the one before, whatever the source is."""
        sequences, inputs = self.fitted(), self.batch(torch.arange(len(self)), None).inputs
        padded, lengths = sequences.padded(torch.arange(len(sequences.lengths)))
        real = torch.arange(1, padded.shape[1]) < lengths[:, None]  # (n, N)
        before, after = padded[:, :-1][real], padded[:, 1:][real]
        size = int(max(padded.max(), inputs.max())) + 1
        counts = torch.full((size, size), LEAST).index_put_((before, after), torch.ones(()), True)
        yield "word_before", (counts / counts.sum(1, keepdim=True)).log()[inputs[:, :-1]]
