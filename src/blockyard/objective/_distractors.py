"""Which other tokens of a recording a hidden one is to be told from, and how similar each is to the prediction.

Source: Baevski et al. 2020, wav2vec 2.0 (arXiv 2006.11477), section 3.2
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from blockyard.contracts import Batch
from blockyard.data._hash import uniform
from blockyard.data._order import mix
from blockyard.objective._hidden_sound import samples_of


def choose(batch: Batch, hidden: Tensor, key: int | None, count: int) -> tuple[Tensor, Tensor]:
    """Returns the index of the true candidate (B, N) and the tokens of the others (B, N, count).

    Which they are is a hash of (key, sample). The index is 0 at hidden tokens, and `Batch.ignore` at others and where
    a recording has a single hidden token.

    hidden: (B, N) bool
    """
    draws = uniform(mix("negatives", 0 if key is None else key), samples_of(batch), hidden.shape[1] * count)
    negatives = distractors(hidden, draws.T.reshape(*hidden.shape, count))
    counts = hidden & (hidden.sum(1, keepdim=True) > 1)
    return torch.zeros_like(negatives[..., 0]).masked_fill(~counts, Batch.ignore), negatives


def distractors(hidden: Tensor, draws: Tensor) -> Tensor:
    """Returns other hidden tokens of the same recording (B, N, K) for each hidden one, all of them equally likely.

    hidden: (B, N) bool; draws: (B, N, K) in [0, 1). What is returned for other tokens means nothing
    """
    others = hidden.sum(1)[:, None, None] - 1  # (B, 1, 1)
    rank = hidden.cumsum(1)[..., None] - 1  # (B, N, 1), among the hidden tokens
    chosen = (draws * others).long()
    chosen = (chosen + (chosen >= rank)).clamp(0, hidden.shape[1] - 1)
    order = (~hidden).int().argsort(dim=1, stable=True)  # hidden tokens first
    return order.gather(1, chosen.flatten(1)).view_as(chosen)


def similarities(prediction: Tensor, candidates: Tensor, negatives: Tensor, equal: Tensor | None = None) -> Tensor:
    """Returns the cosines (B, N, 1 + K) of predictions (B, N, F) and the true candidate, then those of `negatives`.

    candidates: (B, N, F), that of each token; negatives: (B, N, K), tokens; equal: (B, N, N) bool, pairs of tokens
    whose candidates are the same, which do not count as distractors of each other: -inf; None for no such pair
    """
    cosine = F.normalize(prediction.float(), dim=-1) @ F.normalize(candidates.float(), dim=-1).mT  # (B, N, N)
    others = cosine if equal is None else cosine.masked_fill(equal, -torch.inf)
    return torch.cat([cosine.diagonal(dim1=1, dim2=2)[..., None], others.gather(2, negatives)], 2)
