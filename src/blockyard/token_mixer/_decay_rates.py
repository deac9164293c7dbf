"""Decays that depend on the token, in the form of state-space models: a rate, times a step that the token chooses.

Source: Gu and Dao 2023, Mamba (arXiv 2312.00752), sections 3.2 and 3.6; Dao and Gu 2024, Transformers are SSMs
    (arXiv 2405.21060), section 7
Reference: transformers Qwen3NextGatedDeltaNet, KimiLinearForgetGate
Equation: log a_t = -exp(A) softplus(s_t + b), s_t computed from the token, a rate exp(A) for each head
Cost: nothing beside the map that computes s_t
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from blockyard.contracts import Role
from blockyard.weight_init import Init

RATES = (1.0, 16.0)  # initial rates are drawn uniformly in this range
STEPS = (1e-3, 1e-1)  # initial steps are drawn uniformly in the logarithm of this range


class DecayRates(nn.Module):
    """forward(s) -> log a, both (B, N, H, C): for each head a decay of each of C channels, or a single one."""

    def __init__(self, heads: int, channels: int = 1) -> None:
        super().__init__()
        self.rate = nn.Parameter(torch.empty(heads))  # A
        self.step = nn.Parameter(torch.empty(heads * channels))  # b
        # In a wider model a head has more channels, and there are as many heads.
        self.roles: dict[str, Role] = {"rate": "fixed", "step": "fixed" if channels == 1 else "vector"}

    def init_weights(self, init: Init) -> None:
        """Draw rates between 1 and 16 and steps between 0.001 and 0.1: an average memory of 1 to 1,000 tokens."""
        rate = torch.empty(self.rate.shape).uniform_(*RATES, generator=init.generator("rate"))
        init.copy("rate", rate.log())
        init.copy("step", initial_steps(len(self.step), init.generator("step")))

    def forward(self, s: Tensor) -> Tensor:
        """s (B, N, H, C) -> log a (B, N, H, C), in the dtype of s."""
        return self.with_steps(s)[0]

    def with_steps(self, s: Tensor) -> tuple[Tensor, Tensor]:
        """Return log a (B, N, H, C), and the steps softplus(s + b) that it is proportional to."""
        step = F.softplus(s + self.step.to(s.dtype).view(s.shape[-2:]))
        return -self.rate.to(s.dtype).exp()[:, None] * step, step


def initial_steps(count: int, generator: torch.Generator) -> Tensor:
    """Return numbers b (count,) with ln softplus(b) uniform between the logarithms of `STEPS`."""
    low, high = map(math.log, STEPS)
    step = torch.empty(count).uniform_(low, high, generator=generator).exp()
    return step + torch.log(-torch.expm1(-step))  # the inverse of softplus, stable for small steps
