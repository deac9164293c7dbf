"""Error rates of what a CTC model writes greedily, over a whole split.

Reference: torchmetrics.text.CharErrorRate, WordErrorRate, whose sums are the same
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from blockyard.contracts import Batch
from blockyard.objective._metrics import _Mean
from blockyard.ops import ctc

Decode = Callable[[list[int]], str]


class CTCLoss(_Mean):
    """Mean negative log-likelihood of the labels in nats a label."""

    higher_is_better = False

    def __init__(self, losses: Callable[[Tensor, tuple[Tensor, Tensor]], tuple[Tensor, Tensor]]) -> None:
        super().__init__()
        self.losses = losses

    def update(self, prediction: Tensor, target: tuple[Tensor, Tensor]) -> None:
        """prediction: (B, N, V); target: labels (B, S) and tokens (B,)."""
        losses, counts = self.losses(prediction, target)
        self.total += losses.double().sum()
        self.count += counts.sum()


class _Transcripts(_Mean):
    """Something about the greedy text of each sample that has labels, against its own."""

    higher_is_better = False

    def __init__(self, blank: int, decode: Decode) -> None:
        super().__init__()
        self.blank, self.decode = blank, decode

    def update(self, prediction: Tensor, target: tuple[Tensor, Tensor]) -> None:
        """prediction: (B, N, V); target: labels (B, S) and tokens (B,)."""
        labels, tokens = target
        for written, row in zip(ctc.greedy(prediction, tokens, self.blank), labels.tolist(), strict=True):
            own = [label for label in row if label != Batch.ignore]
            if own:  # others are dummies
                wrong, count = self.score(written, own)
                self.total += wrong
                self.count += count

    def score(self, written: list[int], labels: list[int]) -> tuple[int, int]:
        """Returns what is wrong, and out of how many."""
        raise AssertionError("abstract")


class CharErrors(_Transcripts):
    """Inserted, deleted and replaced characters over the characters of the true texts; above 1 where much is added."""

    def score(self, written: list[int], labels: list[int]) -> tuple[int, int]:
        """The edits between the texts."""
        text, reference = self.decode(written), self.decode(labels)
        return edits(text, reference), len(reference)


class WordErrors(_Transcripts):
    """The same with words, which spaces separate."""

    def score(self, written: list[int], labels: list[int]) -> tuple[int, int]:
        """The edits between the words."""
        text, reference = self.decode(written).split(), self.decode(labels).split()
        return edits(text, reference), len(reference)


class Empty(_Transcripts):
    """Share of samples for which nothing is written: all of them until a model has left the plateau of blanks."""

    def score(self, written: list[int], labels: list[int]) -> tuple[int, int]:
        """One if nothing is written."""
        return int(not written), 1


def edits(left: Sequence[object], right: Sequence[object]) -> int:
    """Returns the Levenshtein distance: insertions, deletions and replacements that turn one into the other."""
    above = list(range(len(right) + 1))
    for row, item in enumerate(left, start=1):
        here = [row]
        for column, other in enumerate(right, start=1):
            here.append(min(above[column] + 1, here[-1] + 1, above[column - 1] + (item != other)))
        above = here
    return above[-1]


def unit(token_ids: list[int]) -> str:
    """Returns one character for each token id, for splits that have no text."""
    return "".join(map(chr, torch.tensor(token_ids, dtype=torch.int64).add(0x4E00).tolist()))
