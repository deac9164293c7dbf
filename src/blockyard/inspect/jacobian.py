"""The norms of the blocks of a Jacobian, exact or estimated: how much each output token depends on each input token.

Source: Hutchinson 1990, A stochastic estimator of the trace of the influence matrix, for random directions

Each copy of the sample in a batch is the vector-Jacobian product of another direction, so that the only
requirement on a mixer is that it does not mix the samples of a batch. Exact: the D unit directions of each token.
Estimated: `probes` random signs s a token, since the mean of |s^T J|^2 is |J|_F^2.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from blockyard.inspect.recorded_calls import RecordedCall

MAX_EXACT = 4096  # up to so many directions, the default is exact
PROBES = 16
_SEED = 0


def block_norms(call: RecordedCall, probes: int | None = None) -> tuple[Tensor, float, int]:
    """Return norms (N, M), their relative standard error, and the number of probes, 0 if exact.

    call: of a batch of one sample, repeated; probes: 0 is exact, None is exact up to `MAX_EXACT` directions
    Every call draws the same random directions.
    """
    x = call.x.detach()
    with torch.no_grad():
        _, count, width = call.function(x).shape
    if probes is None:
        probes = 0 if count * width <= MAX_EXACT else PROBES
    per_token = probes or width
    generator = torch.Generator().manual_seed(_SEED)
    signs = torch.randint(0, 2, (count, per_token, width), generator=generator) * 2 - 1  # (N, probes, D)
    directions = signs.to(x) if probes else torch.eye(width).to(x).expand(count, -1, -1)
    products = _squared_products(call, directions.reshape(count * per_token, width), per_token)
    squares = torch.cat(list(products)).unflatten(0, (count, per_token)) / width  # (N, probes, M)
    if not probes:
        return squares.sum(1).sqrt(), 0.0, 0
    mean = squares.mean(1)
    return mean.sqrt(), _relative_error(squares, mean), probes


def _relative_error(squares: Tensor, mean: Tensor) -> float:
    """Return the standard error of a norm as a share of it: the median over the entries that are not zero."""
    if squares.shape[1] < 2:
        return math.nan
    nonzero = mean > mean.max() * 1e-10
    relative = squares.std(1) / math.sqrt(squares.shape[1]) / (2 * mean)  # a root has half the error of its square
    return float(relative[nonzero].median()) if nonzero.any() else 0.0


def _squared_products(call: RecordedCall, directions: Tensor, per_token: int) -> Iterator[Tensor]:
    """Yield squared lengths (chunk, M) of the products of directions (N per_token, D) at every input token."""
    copies = len(call.x)
    for start in range(0, len(directions), copies):
        # One backward pass for as many directions as the batch has copies of the sample: they do not mix.
        chunk = directions[start : start + copies]
        x = call.x.detach().clone().requires_grad_()
        with torch.enable_grad():
            y = call.function(x)  # (copies, N, D)
            grad_y = torch.zeros_like(y)
            indices = torch.arange(len(chunk))
            grad_y[indices, (start + indices) // per_token] = chunk
            if not y.requires_grad:  # the output does not depend on x
                yield x.new_zeros(len(chunk), x.shape[1])
                continue
            (grad_x,) = torch.autograd.grad(y, x, grad_y, allow_unused=True, materialize_grads=True)
        yield grad_x[: len(chunk)].square().sum(-1)


@dataclass
class Spectrum:
    """The spectrum of a product left @ right of two thin matrices, of rank K, computed without the product.

    Source: Elhage et al. 2021, A Mathematical Framework for Transformer Circuits (transformer-circuits.pub), the
        section on detecting copying behaviour by eigenvalues
    Equation: copying score = sum of eigenvalues / sum of their absolute values

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
        """The number of directions that take part."""
        return effective_rank(self.singular)


def effective_rank(singular: Tensor) -> float:
    """Return the number of directions that take part in a map with these singular values: (sum s^2)^2 / sum s^4."""
    power = singular.square()
    return float(power.sum().square() / power.square().sum().clamp_min(1e-300))


def spectrum(left: Tensor, right: Tensor, *, one_space: bool = True) -> Spectrum:
    """Return the spectrum of left (D, K) @ right (K, D').

    one_space: both sides are of one vector space; only then, and with D = D', are there eigenvalues
    """
    # The K x K product of the triangles has the singular values of the D x D product.
    inner = torch.linalg.qr(left, "r").R @ torch.linalg.qr(right.T, "r").R.T  # (K, K), or smaller where D < K
    singular = torch.linalg.svdvals(inner)
    eigenvalues = torch.empty(0, dtype=torch.complex128)
    if one_space and left.shape[0] == right.shape[1]:
        # AB and BA have the same eigenvalues, up to zeros: the smaller of both is taken.
        small = right @ left if left.shape[0] >= left.shape[1] else left @ right
        eigenvalues = torch.linalg.eigvals(small)
        eigenvalues = eigenvalues[eigenvalues.abs().argsort(descending=True)]
    return Spectrum(singular, eigenvalues)
