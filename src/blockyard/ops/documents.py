"""The starts of documents in packed sequences."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def document_starts(segment: Tensor, num_prefix: int = 0) -> Tensor:
    """Return the index of the first token of each token's document, a run of equal `segment`: (B, N).

    The first `num_prefix` tokens are a document of their own.
    """
    first = F.pad(segment[:, 1:] != segment[:, :-1], (1, 0), value=True)  # (B, N)
    index = torch.arange(segment.shape[1], device=segment.device)  # (N,)
    if num_prefix:
        first = torch.where(index < num_prefix, index == 0, first | (index == num_prefix))
    return torch.where(first, index, 0).cummax(1).values
