"""The rotation of `rope` and `xpos`: pairs of channels of a head rotate by angles that grow with position."""

from __future__ import annotations

from typing import Annotated, ClassVar

import torch
from annotated_types import Gt, Le
from torch import Tensor

from blockyard.contracts import Context, Position
from blockyard.position._absolute import check_axes, check_split

Share = Annotated[float, Gt(0), Le(1)]
ROUNDING = 0.02  # channels by which a fraction typed with few digits may miss a whole number


class Rotary(Position):
    """The rotated channels of a head are divided among the axes; channel i rotates with channel i + half.

    The width of a head is read from the queries, and frequencies follow from it.
    """

    acts_on: ClassVar[frozenset[str]] = frozenset({"rotate"})
    relative: ClassVar[bool] = True

    def __init__(self, ctx: Context, *, name: str, base: float | None, fraction: float = 1.0) -> None:
        super().__init__()
        check_axes(type(self), ctx)
        self.name = name
        self.num_axes = ctx.tokens.axes
        self.fraction = fraction
        self.head_dim = ctx.head_dim
        self.base = base or (10000.0 if self.num_axes == 1 else 100.0)

    def rotated_width(self, width: int) -> int:
        """Return the number of rotated channels of a head of `width` channels."""
        return round(width * self.fraction)

    def check_width(self, width: int) -> None:
        """Raise ValueError unless the rotated channels are a whole number and pair up over the axes."""
        custom = width != self.head_dim
        group = 2 * self.num_axes  # channels that rotate at one frequency, a pair for each axis
        rotated = width * self.fraction
        what = "the width of queries and keys" if custom else "the head width (model.dim / model.heads)"
        if self.fraction == 1 or width < group:
            option = "token_mixer.key_dim" if custom else "model.dim or model.heads"
            check_split(self.name, width, what, self.num_axes, change=option)
            return
        # A fraction is typed with few digits, so that the product may miss a whole number by a little.
        count = self.rotated_width(width)
        if abs(rotated - count) > ROUNDING or count % group or not count:
            below = max(1, int(rotated / group))
            allowed = [f"{pairs * group / width:.4g}" for pairs in (below, below + 1) if pairs * group <= width]
            raise ValueError(
                f"position {self.name} rotates channels in pairs over {self.num_axes} axes, and position.fraction="
                f"{self.fraction:g} of {what}, {width}, is {rotated:.4g}, not a multiple of {group}; use "
                f"position.fraction={' or '.join(allowed)}"
            )

    def rotate(self, q: Tensor, k: Tensor, q_coords: Tensor, k_coords: Tensor) -> tuple[Tensor, Tensor]:
        """Rotate q (B, H, N, K) and k (B, H', M, K) by their coordinates (B|1, N or M, A)."""
        q_angles = self.angles(q_coords, q)
        k_angles = q_angles if k_coords is q_coords else self.angles(k_coords, k)
        return self.rotate_head(q, *q_angles), self.rotate_head(k, *k_angles)

    def angles(self, coords: Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
        """Return cosine and sine (B|1, 1, N, A, half) for heads of the width of `like` (B, H, N, K)."""
        # bfloat16 cannot represent every integer up to 1000.
        exact = torch.promote_types(like.dtype, torch.float32)
        half = self.rotated_width(like.shape[-1]) // (2 * self.num_axes)
        step = torch.arange(half, device=like.device, dtype=exact) / half
        angle = coords.to(exact)[:, None, :, :, None] * self.frequencies(step)  # (B|1, 1, N, A, half)
        return angle.cos(), angle.sin()

    def frequencies(self, step: Tensor) -> Tensor:
        """Return radians per position of the pairs at step (half,) in [0, 1): (half,) or (A, half)."""
        return self.base**-step

    def rotate_head(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Rotate the first `rotated_width` channels of x (B, H, N, K) by angles (B|1, 1, N, A, half): (B, H, N, K)."""
        width = self.rotated_width(x.shape[-1])
        if width == x.shape[-1]:
            return rotate_pairs(x, cos, sin)
        return torch.cat([rotate_pairs(x[..., :width], cos, sin), x[..., width:]], dim=-1)  # (B, H, N, K)


def rotate_pairs(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate all pairs of channels: x (B, H, N, K), angles (B|1, 1, N, A, half) -> (B, H, N, K)."""
    pairs = x.to(cos.dtype).unflatten(-1, (cos.shape[-2], 2, cos.shape[-1]))  # (B, H, N, A, 2, half)
    first, second = pairs.unbind(-2)  # 2 x (B, H, N, A, half)
    rotated = torch.stack([first * cos - second * sin, second * cos + first * sin], dim=-2)
    return rotated.flatten(-3).to(x.dtype)  # (B, H, N, K)
