"""Random numbers without a state: hashes of a key, the number of a sample and a stream."""

from __future__ import annotations

import torch
from torch import Tensor

_LOW_53 = (1 << 53) - 1
_GOLDEN = 0x9E3779B97F4A7C15


def _signed(word: int) -> int:
    return word - (1 << 64) if word >= 1 << 63 else word


def _scramble(z: Tensor) -> Tensor:
    """The finaliser of SplitMix64 (Steele, Lea and Flood 2014), on wrapping int64."""
    # torch shifts keep the sign; the masks make the shifts logical.
    z = (z ^ ((z >> 30) & ((1 << 34) - 1))) * _signed(0xBF58476D1CE4E5B9)
    z = (z ^ ((z >> 27) & ((1 << 37) - 1))) * _signed(0x94D049BB133111EB)
    return z ^ ((z >> 31) & ((1 << 33) - 1))


def uniform(key: int, order: Tensor, count: int) -> Tensor:
    """`count` numbers in [0, 1) per sample, float64 (count, B), a function of (key, sample) alone.

    order: (B,) int64 numbers of samples.
    """
    streams = torch.arange(count, device=order.device) + _signed((key * _GOLDEN) % (1 << 64))
    z = _scramble(order * _signed(_GOLDEN) + _scramble(streams)[:, None])  # (count, B)
    return ((z >> 11) & _LOW_53).double() * 2.0**-53


def hashed(rows: Tensor) -> Tensor:
    """One number in [0, 1) per row, float64 (n,), a function of the row's symbols (n, N) alone."""
    places = _scramble(torch.arange(rows.shape[1]) * _signed(_GOLDEN))  # (N,)
    z = _scramble(_scramble(rows.long() + places).sum(1))  # (n,)
    return ((z >> 11) & _LOW_53).double() * 2.0**-53
