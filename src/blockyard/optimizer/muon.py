"""Muon: orthogonalised momentum for the matrices inside the blocks, AdamW for all other parameters.

Source: Jordan et al. 2024, Muon: an optimizer for hidden layers (kellerjordan.github.io/posts/muon);
    Liu et al. 2025, Muon is Scalable for LLM Training (arXiv 2502.16982), the update's scale.
Reference: torch.optim.Muon, to the bit with arithmetic=bfloat16
Equation: W <- W - lr (s NS(momentum of G) + weight_decay W), NS(M) close to U V^T of M's SVD, s by `scale`
Cost: one number of state per matrix element, and a few matmuls of the matrix's own size per step

AdamW updates tables, biases, gains, convolutions and the head. Muon treats a projection that holds queries, keys and
values side by side as one matrix.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from torch import Tensor
from torch.optim import Optimizer

from blockyard.contracts import ChoiceOptions, Rate, UpdateRule
from blockyard.contracts.inherited_options import with_options_of
from blockyard.optimizer._decay import ParamGroup
from blockyard.optimizer._matrices import Arithmetic, MatrixOptimizer
from blockyard.optimizer._newton_schulz import Iterations, MomentumSteps

Scale = Literal["match_rms_adamw", "original"]


class Muon(MatrixOptimizer):
    """Muon for hidden matrices, AdamW for the rest.

    Options:
        momentum: momentum of Muon
        nesterov: use Nesterov momentum
        ns_steps: number of Newton-Schulz iterations
        arithmetic: type that Newton-Schulz computes in; bfloat16 moves an update by 1 %, and is faster on a GPU
        scale: match_rms_adamw scales updates to the RMS of AdamW's, so that one lr suits both; original is Jordan's
    """

    @with_options_of(MatrixOptimizer)
    def __init__(
        self,
        *,
        momentum: Rate = 0.95,
        nesterov: bool = True,
        ns_steps: Iterations = 5,
        arithmetic: Arithmetic = "bfloat16",
        scale: Scale = "match_rms_adamw",
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.momentum = momentum
        self.nesterov = nesterov
        self.ns_steps = ns_steps
        self.arithmetic: Arithmetic = arithmetic
        self.scale = scale

    @classmethod
    def update_rule(cls, options: ChoiceOptions) -> UpdateRule | None:
        """Return the rule of the matrices. The rest is updated by Adam."""
        if options.get("scale", "match_rms_adamw") == "match_rms_adamw":
            return "muon_rms"
        return "muon"

    @property
    def matrix_rule(self) -> UpdateRule:
        """The size of the updates, by `scale`."""
        if self.scale == "match_rms_adamw":
            return "muon_rms"
        return "muon"

    def matrix_optimizer(self, groups: list[ParamGroup]) -> Optimizer:
        """Return Muon over these groups."""
        return OrthogonalSteps(
            groups,
            lr=self.lr,
            momentum=self.momentum,
            nesterov=self.nesterov,
            ns_steps=self.ns_steps,
            adjust_lr_fn=self.scale,
            arithmetic=self.arithmetic,
        )


class OrthogonalSteps(MomentumSteps):
    """The update of matrices. Groups and state have the names of torch.optim.Muon, so that it loads its checkpoints."""

    iterations = "ns_steps"

    def step_along(self, update: Tensor, p: Tensor, group: ParamGroup) -> None:
        """Update one matrix p (M, N) in place."""
        p.mul_(1 - group["lr"] * group["weight_decay"])
        p.add_(update, alpha=-group["lr"] * factor(p.shape, group["adjust_lr_fn"]))


def factor(shape: torch.Size, scale: Scale) -> float:
    """Return the factor on an update of a matrix (M, N)."""
    if scale == "original":
        return math.sqrt(max(1, shape[0] / shape[1]))
    # An orthogonal matrix has an RMS of 1 / sqrt(max(M, N)); AdamW's updates have one of about 0.2.
    return 0.2 * math.sqrt(max(shape))
