"""A trained vector that learns at a rate independent of its first value.

Source: Loshchilov et al. 2024, nGPT: Normalized Transformer with Representation Learning on the Hypersphere
    (arXiv 2410.01131), section 2.5
Reference: the equation
Equation: s = p first / scale, with p trained and `scale` at first, so that a step of p of the learning rate lr moves s
    by lr first / scale
Cost: one parameter a channel
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from blockyard.contracts import Context, Role
from blockyard.weight_init import Init


class ScaledVector(nn.Module):
    """Return the vector (width,): forward().

    first: its first value; scale: the first value of the parameter, None is 1 / sqrt(D)
    role: of the parameter: fixed if the width does not grow with the model
    """

    def __init__(
        self, ctx: Context, width: int, *, first: float = 1.0, scale: float | None = None, role: Role = "vector"
    ) -> None:
        super().__init__()
        # Under a parametrization the learning rate of a vector does not depend on the width, so this must not either.
        self.scale = (ctx.dim / ctx.width_ratio) ** -0.5 if scale is None else scale
        self.factor = first / self.scale
        self.roles: dict[str, Role] = {"weight": role}
        self.weight = nn.Parameter(torch.empty(width))

    def init_weights(self, init: Init) -> None:
        """Fill the parameter with `scale`."""
        init.constant("weight", self.scale)

    def forward(self) -> Tensor:
        """Return the vector (width,)."""
        return self.weight * self.factor
