"""From next-token scores to a token id: temperature, top-k and top-p.

Source: Fan et al. 2018, Hierarchical Neural Story Generation (arXiv 1805.04833), for top-k; Holtzman et al. 2020,
The Curious Case of Neural Text Degeneration (arXiv 1904.09751), for top-p.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from blockyard.errors import UserError


def to_finite(scores: Tensor) -> Tensor:
    """Return scores (..., V) in single precision on the CPU. Raises UserError if the largest is NaN or infinite."""
    scores = scores.detach().float().cpu()
    top = scores.amax(-1)  # NaN if any score is; a score of minus infinity is never chosen
    if not bool(top.isfinite().all()):
        value = "NaN" if bool(top.isnan().any()) else "infinite"
        raise UserError(f"the model's scores are {value}: its weights are broken; try which=previous or another run")
    return scores


def probabilities(scores: Tensor, temperature: float, top_k: int | None, top_p: float | None) -> Tensor:
    """Return the distribution (V,) to sample from, for scores (V,).

    Keeps the `top_k` most likely tokens (None or 0: all), and of these the smallest set with probabilities at this
    temperature that sum to at least `top_p`. All others get probability 0.
    """
    if top_k and top_k < len(scores):
        top = scores.topk(top_k).indices
        scores = torch.full_like(scores, -math.inf).index_copy(0, top, scores[top])
    # Less the largest before the division: at a low temperature the quotient would overflow.
    weights = torch.softmax((scores - scores.max()) / temperature, dim=-1)  # (V,)
    if top_p is None or top_p >= 1:
        return weights
    ordered, token_ids = weights.sort(descending=True, stable=True)
    preceding = ordered.cumsum(0) - ordered  # total probability of the more likely tokens
    weights = weights.index_fill(0, token_ids[preceding >= top_p], 0.0)
    return weights / weights.sum()


class Sampler:
    """Draws the next token id on the CPU, so that a seed gives the same text on every device."""

    def __init__(self, temperature: float, top_k: int | None, seed: int, top_p: float | None = None) -> None:
        self.temperature, self.top_k, self.top_p = temperature, top_k, top_p
        self._generator = torch.Generator().manual_seed(seed)

    def __call__(self, scores: Tensor) -> int:
        """Draw a token id by scores (V,); the most likely one at temperature 0. Raises UserError like `to_finite`."""
        return self.draw(self.distribution(scores))

    def distribution(self, scores: Tensor) -> Tensor:
        """Return the distribution (V,) to draw from. Raises UserError as `to_finite` does."""
        scores = to_finite(scores)
        if self.temperature == 0:
            return torch.zeros_like(scores).index_fill(0, scores.argmax(), 1.0)
        return probabilities(scores, self.temperature, self.top_k, self.top_p)

    def draw(self, weights: Tensor) -> int:
        """Draw a token id from a distribution (V,)."""
        if self.temperature == 0:
            return int(weights.argmax())
        return int(torch.multinomial(weights, 1, generator=self._generator))

    def permutation(self, count: int) -> list[int]:
        """Return the numbers from 0 to `count` - 1 in a random order."""
        return torch.randperm(count, generator=self._generator).tolist()

    def uniform(self) -> float:
        """Draw a number from [0, 1)."""
        return float(torch.rand((), generator=self._generator, dtype=torch.float64))


def samplers(count: int, temperature: float, top_k: int | None, top_p: float | None, seed: int | None) -> list[Sampler]:
    """Return a sampler for each of `count` outputs. Output i has seed + i, so that the first one is as if alone."""
    return [Sampler(temperature, top_k, (seed or 0) + index, top_p) for index in range(count)]
