"""NorMuon: Muon with updates normalised for each output of a matrix; AdamW for all other parameters.

Source: Li et al. 2025, NorMuon: Making Muon more efficient and scalable (arXiv 2510.05491), algorithm 1
Reference: the algorithm in float64, in the tests
Equation: O = NS(momentum of G), v_i <- b v_i + (1 - b) mean_j O_ij^2, U_ij = O_ij / (sqrt(v_i) + eps),
    W <- W - lr (0.2 sqrt(rows cols) U / |U| + weight_decay W)
Cost: that of Muon, and one number of state for each row

An orthogonal matrix has rows of very different size if it is wider than high or its momentum is nearly of low rank;
then a few outputs learn most. The updates have the root mean square 0.2, about the same as of AdamW.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from blockyard.contracts import ChoiceOptions, Rate, UpdateRule
from blockyard.contracts.inherited_options import with_options_of
from blockyard.optimizer._decay import ParamGroup
from blockyard.optimizer._matrices import Arithmetic
from blockyard.optimizer._newton_schulz import MomentumSteps
from blockyard.optimizer.muon import Muon

RMS = 0.2  # root mean square of an update, at a learning rate of 1


class NorMuon(Muon):
    """NorMuon for hidden matrices, AdamW for the rest.

    Options:
        momentum: share of the momentum that stays at each step
        second: decay rate of the second moment of the rows

        arithmetic: type that Newton-Schulz computes in, as of muon
        eps: term added to the roots of second moments
    """

    @with_options_of(Muon, without=("nesterov", "scale"))
    def __init__(
        self,
        *,
        second: Rate = 0.95,
        arithmetic: Arithmetic = "float32",  # of configs from before the option; conf/optimizer has the default
        **options: Any,
    ) -> None:
        super().__init__(arithmetic=arithmetic, **options)
        self.second = second

    @classmethod
    def update_rule(cls, options: ChoiceOptions) -> UpdateRule | None:
        """Return the rule of the matrices. The rest is updated by Adam."""
        return "muon_rms"

    @property
    def matrix_rule(self) -> UpdateRule:
        """The size of the updates, as of Adam."""
        return "muon_rms"

    def matrix_optimizer(self, groups: list[ParamGroup]) -> Optimizer:
        """Return NorMuon over these groups."""
        return RowNormalised(
            groups,
            lr=self.lr,
            momentum=self.momentum,
            second=self.second,
            steps=self.ns_steps,
            arithmetic=self.arithmetic,
            eps=self.eps,
        )


class RowNormalised(MomentumSteps):
    """The update of matrices."""

    def step_along(self, update: Tensor, p: Tensor, group: ParamGroup) -> None:
        """Update one matrix p (M, N) in place."""
        state = self.state[p]
        if "row_moment" not in state:
            state["row_moment"] = torch.zeros_like(p[:, :1])
        rows = state["row_moment"]  # (M, 1)
        rows.lerp_(update.square().mean(1, keepdim=True), 1 - group["second"])
        update = update / (rows.sqrt() + group["eps"])
        update = update / update.norm().clamp_min(torch.finfo(p.dtype).tiny)  # an update of zero stays zero
        p.mul_(1 - group["lr"] * group["weight_decay"])
        p.sub_(update * (RMS * p.numel() ** 0.5 * group["lr"]))
