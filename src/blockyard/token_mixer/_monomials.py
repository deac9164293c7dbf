"""Features whose products are a power of a scalar product."""

from __future__ import annotations

import math
from collections import Counter
from itertools import combinations_with_replacement

import torch
from torch import Tensor

MOST = 4096  # features of a head; its state has as many rows


def count(width: int, degree: int, *, constant: bool) -> int:
    """Returns how many features `monomials` lists."""
    return math.comb(width + constant + degree - 1, degree)


def monomials(width: int, degree: int) -> tuple[Tensor, Tensor]:
    """Returns the products of `degree` channels of a vector: their indices (F, degree), and a factor each (F,).

    With phi(x)_f = factor_f x[index_f1] ... x[index_fp], phi(x)^T phi(y) = (x^T y)^p: the square of a factor counts the
    orders in which its product occurs, p! over the factorials of how often each channel does.
    """
    index = list(combinations_with_replacement(range(width), degree))
    orders = [
        math.factorial(degree) / math.prod(math.factorial(times) for times in Counter(each).values()) for each in index
    ]
    return torch.tensor(index), torch.tensor(orders, dtype=torch.float64).sqrt()


def features(x: Tensor, index: Tensor, factor: Tensor) -> Tensor:
    """phi(x): (..., width) -> (..., F)."""
    product = x.index_select(-1, index[:, 0])
    for column in range(1, index.shape[1]):
        product = product * x.index_select(-1, index[:, column])
    return product * factor.to(x.dtype)
