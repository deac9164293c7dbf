"""SOAP: Adam in the eigenbasis of Shampoo's preconditioner, for the matrices inside the blocks; AdamW for the rest.

Source: Vyas et al. 2024, SOAP: Improving and Stabilizing Shampoo using Adam (arXiv 2409.11321), algorithms 3 and 4
Reference: the algorithm in float64, in the tests; nikhilvyas/SOAP
Equation: G' = Q_L^T G Q_R and M' = Q_L^T M Q_R, V <- b2 V + (1 - b2) G'^2,
    W <- W - lr (Q_L (M' / (sqrt(V) + eps)) Q_R^T + weight_decay W); L <- b L + (1 - b) G G^T, R <- b R + (1 - b) G^T G
Cost: for a matrix of M x N two numbers of state an element and 2 (M^2 + N^2) beside; a few products of M x M and N x N
    with the matrix per step, and two QR decompositions every `frequency` steps

The first step only starts L and R and their eigenvectors, and changes no weight. From then on the bases are improved by
one power iteration and a QR decomposition at a time. A side longer than `largest` has no eigenbasis.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from blockyard.contracts import ChoiceOptions, Count, Rate, UpdateRule
from blockyard.contracts import Width as Side
from blockyard.contracts.inherited_options import with_options_of
from blockyard.optimizer._decay import ParamGroup
from blockyard.optimizer._matrices import MatrixOptimizer, MatrixSteps


class SOAP(MatrixOptimizer):
    """SOAP for hidden matrices, AdamW for the rest.

    Options:
        betas: decay rates of the first and the second moment, in both parts
        shampoo: decay rate of the preconditioner; null is the second of betas
        frequency: steps from one improvement of the eigenbases to the next
        largest: sides of a matrix up to this size have an eigenbasis
        eps: term added to the roots of second moments
    """

    tensors_per_weight = 2
    shards = False  # neither eigenvectors nor a QR decomposition of a matrix in parts

    @with_options_of(MatrixOptimizer)
    def __init__(
        self,
        *,
        betas: tuple[Rate, Rate] = (0.95, 0.95),
        shampoo: Rate | None = None,
        frequency: Count = 10,
        largest: Side = 4096,
        **options: Any,
    ) -> None:
        super().__init__(betas=betas, **options)
        self.frequency = frequency
        self.largest = largest
        self.shampoo = betas[1] if shampoo is None else shampoo

    @classmethod
    def update_rule(cls, options: ChoiceOptions) -> UpdateRule | None:
        """Return None: the growth of updates in an eigenbasis with the width depends on the gradients."""
        return None

    @property
    def matrix_rule(self) -> UpdateRule | None:
        """None: the size of the updates is unknown."""
        return None

    def matrix_optimizer(self, groups: list[ParamGroup]) -> Optimizer:
        """Return SOAP over these groups."""
        return EigenbasisAdam(
            groups,
            lr=self.lr,
            betas=self.betas,
            shampoo=self.shampoo,
            frequency=self.frequency,
            largest=self.largest,
            eps=self.eps,
        )


class EigenbasisAdam(MatrixSteps):
    """The update of matrices. state of each: both moments, L and R with their bases, and the number of steps."""

    def update(self, p: Tensor, gradient: Tensor, group: ParamGroup) -> None:
        """Update one matrix (M, N) in place."""
        state = self.state[p]
        first, second = group["betas"]
        sides = {"left": gradient @ gradient.T, "right": gradient.T @ gradient}
        sides = {side: products for side, products in sides.items() if len(products) <= group["largest"]}
        if not state:
            state |= {"step": 0, "exp_avg": torch.zeros_like(p), "exp_avg_sq": torch.zeros_like(p)}
            for side, products in sides.items():
                state[side] = products * (1 - group["shampoo"])
                state[f"{side}_basis"] = torch.linalg.eigh(state[side]).eigenvectors.flip(1)
            return
        state["step"] += 1
        state["exp_avg"].lerp_(gradient, 1 - first)
        state["exp_avg_sq"].lerp_(_into(gradient, state).square(), 1 - second)
        size = (state["exp_avg_sq"] / (1 - second ** state["step"])).sqrt() + group["eps"]
        moved = _into(state["exp_avg"], state) / (1 - first ** state["step"]) / size
        p.mul_(1 - group["lr"] * group["weight_decay"])
        p.sub_(_out_of(moved, state) * group["lr"])
        for side, products in sides.items():
            state[side].lerp_(products, 1 - group["shampoo"])
        if state["step"] % group["frequency"] == 0:
            _improve(state, sides)


def _into(matrix: Tensor, state: Mapping[str, Tensor]) -> Tensor:
    """Return a matrix (M, N) in the eigenbases."""
    if "left" in state:
        matrix = state["left_basis"].T @ matrix
    if "right" in state:
        matrix = matrix @ state["right_basis"]
    return matrix


def _out_of(matrix: Tensor, state: Mapping[str, Tensor]) -> Tensor:
    """Return a matrix (M, N) from the eigenbases."""
    if "left" in state:
        matrix = state["left_basis"] @ matrix
    if "right" in state:
        matrix = matrix @ state["right_basis"].T
    return matrix


def _improve(state: dict[str, Tensor], sides: dict[str, Tensor]) -> None:
    """Improve each basis by a power iteration, its columns in the order of their eigenvalues."""
    for side, dim in (("left", 0), ("right", 1)):
        if side not in sides:
            continue
        basis, matrix = state[f"{side}_basis"], state[side]
        values = ((basis.T @ matrix) * basis.T).sum(1)
        order = values.argsort(descending=True)
        # Second moments belong to eigenvectors and move with them.
        state["exp_avg_sq"] = state["exp_avg_sq"].index_select(dim, order)
        state[f"{side}_basis"] = torch.linalg.qr(matrix @ basis[:, order]).Q
