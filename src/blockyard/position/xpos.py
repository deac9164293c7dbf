"""XPos: rotary positions whose scores also fade with distance, fast-turning pairs first.

Source: Sun et al. 2022, A Length-Extrapolatable Transformer (arXiv 2212.10554), section 3.2 and algorithm 1
Reference: torchscale component/xpos_relative_position.py
Equation: q_t -> R(p) q_t z_i^(p / span), k_t -> R(p) k_t z_i^(-p / span), z_i = (2i / K + gamma) / (1 + gamma)
Cost: that of rope

The score of pair i between places n and m is multiplied by z_i^((n - m) / span). That is for models
that look back only: in one that looks both ways, what lies ahead grows by as much.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from blockyard.contracts import Context, Positive
from blockyard.position._rotary import Rotary, turn


class XPos(Rotary):
    """Turns as rope does, then scales queries up where it scales keys down.

    Options:
        base: as in rope; null means 10000 on a line and 100 on a grid
        gamma: how much even the fastest pair is left with; larger fades less
        span: tokens over which a pair fades by its z_i
    """

    needs_causal: ClassVar[bool] = True

    def __init__(
        self, ctx: Context, *, base: Positive | None = None, gamma: Positive = 0.4, span: Positive = 512.0
    ) -> None:
        super().__init__(ctx, name="xpos", base=base)
        self.gamma, self.span = gamma, span

    def rotate(self, q: Tensor, k: Tensor, q_coords: Tensor, k_coords: Tensor) -> tuple[Tensor, Tensor]:
        """q (B, H, N, K), k (B, H', M, K), coordinates (B|1, N or M, A) -> q, k turned and scaled."""
        q_cos, q_sin = self.angles(q_coords, q)
        k_cos, k_sin = self.angles(k_coords, k)
        q_size, k_size = self._size(q_coords, q_cos), self._size(-k_coords, k_cos)
        return turn(q, q_cos * q_size, q_sin * q_size), turn(k, k_cos * k_size, k_sin * k_size)

    def _size(self, coords: Tensor, like: Tensor) -> Tensor:
        """z_i^(p / span): (B|1, 1, N, A, half), axis by axis."""
        half = like.shape[-1]
        step = torch.arange(half, device=like.device, dtype=like.dtype) / half
        fade = (step + self.gamma) / (1 + self.gamma)
        return fade ** (coords.to(like.dtype)[:, None, :, :, None] / self.span)
