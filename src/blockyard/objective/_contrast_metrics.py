"""Metrics of contrasts: a classifier with the candidates of each token as its classes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from blockyard.contracts import Batch
from blockyard.data.splits.hash import uniform
from blockyard.data.splits.order import mix
from blockyard.objective._hidden_sound import samples_of
from blockyard.objective._metrics import Accuracy, MeanCrossEntropy

EQUAL = 1e-4  # difference of equal logits: products of equal vectors differ in their last bits
Logits = Callable[[Tensor, Any], Tensor]


class ContrastLoss(MeanCrossEntropy):
    """Mean cross entropy in nats over hidden tokens."""

    def __init__(self, logits: Logits) -> None:
        super().__init__()
        self.logits = logits

    def update(self, prediction: Tensor, target: Any) -> None:
        """prediction: (B, N, F); target: `Contrast`."""
        super().update(self.logits(prediction, target), target.truth)


class SharedAccuracy(Accuracy):
    """Share of hidden tokens with the true frame as the likest candidate. Equally similar ones share the point."""

    def __init__(self, logits: Logits) -> None:
        super().__init__()
        self.logits = logits

    def update(self, prediction: Tensor, target: Any) -> None:
        """prediction: as `logits` takes it; target: has `truth`."""
        counts = target.truth != Batch.ignore
        logits = self.logits(prediction, target)[counts]  # (n, 1 + K), the true one first
        best = logits >= logits.amax(-1, keepdim=True) - EQUAL
        self.total += (best[:, 0] / best.sum(-1)).double().sum()
        self.count += counts.sum()


class Information(ContrastLoss):
    """A constant less the mean cross entropy, in nats."""

    higher_is_better = True

    def __init__(self, logits: Logits, constant: float) -> None:
        super().__init__(logits)
        self.constant = constant

    def compute(self) -> Tensor:
        """The constant less the mean over all updates."""
        return self.constant - super().compute()


def choose(batch: Batch, hidden: Tensor, key: int | None, count: int) -> tuple[Tensor, Tensor]:
    """Return the index of the true candidate (B, N) and the tokens of the distractors (B, N, count).

    Distractors are a hash of (key, sample). The index is 0 at hidden tokens, and `Batch.ignore` at others and in a
    recording with a single hidden token.

    hidden: (B, N) bool

    Source: Baevski et al. 2020, wav2vec 2.0 (arXiv 2006.11477), section 3.2
    """
    draws = uniform(mix("negatives", 0 if key is None else key), samples_of(batch), hidden.shape[1] * count)
    negatives = distractors(hidden, draws.T.reshape(*hidden.shape, count))
    counts = hidden & (hidden.sum(1, keepdim=True) > 1)
    return torch.zeros_like(negatives[..., 0]).masked_fill(~counts, Batch.ignore), negatives


def distractors(hidden: Tensor, draws: Tensor) -> Tensor:
    """Return other hidden tokens of the same recording (B, N, K) for each hidden one, all of them equally likely.

    Values for tokens that are not hidden mean nothing.

    hidden: (B, N) bool; draws: (B, N, K) in [0, 1)
    """
    others = hidden.sum(1)[:, None, None] - 1  # (B, 1, 1)
    rank = hidden.cumsum(1)[..., None] - 1  # (B, N, 1), among the hidden tokens
    chosen = (draws * others).long()
    chosen = (chosen + (chosen >= rank)).clamp(0, hidden.shape[1] - 1)  # skips the token itself
    order = (~hidden).int().argsort(dim=1, stable=True)  # hidden tokens first
    return order.gather(1, chosen.flatten(1)).view_as(chosen)


def similarities(prediction: Tensor, candidates: Tensor, negatives: Tensor, equal: Tensor | None = None) -> Tensor:
    """Return the cosines (B, N, 1 + K) of predictions (B, N, F) with the true candidate, then with `negatives`.

    candidates: (B, N, F), the candidate of each token
    negatives: (B, N, K), tokens
    equal: (B, N, N) bool, pairs of tokens with the same candidate; they are no distractors of each other and get -inf;
        None for no such pair
    """
    cosine = F.normalize(prediction.float(), dim=-1) @ F.normalize(candidates.float(), dim=-1).mT  # (B, N, N)
    others = cosine if equal is None else cosine.masked_fill(equal, -torch.inf)
    return torch.cat([cosine.diagonal(dim1=1, dim2=2)[..., None], others.gather(2, negatives)], 2)
