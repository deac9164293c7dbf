"""Rotary positions: queries and keys turn with their place, so scores see only differences.

Source: Su et al. 2021, RoFormer (arXiv 2104.09864), eq. 34; axial 2-D form as in Heo et al. 2024, Rotary Position
    Embedding for Vision Transformer (arXiv 2403.13298)
Reference: transformers modeling_rope_utils.py (halves layout); timm layers/pos_embed_sincos.py
Equation: q_t -> R(coords_t) q_t, k_t -> R(coords_t) k_t, R turns channel pair i by p base^(-2i / K)
Cost: O(N K) time for each layer, no parameters
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from blockyard.contracts import Context, Position, Positive
from blockyard.position._axes import check_axes, check_split


class Rope(Position):
    """Channels of a head are shared out over the axes; channel i turns with channel i + half.

    Prefix tokens do not turn. Scores between tokens see only how far they lie apart; a score with a
    prefix token also sees where the token lies.

    Options:
        base: the slowest pair turns once in about 2 pi base tokens; null means 10000 on a line and 100 on
            a grid, whose sides are short
    """

    acts_on: ClassVar[frozenset[str]] = frozenset({"rotate"})
    relative: ClassVar[bool] = True

    def __init__(self, ctx: Context, *, base: Positive | None = None) -> None:
        super().__init__()
        check_axes(type(self), ctx)
        check_split("rope", ctx.head_dim, "the head width (model.dim / model.heads)", ctx.tokens.axes)
        self.base = base or (10000.0 if ctx.tokens.axes == 1 else 100.0)
        self.half = ctx.head_dim // (2 * ctx.tokens.axes)

    def rotate(self, q: Tensor, k: Tensor, q_coords: Tensor, k_coords: Tensor) -> tuple[Tensor, Tensor]:
        """q (B, H, N, K), k (B, H', M, K), coordinates (B|1, N or M, A) -> q, k turned."""
        q_angles = self._angles(q_coords, q)
        k_angles = q_angles if k_coords is q_coords else self._angles(k_coords, k)
        return _turn(q, *q_angles), _turn(k, *k_angles)

    def _angles(self, coords: Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
        """Cosine and sine (B|1, 1, N, A, half), at least in float32: bfloat16 cannot count to 1000."""
        exact = torch.promote_types(like.dtype, torch.float32)
        step = torch.arange(self.half, device=like.device, dtype=exact) / self.half
        angle = coords.to(exact)[:, None, :, :, None] * self.base**-step  # (B|1, 1, N, A, half)
        return angle.cos(), angle.sin()


def _turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x (B, H, N, K), angles (B|1, 1, N, A, half) -> (B, H, N, K)."""
    pairs = x.to(cos.dtype).unflatten(-1, (cos.shape[-2], 2, cos.shape[-1]))  # (B, H, N, A, 2, half)
    first, second = pairs.unbind(-2)
    turned = torch.stack([first * cos - second * sin, second * cos + first * sin], dim=-2)
    return turned.flatten(-3).to(x.dtype)  # (B, H, N, K)
