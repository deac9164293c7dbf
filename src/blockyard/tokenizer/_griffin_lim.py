"""A sound from the magnitudes of its short-time spectrum, whose phases are not known.

Source: Griffin and Lim 1984, Signal Estimation from Modified Short-Time Fourier Transform; Lee and Seung 2001,
    Algorithms for Non-negative Matrix Factorization, the multiplicative rule with one factor fixed, for the powers
    behind bands
Equation: x <- istft(A exp(i arg stft(x))); sum over frames and frequencies of (|stft(x)| - A)^2 never increases,
    because each of both steps is a projection. p <- p (F^T s) / (F^T F p); |s - F p|^2 never increases
Cost: O(rounds F W log W) time for F frames of W samples
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

ROUNDS = 32
_BAND_ROUNDS = 100
_SMALLEST = 1e-12  # of a power, so that no division is by zero


def spectrum(samples: Tensor, window: Tensor, hop: int) -> Tensor:
    """Returns the complex spectrum (B, W // 2 + 1, F) of samples (B, T): window f is centred on sample f hop.

    Silence stands on both sides of the samples.
    """
    return torch.stft(samples, len(window), hop, window=window, pad_mode="constant", return_complex=True)


def griffin_lim(magnitudes: Tensor, window: Tensor, hop: int, rounds: int = ROUNDS) -> Tensor:
    """Returns samples (B, (F - 1) hop) whose spectrum has about these magnitudes (B, W // 2 + 1, F).

    The first phases are drawn from a fixed seed, so that the same magnitudes always sound the same. A single frame has
    no samples around it that others share, and gives none.
    """
    length = (magnitudes.shape[2] - 1) * hop
    if not length:
        return magnitudes.new_zeros(len(magnitudes), 0)
    generator = torch.Generator().manual_seed(0)
    phases = 2 * math.pi * torch.rand(magnitudes.shape[1:], generator=generator, dtype=torch.float64)
    phases = phases.to(magnitudes).expand_as(magnitudes)
    target = torch.polar(magnitudes, phases)
    samples = _inverse(target, window, hop, length)
    for _ in range(rounds):
        estimate = spectrum(samples, window, hop)
        samples = _inverse(magnitudes * estimate / estimate.abs().clamp_min(_SMALLEST), window, hop, length)
    return samples


def _inverse(target: Tensor, window: Tensor, hop: int, length: int) -> Tensor:
    """The samples (B, T) whose spectrum is nearest to a target, by the sum of squares."""
    return torch.istft(target, len(window), hop, window=window, length=length)


def powers_of_bands(bands: Tensor, filters: Tensor, rounds: int = _BAND_ROUNDS) -> Tensor:
    """Returns powers (..., frequencies) that are not negative and have about these bands (..., M).

    filters: (M, frequencies), not negative
    """
    powers = bands.mean(-1, keepdim=True).expand(*bands.shape[:-1], filters.shape[1]).clamp_min(_SMALLEST)
    wanted, gram = bands @ filters, filters.T @ filters
    for _ in range(rounds):
        powers = powers * wanted / (powers @ gram).clamp_min(_SMALLEST)
    return powers
