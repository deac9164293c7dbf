"""What rotary schemes share: channels of a head turn in pairs, by angles that grow with the place."""

from __future__ import annotations

from typing import Annotated, ClassVar

import torch
from annotated_types import Gt, Le
from torch import Tensor

from blockyard.contracts import Context, Position
from blockyard.position._axes import check_axes, check_split

Share = Annotated[float, Gt(0), Le(1)]


class Rotary(Position):
    """Rotated channels of a head are shared out over the axes; channel i turns with channel i + half."""

    acts_on: ClassVar[frozenset[str]] = frozenset({"rotate"})
    relative: ClassVar[bool] = True

    def __init__(self, ctx: Context, *, name: str, base: float | None, fraction: float = 1.0) -> None:
        super().__init__()
        check_axes(type(self), ctx)
        axes, self.turned = ctx.tokens.axes, int(ctx.head_dim * fraction)
        what = "the head width (model.dim / model.heads)"
        check_split(name, self.turned, what if fraction == 1 else f"{fraction:g} of {what}", axes)
        self.base = base or (10000.0 if axes == 1 else 100.0)
        self.half, self.whole = self.turned // (2 * axes), self.turned == ctx.head_dim

    def rotate(self, q: Tensor, k: Tensor, q_coords: Tensor, k_coords: Tensor) -> tuple[Tensor, Tensor]:
        """q (B, H, N, K), k (B, H', M, K), coordinates (B|1, N or M, A) -> q, k turned."""
        q_angles = self.angles(q_coords, q)
        k_angles = q_angles if k_coords is q_coords else self.angles(k_coords, k)
        return self.turn(q, *q_angles), self.turn(k, *k_angles)

    def angles(self, coords: Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
        """Cosine and sine (B|1, 1, N, A, half), at least in float32: bfloat16 cannot count to 1000."""
        exact = torch.promote_types(like.dtype, torch.float32)
        step = torch.arange(self.half, device=like.device, dtype=exact) / self.half
        angle = coords.to(exact)[:, None, :, :, None] * self.frequencies(step)  # (B|1, 1, N, A, half)
        return angle.cos(), angle.sin()

    def frequencies(self, step: Tensor) -> Tensor:
        """Radians a place, of pairs numbered step (half,) in [0, 1): (half,) or (A, half)."""
        return self.base**-step

    def turn(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """x (B, H, N, K), angles (B|1, 1, N, A, half) -> (B, H, N, K), its last channels untouched."""
        if self.whole:
            return turn(x, cos, sin)
        return torch.cat([turn(x[..., : self.turned], cos, sin), x[..., self.turned :]], dim=-1)  # (B, H, N, K)


def turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x (B, H, N, K), angles (B|1, 1, N, A, half) -> (B, H, N, K)."""
    pairs = x.to(cos.dtype).unflatten(-1, (cos.shape[-2], 2, cos.shape[-1]))  # (B, H, N, A, 2, half)
    first, second = pairs.unbind(-2)
    turned = torch.stack([first * cos - second * sin, second * cos + first * sin], dim=-2)
    return turned.flatten(-3).to(x.dtype)  # (B, H, N, K)
