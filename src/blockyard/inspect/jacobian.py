"""The norms of the blocks of a Jacobian, whole or estimated: how much each output token hears of each input token.

Source: Hutchinson 1990, A stochastic estimator of the trace of the influence matrix, for random directions

Each row of a batch pulls another direction back through the same sample, so that nothing is asked of a
mixer but that its rows do not mix. Exact: the D unit directions of each token. Estimated: `probes` random
signs s a token, since the mean of |s^T J|^2 is |J|_F^2.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from blockyard.inspect.recorded_calls import Call

EXACT = 4096  # so many directions or fewer are pulled back one by one
PROBES = 16
_SEED = 0


def norms(one: Call, probes: int | None = None) -> tuple[Tensor, float, int]:
    """(N, M) norms of a call whose rows are all the same sample, their relative standard error, and the probes.

    0 probes in the answer means exact. Randomness is the same for every call.
    """
    x = one.x.detach()
    with torch.no_grad():
        _, count, width = one.run(x).shape
    if probes is None:
        probes = 0 if count * width <= EXACT else PROBES
    each = probes or width
    generator = torch.Generator().manual_seed(_SEED)
    signs = torch.randint(0, 2, (count, each, width), generator=generator) * 2 - 1  # (N, probes, D)
    directions = signs.to(x) if probes else torch.eye(width).to(x).expand(count, -1, -1)
    squares = torch.cat(list(_pulled(one, directions.reshape(count * each, width), each)))  # (N probes, M)
    squares = squares.unflatten(0, (count, each)) / width  # (N, probes, M)
    if not probes:
        return squares.sum(1).sqrt(), 0.0, 0
    mean = squares.mean(1)
    return mean.sqrt(), _error(squares, mean), probes


def _error(squares: Tensor, mean: Tensor) -> float:
    """The standard error of a norm as a share of it: the median over entries that are not nothing."""
    if squares.shape[1] < 2:
        return math.nan
    there = mean > mean.max() * 1e-10
    relative = squares.std(1) / math.sqrt(squares.shape[1]) / (2 * mean)  # of a root: half the square's
    return float(relative[there].median()) if there.any() else 0.0


def _pulled(one: Call, directions: Tensor, each: int) -> Iterator[Tensor]:
    """Squared lengths (chunk, M) of what each direction (rows of tokens, `each` a token) gives at every input."""
    copies = len(one.x)
    for start in range(0, len(directions), copies):
        part = directions[start : start + copies]
        x = one.x.detach().clone().requires_grad_()
        with torch.enable_grad():
            y = one.run(x)  # (copies, N, D)
            pull = torch.zeros_like(y)
            rows = torch.arange(len(part))
            pull[rows, (start + rows) // each] = part
            if not y.requires_grad:  # nothing is read at all
                yield x.new_zeros(len(part), x.shape[1])
                continue
            (gradient,) = torch.autograd.grad(y, x, pull, allow_unused=True, materialize_grads=True)
        yield gradient[: len(part)].square().sum(-1)
