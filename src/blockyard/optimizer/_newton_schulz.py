"""The orthogonal factor of a matrix by iterated matrix products.

Source: Jordan et al. 2024, Muon: an optimizer for hidden layers (kellerjordan.github.io/posts/muon); Bernstein and
    Newhouse 2024, Old Optimizer, New Norm (arXiv 2409.20325)
Reference: the singular value decomposition
Equation: X <- a X + (b A + c A^2) X with A = X X^T, from X = G / |G|; singular values end near 1, between 0.7 and 1.2
"""

from __future__ import annotations

from typing import Annotated

from annotated_types import Ge, Le
from torch import Tensor

from blockyard.contracts import Because

Iterations = Annotated[int, Ge(1), Le(100), Because("each is a matrix product; five are enough to converge")]
COEFFICIENTS = (3.4445, -4.7750, 2.0315)


def orthogonal(matrix: Tensor, steps: int) -> Tensor:
    """Return a matrix (M, N) close to U V^T of the singular value decomposition U S V^T, in the type of the input."""
    a, b, c = COEFFICIENTS
    tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.T if tall else matrix
    x = x / (x.norm() + 1e-7)
    for _ in range(steps):
        products = x @ x.T
        x = a * x + (b * products + c * products @ products) @ x
    return x.T if tall else x
