"""Singular values and eigenvalues of a product of two thin matrices, without making the product.

Source: Elhage et al. 2021, A Mathematical Framework for Transformer Circuits (transformer-circuits.pub), the
    section on detecting copying behaviour by eigenvalues
Equation: copying score = sum of eigenvalues / sum of their sizes

A head's D x D circuits are of rank K at most: spectra are worked out from K x K matrices with the same
non-zero eigenvalues and singular values.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass
class Spectrum:
    """Of a product left @ right of rank K: singular values (K,), falling; eigenvalues (K,) complex, by size, which
    only a map of one space into itself has.
    """

    singular: Tensor
    eigenvalues: Tensor

    @property
    def norm(self) -> float:
        """The Frobenius norm."""
        return float(self.singular.norm())

    @property
    def positive(self) -> float:
        """Sum of the eigenvalues over the sum of their sizes: 1 all positive, -1 all negative, NaN without any."""
        if not len(self.eigenvalues):
            return math.nan
        size = self.eigenvalues.abs().sum()
        return float(self.eigenvalues.sum().real / size) if size > 0 else 0.0

    @property
    def rank(self) -> float:
        """How many directions take part: (sum s^2)^2 / sum s^4 over singular values s."""
        power = self.singular.square()
        return float(power.sum().square() / power.square().sum().clamp_min(1e-300))


def spectrum(left: Tensor, right: Tensor, *, one_space: bool = True) -> Spectrum:
    """The spectrum of left (D, K) @ right (K, D'); eigenvalues where both sides are of one space, else none."""
    inner = torch.linalg.qr(left, "r").R @ torch.linalg.qr(right.T, "r").R.T  # (K, K), or smaller where D < K
    singular = torch.linalg.svdvals(inner)
    values = torch.empty(0, dtype=torch.complex128)
    if one_space and left.shape[0] == right.shape[1]:
        small = right @ left if left.shape[0] >= left.shape[1] else left @ right
        values = torch.linalg.eigvals(small)
        values = values[values.abs().argsort(descending=True)]
    return Spectrum(singular, values)
