"""The orthogonal factor of a matrix by iterated matrix products, and the step of the optimizers that move along it.

Source: Jordan et al. 2024, Muon: an optimizer for hidden layers (kellerjordan.github.io/posts/muon); Bernstein and
    Newhouse 2024, Old Optimizer, New Norm (arXiv 2409.20325)
Reference: torch.optim.Muon in bfloat16, to the bit; the singular value decomposition in float64
Equation: X <- a X + (b A + c A^2) X with A = X X^T, from X = G / |G|; singular values end near 1, between 0.7 and 1.2
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Annotated, Any

import torch
from annotated_types import Ge, Le
from torch import Tensor

from blockyard.contracts import Because
from blockyard.optimizer._decay import ParamGroup
from blockyard.optimizer._matrices import Arithmetic, MatrixSteps

Iterations = Annotated[int, Ge(1), Le(100), Because("each is a matrix product; five are enough to converge")]
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
SMALLEST_NORM = 1e-7  # as in torch.optim.Muon


class MomentumSteps(MatrixSteps):
    """Steps along the orthogonal factor of a momentum. Subclasses implement `step_along`.

    On a GPU the matrices of one shape are multiplied in one batch: one at a time, a small model waits for launches.

    arithmetic: type that Newton-Schulz computes in
    iterations: name of the number of iterations in a parameter group
    """

    iterations = "steps"

    def __init__(self, groups: list[ParamGroup], *, arithmetic: Arithmetic, **options: Any) -> None:
        super().__init__(groups, **options)
        self.arithmetic = arithmetic

    @abstractmethod
    def step_along(self, update: Tensor, p: Tensor, group: ParamGroup) -> None:
        """Update one matrix p (M, N) in place along an orthogonal factor (M, N)."""

    def update_parameters(self) -> None:
        """Update every matrix that has a gradient."""
        batches: dict[Any, list[tuple[Tensor, ParamGroup]]] = {}
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                key: Any = id(p)
                if batches_products(p):
                    key = (p.shape, p.dtype, p.device, group[self.iterations])
                batches.setdefault(key, []).append((p, group))
        for batch in batches.values():
            self._update_batch(batch)

    def update(self, p: Tensor, gradient: Tensor, group: ParamGroup) -> None:
        """Update one matrix (M, N) in place."""
        self._update_batch([(p, group)])

    def _update_batch(self, batch: list[tuple[Tensor, ParamGroup]]) -> None:
        """Update matrices of one shape."""
        directions = [self._direction(p, group) for p, group in batch]
        steps = batch[0][1][self.iterations]
        if len(batch) == 1:
            factors = [orthogonal(directions[0], steps, self.arithmetic)]
        else:
            factors = list(orthogonal(torch.stack(directions), steps, self.arithmetic))
        for (p, group), factor in zip(batch, factors, strict=True):
            self.step_along(factor, p, group)

    def _direction(self, p: Tensor, group: ParamGroup) -> Tensor:
        """Update the momentum of a matrix, and return the matrix (M, N) to orthogonalise."""
        state = self.state[p]
        gradient = p.grad
        assert gradient is not None
        momentum = group["momentum"]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(gradient)
        mean: Tensor = state["momentum_buffer"].lerp_(gradient, 1 - momentum)
        if group.get("nesterov", False):
            return gradient.lerp(mean, momentum)
        return mean


def batches_products(p: Tensor) -> bool:
    """Return whether p is multiplied in one batch with others of its shape: on a GPU, if this process has it whole."""
    return p.is_cuda and type(p.data) is Tensor


def orthogonal(matrix: Tensor, steps: int, arithmetic: Arithmetic) -> Tensor:
    """Return matrices (..., M, N) close to U V^T of the singular value decomposition U S V^T, in the type of the input.

    arithmetic: bfloat16 moves the result by about 1 %, less than the spread of singular values that the iteration
        leaves; the source and torch.optim.Muon compute in it. float32 is the type of the input
    """
    a, b, c = COEFFICIENTS
    tall = matrix.shape[-2] > matrix.shape[-1]
    x = matrix.mT if tall else matrix  # X X^T is then the smaller of both products
    if arithmetic == "bfloat16":
        x = x.bfloat16()
    add_product = torch.addmm if x.dim() == 2 else torch.baddbmm
    # The Frobenius norm bounds the largest singular value, so that the iteration starts within its range.
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=SMALLEST_NORM)
    for _ in range(steps):
        products = x @ x.mT
        polynomial = add_product(products, products, products, beta=b, alpha=c)
        x = add_product(x, polynomial, x, beta=a)
    x = x.to(matrix.dtype)
    return x.mT if tall else x
