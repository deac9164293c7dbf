"""What rotary schemes share: channels of a head turn in pairs, by angles that grow with the place."""

from __future__ import annotations

from typing import Annotated, ClassVar

import torch
from annotated_types import Gt, Le
from torch import Tensor

from blockyard.contracts import Context, Position
from blockyard.position._axes import check_axes, check_split

Share = Annotated[float, Gt(0), Le(1)]
TYPED = 0.02  # channels that a share is off its whole number by, having been typed with few digits


class Rotary(Position):
    """Rotated channels of a head are shared out over the axes; channel i turns with channel i + half.

    Heads are as wide as the queries that come; frequencies are those of that width.
    """

    acts_on: ClassVar[frozenset[str]] = frozenset({"rotate"})
    relative: ClassVar[bool] = True

    def __init__(self, ctx: Context, *, name: str, base: float | None, fraction: float = 1.0) -> None:
        super().__init__()
        check_axes(type(self), ctx)
        self.name, self.count, self.fraction, self.plain = name, ctx.tokens.axes, fraction, ctx.head_dim
        self.base = base or (10000.0 if self.count == 1 else 100.0)

    def turned(self, width: int) -> int:
        """How many channels of a head `width` wide turn."""
        return round(width * self.fraction)

    def check_width(self, width: int) -> None:
        """Raises ValueError where the channels that turn are no whole number, or do not pair up over the axes."""
        own, group, part = width != self.plain, 2 * self.count, width * self.fraction
        what = "the width of queries and keys" if own else "the head width (model.dim / model.heads)"
        if self.fraction == 1 or width < group:
            way = "token_mixer.key_dim" if own else "model.dim or model.heads"
            check_split(self.name, width, what, self.count, change=way)
        elif abs(part - self.turned(width)) > TYPED or self.turned(width) % group or not self.turned(width):
            below = max(1, int(part / group))
            fit = [f"{count * group / width:.4g}" for count in (below, below + 1) if count * group <= width]
            raise ValueError(
                f"position {self.name} turns channels in pairs over {self.count} axes, and position.fraction="
                f"{self.fraction:g} of {what}, {width}, is {part:.4g}, no whole multiple of {group}; use "
                f"position.fraction={' or '.join(fit)}"
            )

    def rotate(self, q: Tensor, k: Tensor, q_coords: Tensor, k_coords: Tensor) -> tuple[Tensor, Tensor]:
        """q (B, H, N, K), k (B, H', M, K), coordinates (B|1, N or M, A) -> q, k turned."""
        q_angles = self.angles(q_coords, q)
        k_angles = q_angles if k_coords is q_coords else self.angles(k_coords, k)
        return self.turn(q, *q_angles), self.turn(k, *k_angles)

    def angles(self, coords: Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
        """Cosine and sine (B|1, 1, N, A, half) for heads as wide as those of `like` (B, H, N, K).

        At least in float32: bfloat16 cannot count to 1000.
        """
        exact = torch.promote_types(like.dtype, torch.float32)
        half = self.turned(like.shape[-1]) // (2 * self.count)
        step = torch.arange(half, device=like.device, dtype=exact) / half
        angle = coords.to(exact)[:, None, :, :, None] * self.frequencies(step)  # (B|1, 1, N, A, half)
        return angle.cos(), angle.sin()

    def frequencies(self, step: Tensor) -> Tensor:
        """Radians a place, of pairs numbered step (half,) in [0, 1): (half,) or (A, half)."""
        return self.base**-step

    def turn(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """x (B, H, N, K), angles (B|1, 1, N, A, half) -> (B, H, N, K), its last channels untouched."""
        turned = self.turned(x.shape[-1])
        if turned == x.shape[-1]:
            return turn(x, cos, sin)
        return torch.cat([turn(x[..., :turned], cos, sin), x[..., turned:]], dim=-1)  # (B, H, N, K)


def turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x (B, H, N, K), angles (B|1, 1, N, A, half) -> (B, H, N, K)."""
    pairs = x.to(cos.dtype).unflatten(-1, (cos.shape[-2], 2, cos.shape[-1]))  # (B, H, N, A, 2, half)
    first, second = pairs.unbind(-2)
    turned = torch.stack([first * cos - second * sin, second * cos + first * sin], dim=-2)
    return turned.flatten(-3).to(x.dtype)  # (B, H, N, K)
