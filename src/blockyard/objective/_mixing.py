"""Mixup and CutMix: every sample of a batch is mixed with another one of it.

Source: Zhang et al. 2018, mixup (arXiv 1710.09412), section 2; Yun et al. 2019, CutMix (arXiv 1905.04899), section 3.1
Reference: timm.data.mixup.Mixup with mode="batch"
Equation: x = l x_i + (1 - l) x_j, l ~ Beta(alpha, alpha); CutMix pastes a rectangle of x_j of area 1 - l instead

What is drawn is a function of (seed, epoch, step), one l and one rectangle a batch, and the partner of sample number n
of B is sample B - 1 - n, whatever the number of processes and micro-batches.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from blockyard.contracts import Batch


class Mixed(NamedTuple):
    """Classes of mixed samples. target, partner: (B,) int64; share: (B,) float, of `target`."""

    target: Tensor
    partner: Tensor
    share: Tensor


@dataclass(frozen=True)
class Mixing:
    """How batches are mixed.

    mixup, cutmix: alpha of either, 0 is off; where both are on, one is drawn for each batch, CutMix by `switch`
    probability: of mixing a batch
    """

    mixup: float
    cutmix: float
    probability: float
    switch: float

    def __call__(self, batch: Batch, partner: Batch, key: int) -> Batch:
        """Returns the batch mixed with its partners: the same inputs and classes in another order.

        key: the same for all parts of a batch
        """
        draws = np.random.Generator(np.random.PCG64(key))
        chosen, cut, place = draws.random(), draws.random(), draws.random(2)
        use_cutmix = self.cutmix > 0 and (not self.mixup or cut < self.switch)
        alpha = self.cutmix if use_cutmix else self.mixup
        share = float(draws.beta(alpha, alpha)) if chosen < self.probability else 1.0
        inputs = batch.inputs
        if use_cutmix and share < 1:
            top, bottom, left, right = rectangle(share, inputs.shape[-2:], place)
            inputs = inputs.clone()
            inputs[..., top:bottom, left:right] = partner.inputs[..., top:bottom, left:right]
            share = 1 - (bottom - top) * (right - left) / (inputs.shape[-2] * inputs.shape[-1])
        elif share < 1:
            inputs = inputs * share + partner.inputs * (1 - share)
        target = Mixed(_classes(batch), _classes(partner), torch.full((len(batch),), share))
        return replace(batch, inputs=inputs, target=target)


def rectangle(share: float, size: Any, place: np.ndarray) -> tuple[int, int, int, int]:
    """Returns top, bottom, left and right of a rectangle of area 1 - share around a point, cut off at the borders.

    size: height and width; place: (2,) in [0, 1), where its centre is
    """
    bounds = []
    for side, centre in zip(size, place, strict=True):
        cut, middle = int(side * (1 - share) ** 0.5), int(centre * side)
        bounds += [max(middle - cut // 2, 0), min(middle + (cut + 1) // 2, side)]
    return bounds[0], bounds[1], bounds[2], bounds[3]


def _classes(batch: Batch) -> Tensor:
    assert isinstance(batch.target, Tensor)
    return batch.target
