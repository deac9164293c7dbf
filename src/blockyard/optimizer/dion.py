"""Dion: orthonormal updates of low rank, by one power iteration a step; AdamW for all other parameters.

Source: Ahn et al. 2025, Dion: Distributed Orthonormalized Updates (arXiv 2504.05295), algorithm 1
Reference: the algorithm in float64, in the tests; microsoft/dion
Equation: B = M + G, P = QR(B Q), R = B^T P, M <- B - (1 - momentum) P R^T, Q <- R with columns of length one,
    W <- W - lr (s P Q^T + weight_decay W)
Cost: for a matrix of M x N and rank r two numbers of state an element and N r beside, a QR decomposition of M x r and
    three products of M x N with r columns per step

The part of the momentum that a step does not use stays in it whole, and fades only once it is used. Dion was made for
matrices that are spread over devices, to send r columns in place of the matrix. Here each process has the whole matrix,
and the comparison is of learning with r columns.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

import torch
from annotated_types import Gt, Le
from torch import Tensor
from torch.optim import Optimizer

from blockyard.contracts import ChoiceOptions, Rate, UpdateRule
from blockyard.contracts.inherited_options import with_options_of
from blockyard.optimizer._decay import ParamGroup
from blockyard.optimizer._matrices import MatrixOptimizer, MatrixSteps

Scale = Literal["match_rms_adamw", "original"]
Share = Annotated[float, Gt(0), Le(1)]


class Dion(MatrixOptimizer):
    """Dion for hidden matrices, AdamW for the rest.

    Options:
        momentum: share of the used part that stays in the momentum
        rank: columns of an update, as a share of the smaller side of its matrix, rounded up
        scale: match_rms_adamw gives an update of full rank the RMS of AdamW's, as of muon; original is the paper's
            sqrt(M / N)
        eps: term added to the root of AdamW's second moment, and to lengths of columns
    """

    shards = False  # no QR decomposition of a matrix in parts

    @with_options_of(MatrixOptimizer)
    def __init__(
        self,
        *,
        momentum: Rate = 0.95,
        rank: Share = 0.25,
        scale: Scale = "match_rms_adamw",
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.momentum = momentum
        self.rank = rank
        self.scale = scale

    @classmethod
    def update_rule(cls, options: ChoiceOptions) -> UpdateRule | None:
        """Return the rule of the matrices. The rest is updated by Adam."""
        if options.get("scale", "match_rms_adamw") == "match_rms_adamw":
            return "muon_rms"
        return "dion"

    @property
    def matrix_rule(self) -> UpdateRule:
        """The size of the updates, by `scale`."""
        if self.scale == "match_rms_adamw":
            return "muon_rms"
        return "dion"

    def matrix_optimizer(self, groups: list[ParamGroup]) -> Optimizer:
        """Return Dion over these groups."""
        return LowRankSteps(groups, lr=self.lr, momentum=self.momentum, rank=self.rank, scale=self.scale, eps=self.eps)


class LowRankSteps(MatrixSteps):
    """The update of matrices. state of each: its momentum (M, N), and the columns (N, r) of the power iteration."""

    def update(self, p: Tensor, gradient: Tensor, group: ParamGroup) -> None:
        """Update one matrix (M, N) in place."""
        state = self.state[p]
        if not state:
            state["momentum_buffer"] = torch.zeros_like(p)
            state["columns"] = first_columns(p, group["rank"])
        momentum = state["momentum_buffer"].add_(gradient)
        left = torch.linalg.qr(momentum @ state["columns"]).Q  # (M, r)
        right = momentum.T @ left  # (N, r)
        momentum.sub_((1 - group["momentum"]) * left @ right.T)  # only the used part, of rank r, fades
        state["columns"] = right / (right.norm(dim=0) + group["eps"])
        p.mul_(1 - group["lr"] * group["weight_decay"])
        p.sub_(left @ state["columns"].T * (group["lr"] * factor(p.shape, group["scale"])))


def first_columns(p: Tensor, rank: float) -> Tensor:
    """Return the columns (N, r) that the power iteration of a matrix (M, N) starts from, the same in every run."""
    columns = math.ceil(rank * min(p.shape))
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randn(p.shape[1], columns, generator=generator, dtype=torch.float64)
    return torch.linalg.qr(drawn).Q.to(p)


def factor(shape: torch.Size, scale: Scale) -> float:
    """Return the factor on an update of a matrix (M, N)."""
    if scale == "original":
        return math.sqrt(shape[0] / shape[1])
    return 0.2 * math.sqrt(max(shape))
