"""Mixtures of K densities over V values, independent of each other within a component: log densities and draws.

log p(x) = log sum_k pi_k prod_v f((x_v - mean_kv) / scale_kv) / scale_kv      f: standard normal, or logistic
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional as F

Kind: TypeAlias = Literal["normal", "logistic"]
OPEN = 1e6  # an edge so far away that nothing is beyond it; infinity has no gradient


class MixtureDensity(NamedTuple):
    """log_weight: (..., K), normalized; mean, log_scale: (..., K, V)."""

    log_weight: Tensor
    mean: Tensor
    log_scale: Tensor


def mixture_of(prediction: Tensor, values: int) -> MixtureDensity:
    """Returns the mixture of what `head=mixture` gives: (..., K (1 + 2 V)), component by component."""
    parts = prediction.float().unflatten(-1, (-1, 1 + 2 * values))  # (..., K, 1 + 2 V)
    logit, mean, log_scale = parts.split([1, values, values], -1)
    return MixtureDensity(logit[..., 0].log_softmax(-1), mean, log_scale)


def log_density(mixture: MixtureDensity, x: Tensor, kind: Kind) -> Tensor:
    """Returns the log density (...) of values x (..., V)."""
    z = (x[..., None, :] - mixture.mean) * (-mixture.log_scale).exp()  # (..., K, V)
    normal = kind == "normal"
    each = -0.5 * (z.square() + math.log(2 * math.pi)) if normal else F.logsigmoid(z) + F.logsigmoid(-z)
    return torch.logsumexp(mixture.log_weight + (each - mixture.log_scale).sum(-1), -1)


def log_mass(mixture: MixtureDensity, low: Tensor, high: Tensor, kind: Kind) -> Tensor:
    """Returns the log probability (...) of a bin for each value, from `low` to `high` (..., V); +-OPEN is an open end.

    Source: Salimans et al. 2017, PixelCNN++ (arXiv 1701.05517), section 2.1
    """
    inverse = (-mixture.log_scale).exp()  # (..., K, V)
    a, b = ((edge[..., None, :] - mixture.mean) * inverse for edge in (low, high))
    if kind == "normal":
        a, b = torch.where(a + b > 0, -b, a), torch.where(a + b > 0, -a, b)  # the tail where differences are exact
        top = torch.special.log_ndtr(b)
        each = top + _log_one_minus(torch.special.log_ndtr(a) - top)
    else:
        each = F.logsigmoid(b) + F.logsigmoid(-a) + _log_one_minus((low - high)[..., None, :] * inverse)
    return torch.logsumexp(mixture.log_weight + each.sum(-1), -1)


def _log_one_minus(x: Tensor) -> Tensor:
    """log(1 - exp(x)) of x < 0; a difference that rounding has made zero counts as a millionth."""
    return torch.log(-torch.expm1(x.clamp_max(-1e-6)))


def draw(mixture: MixtureDensity, kind: Kind, temperature: float, generator: torch.Generator) -> Tensor:
    """Returns values (V,) drawn from one mixture, (K,) and (K, V).

    temperature: divides the log weights and multiplies the scales; 0 is the mean of the heaviest component
    """
    log_weight, mean, log_scale = (part.cpu() for part in mixture)
    if temperature == 0:
        return mean[log_weight.argmax()]
    chosen = torch.multinomial((log_weight / temperature).softmax(-1), 1, generator=generator)[0]
    if kind == "normal":
        noise = torch.randn(mean.shape[1], generator=generator)
    else:
        noise = torch.rand(mean.shape[1], generator=generator).clamp(1e-6, 1 - 1e-6).logit()
    return mean[chosen] + temperature * log_scale[chosen].exp() * noise
