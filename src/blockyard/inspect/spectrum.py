"""Singular values and eigenvalues of a product of two thin matrices, computed without the product.

Source: Elhage et al. 2021, A Mathematical Framework for Transformer Circuits (transformer-circuits.pub), the
    section on detecting copying behaviour by eigenvalues
Equation: copying score = sum of eigenvalues / sum of their absolute values

The D x D circuits of a head have rank K at most: K x K matrices have the same non-zero eigenvalues and singular
values.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass
class Spectrum:
    """The spectrum of a product left @ right of rank K.

    singular: singular values (K,), descending
    eigenvalues: (K,) complex, by descending absolute value; empty for a map between two different spaces
    """

    singular: Tensor
    eigenvalues: Tensor

    @property
    def norm(self) -> float:
        """The Frobenius norm."""
        return float(self.singular.norm())

    @property
    def positive(self) -> float:
        """Sum of the eigenvalues over the sum of their absolute values: 1 all positive, -1 all negative, or NaN."""
        if not len(self.eigenvalues):
            return math.nan
        total = self.eigenvalues.abs().sum()
        return float(self.eigenvalues.sum().real / total) if total > 0 else 0.0

    @property
    def effective_rank(self) -> float:
        """How many directions take part."""
        return effective_rank(self.singular)


def effective_rank(singular: Tensor) -> float:
    """Returns how many directions take part in a map with these singular values: (sum s^2)^2 / sum s^4."""
    power = singular.square()
    return float(power.sum().square() / power.square().sum().clamp_min(1e-300))


def spectrum(left: Tensor, right: Tensor, *, one_space: bool = True) -> Spectrum:
    """Returns the spectrum of left (D, K) @ right (K, D').

    one_space: both sides are of one vector space; only then, and with D = D', are there eigenvalues
    """
    inner = torch.linalg.qr(left, "r").R @ torch.linalg.qr(right.T, "r").R.T  # (K, K), or smaller where D < K
    singular = torch.linalg.svdvals(inner)
    eigenvalues = torch.empty(0, dtype=torch.complex128)
    if one_space and left.shape[0] == right.shape[1]:
        small = right @ left if left.shape[0] >= left.shape[1] else left @ right
        eigenvalues = torch.linalg.eigvals(small)
        eigenvalues = eigenvalues[eigenvalues.abs().argsort(descending=True)]
    return Spectrum(singular, eigenvalues)
