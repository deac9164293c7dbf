"""Which symbol follows: from scores to one choice.

Source: Fan et al. 2018, Hierarchical Neural Story Generation (arXiv 1805.04833), for top-k; Holtzman et al. 2020,
The Curious Case of Neural Text Degeneration (arXiv 1904.09751), for top-p.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from blockyard.errors import UserError


def finite(scores: Tensor) -> Tensor:
    """Scores (..., V) in single precision on the CPU. Raises UserError where they are no numbers."""
    scores = scores.detach().float().cpu()
    top = scores.amax(-1)  # NaN where any score is; a score of minus infinity is never chosen
    if not bool(top.isfinite().all()):
        said = "NaN" if bool(top.isnan().any()) else "infinite"
        raise UserError(f"the model's scores are {said}: its weights are broken; try which=previous or another run")
    return scores


def probabilities(scores: Tensor, temperature: float, top_k: int | None, top_p: float | None) -> Tensor:
    """The distribution (V,) that a symbol is drawn from, of scores (V,).

    The `top_k` likeliest are kept (None or 0: all), and of those the fewest that together have the probability
    `top_p` at this temperature; the rest have none.
    """
    if top_k and top_k < len(scores):
        kept = scores.topk(top_k).indices
        scores = torch.full_like(scores, -math.inf).index_copy(0, kept, scores[kept])
    weights = torch.softmax((scores - scores.max()) / temperature, dim=-1)  # (V,)
    if top_p is None or top_p >= 1:
        return weights
    ordered, symbols = weights.sort(descending=True, stable=True)
    before = ordered.cumsum(0) - ordered  # what the likelier ones have together
    weights = weights.index_fill(0, symbols[before >= top_p], 0.0)
    return weights / weights.sum()


class Chooser:
    """Picks the next symbol from its scores, on the CPU, so that a seed means the same everywhere."""

    def __init__(self, temperature: float, top_k: int | None, seed: int, top_p: float | None = None) -> None:
        self.temperature, self.top_k, self.top_p = temperature, top_k, top_p
        self._random = torch.Generator().manual_seed(seed)

    def __call__(self, scores: Tensor) -> int:
        """The symbol chosen by scores (V,). Raises UserError where they are no numbers."""
        scores = finite(scores)
        if self.temperature == 0:
            return int(scores.argmax())
        weights = probabilities(scores, self.temperature, self.top_k, self.top_p)
        return int(torch.multinomial(weights, 1, generator=self._random))
