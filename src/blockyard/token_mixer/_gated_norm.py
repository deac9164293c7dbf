"""The output stage of recurrent mixers: an RMS norm of each head, then a gate computed from the token.

Source: Sun et al. 2023, Retentive Network (arXiv 2307.08621), eq. 8
Reference: transformers Qwen3NextRMSNormGated, KimiLinearRMSNormGated
Equation: y / sqrt(mean(y^2) + eps) * gain * g(z), g = silu or sigmoid
Cost: O(N D) time
"""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from blockyard.contracts import Role
from blockyard.weight_init import Init

OutputGate = Literal["none", "silu", "sigmoid"]


class GatedNorm(nn.Module):
    """forward(x, gate) -> (..., V), for x (..., V) and a gate of that shape, or None without a gate.

    The heads share a gain for each of their channels.
    """

    roles: ClassVar[dict[str, Role]] = {"weight": "vector"}

    def __init__(self, width: int, gate: OutputGate, eps: float) -> None:
        super().__init__()
        self.gate = gate
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(width))

    def init_weights(self, init: Init) -> None:
        """Set the gain to one."""
        init.ones("weight")

    def forward(self, x: Tensor, gate: Tensor | None = None) -> Tensor:
        """x (..., V), gate (..., V) -> (..., V), in the dtype of x."""
        x = F.rms_norm(x, x.shape[-1:], self.weight.to(x.dtype), self.eps)
        if self.gate == "none":
            return x
        assert gate is not None
        gate = gate.to(x.dtype)
        if self.gate == "silu":
            return x * F.silu(gate)
        return x * torch.sigmoid(gate)
