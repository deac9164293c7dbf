"""XPos: rotary positions with scores that also decay with distance, faster in pairs that rotate faster.

Source: Sun et al. 2022, A Length-Extrapolatable Transformer (arXiv 2212.10554), section 3.2 and algorithm 1
Reference: torchscale component/xpos_relative_position.py
Equation: q_t -> R(p) q_t z_i^(p / span), k_t -> R(p) k_t z_i^(-p / span), z_i = (2i / K + gamma) / (1 + gamma)
Cost: that of rope

The score of pair i between positions n and m is multiplied by z_i^((n - m) / span). This suits causal models only: in
a bidirectional one, scores with later tokens would grow by as much.
"""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor

from blockyard.contracts import Context, Positive
from blockyard.position._rotary import Rotary, rotate_pairs

LARGEST = 80.0  # largest exponent of e; float32 holds about 88


class XPos(Rotary):
    """Rotates as rope does, and scales keys by the inverse of the factor of queries.

    Options:
        base: as in rope; null means 10000 on a line and 100 on a grid
        gamma: lower bound on the decay factor of the fastest pair; larger values decay less
        span: tokens over which a pair decays by its z_i
    """

    needs_causal: ClassVar[bool] = True

    def __init__(
        self, ctx: Context, *, base: Positive | None = None, gamma: Positive = 0.4, span: Positive = 512.0
    ) -> None:
        super().__init__(ctx, name="xpos", base=base)
        self.gamma = gamma
        self.span = span
        # Scores depend on differences alone: counted from the middle of the sequence, factors at its ends are smallest.
        self.middle = ctx.tokens.max_len / 2
        largest = self.largest(1)
        if largest > LARGEST:
            raise ValueError(
                f"position.span={span:g}: over {ctx.tokens.max_len:,} tokens keys would grow to e^{largest:.0f}, more "
                f"than float32 holds; use position.span={math.ceil(span * largest / LARGEST)} or more"
            )

    def largest(self, times: int) -> float:
        """Return the logarithm of the largest factor of a key in sequences `times` as long as in training."""
        end = self.middle * (2 * times - 1)  # from the middle of a training sequence to the end of a longer one
        return end / self.span * math.log((1 + self.gamma) / self.gamma)

    def rotate(self, q: Tensor, k: Tensor, q_coords: Tensor, k_coords: Tensor) -> tuple[Tensor, Tensor]:
        """Rotate and scale q (B, H, N, K) and k (B, H', M, K) by their coordinates (B|1, N or M, A)."""
        q_cos, q_sin = self.angles(q_coords, q)
        k_cos, k_sin = self.angles(k_coords, k)
        q_scale = self._scale(q_coords - self.middle, q_cos)
        k_scale = self._scale(self.middle - k_coords, k_cos)  # the inverse factor, as of minus the coordinate
        return rotate_pairs(q, q_cos * q_scale, q_sin * q_scale), rotate_pairs(k, k_cos * k_scale, k_sin * k_scale)

    def _scale(self, coords: Tensor, like: Tensor) -> Tensor:
        """Return z_i^(p / span) for each axis: (B|1, 1, N, A, half)."""
        half = like.shape[-1]
        step = torch.arange(half, device=like.device, dtype=like.dtype) / half
        decay = (step + self.gamma) / (1 + self.gamma)
        return decay ** (coords.to(like.dtype)[:, None, :, :, None] / self.span)
