"""The loss of every objective that predicts classes or tokens.

Source: Szegedy et al. 2016, Rethinking the Inception Architecture (arXiv 1512.00567), section 7, label smoothing;
    Chowdhery et al. 2022, PaLM (arXiv 2204.02311), section 5, z-loss for the outputs, after the one that Zoph et al.
    2022, ST-MoE (arXiv 2202.08906), eq. 5, put on a router
Reference: torch.nn.functional.cross_entropy; torch.logsumexp
Equation: -sum_v q_v log softmax(z)_v + z_loss (log Z)^2, q = (1 - s) onehot(target) + s / V, Z = sum_v exp(z_v)
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from blockyard.contracts import Batch


def cross_entropy(
    prediction: Tensor,
    target: Tensor,
    *,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    weights: Tensor | None = None,
) -> Tensor:
    """Returns the mean over the targets that are not `Batch.ignore`, in nats; NaN where there is none.

    prediction: (..., V) logits; target: (...) int64
    label_smoothing: share of the target spread evenly over the V classes
    z_loss: factor of the squared logarithm of the softmax's normaliser, which keeps logits from drifting
    weights: (V,), factors of the loss of targets of each class. The sum is divided by the number of targets and not of
        weights, so that the parts of a batch add up to the whole
    """
    logits, target = prediction.flatten(0, -2), target.flatten()
    if weights is None:
        loss = F.cross_entropy(logits, target, ignore_index=Batch.ignore, label_smoothing=label_smoothing)
    else:
        each = F.cross_entropy(
            logits, target, ignore_index=Batch.ignore, label_smoothing=label_smoothing, reduction="none"
        )
        factor = weights.to(each)[target.clamp_min(0)]  # ignored targets have a loss of zero
        loss = (each * factor).sum() / (target != Batch.ignore).sum()
    if not z_loss:
        return loss
    counted = target != Batch.ignore
    exact = torch.promote_types(logits.dtype, torch.float32)
    squared = logits.to(exact).logsumexp(-1).square()  # in bf16 the square would be off by percents
    return loss + z_loss * squared.masked_fill(~counted, 0.0).sum() / counted.sum()
