"""The orthogonal factor of a matrix by iterated matrix products.

Source: Jordan et al. 2024, Muon: an optimizer for hidden layers (kellerjordan.github.io/posts/muon); Bernstein and
    Newhouse 2024, Old Optimizer, New Norm (arXiv 2409.20325)
Reference: torch.optim.Muon in bfloat16, to the bit; the singular value decomposition in float64
Equation: X <- a X + (b A + c A^2) X with A = X X^T, from X = G / |G|; singular values end near 1, between 0.7 and 1.2
"""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from annotated_types import Ge, Le
from torch import Tensor

from blockyard.contracts import Because

Iterations = Annotated[int, Ge(1), Le(100), Because("each is a matrix product; five are enough to converge")]
Arithmetic = Literal["bfloat16", "float32"]
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
SMALLEST_NORM = 1e-7  # as in torch.optim.Muon


def orthogonal(matrix: Tensor, steps: int, arithmetic: Arithmetic) -> Tensor:
    """Return a matrix (M, N) close to U V^T of the singular value decomposition U S V^T, in the type of the input.

    arithmetic: bfloat16 moves the result by about 1 %, less than the spread of singular values that the iteration
        leaves; the source and torch.optim.Muon compute in it. float32 is the type of the input
    """
    a, b, c = COEFFICIENTS
    tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.T if tall else matrix  # X X^T is then the smaller of both products
    if arithmetic == "bfloat16":
        x = x.bfloat16()
    # The Frobenius norm bounds the largest singular value, so that the iteration starts within its range.
    x = x / x.norm().clamp(min=SMALLEST_NORM)
    for _ in range(steps):
        products = x @ x.T
        polynomial = torch.addmm(products, products, products, beta=b, alpha=c)
        x = torch.addmm(x, polynomial, x, beta=a)
    x = x.to(matrix.dtype)
    return x.T if tall else x


def orthogonal_momentum(
    state: dict[str, Tensor], gradient: Tensor, *, momentum: float, nesterov: bool, steps: int, arithmetic: Arithmetic
) -> Tensor:
    """Update the momentum (M, N) in `state`, and return its orthogonal factor."""
    if "momentum_buffer" not in state:
        state["momentum_buffer"] = torch.zeros_like(gradient)
    mean = state["momentum_buffer"].lerp_(gradient, 1 - momentum)
    direction = gradient.lerp(mean, momentum) if nesterov else mean
    return orthogonal(direction, steps, arithmetic)
