"""Stateless random numbers: hashes of a key, a sample's index and a stream."""

from __future__ import annotations

import torch
from torch import Tensor

_LOW_53 = (1 << 53) - 1
_GOLDEN = 0x9E3779B97F4A7C15


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


def _scramble(z: Tensor) -> Tensor:
    """Return the finalizer of SplitMix64 (Steele, Lea and Flood 2014) in wrapping int64 arithmetic."""
    # torch's right shifts are arithmetic; the masks make them logical.
    z = (z ^ ((z >> 30) & ((1 << 34) - 1))) * _signed(0xBF58476D1CE4E5B9)
    z = (z ^ ((z >> 27) & ((1 << 37) - 1))) * _signed(0x94D049BB133111EB)
    return z ^ ((z >> 31) & ((1 << 33) - 1))


def uniform(key: int, order: Tensor, count: int) -> Tensor:
    """Return `count` numbers in [0, 1) per sample, float64 (count, B), that depend on (key, sample) alone.

    order: (B,) int64 sample indices
    """
    streams = torch.arange(count, device=order.device) + _signed((key * _GOLDEN) % (1 << 64))
    z = _scramble(order * _signed(_GOLDEN) + _scramble(streams)[:, None])  # (count, B)
    return ((z >> 11) & _LOW_53).double() * 2.0**-53


def normal(draws: Tensor) -> Tensor:
    """Return standard normal numbers of pairs of uniform ones (..., 2), by Box and Muller 1958."""
    radius = (-2 * torch.log1p(-draws[..., 0])).sqrt()
    return radius * torch.cos(2 * torch.pi * draws[..., 1])


def hash_sequences(token_ids: Tensor) -> Tensor:
    """Return one number in [0, 1) per sequence, float64 (n,), that depends on its token ids (n, N) alone."""
    positions = _scramble(torch.arange(token_ids.shape[1]) * _signed(_GOLDEN))  # (N,)
    z = _scramble(_scramble(token_ids.long() + positions).sum(1))  # (n,)
    return ((z >> 11) & _LOW_53).double() * 2.0**-53
