"""AdamW, fused; weight decay only on the matrices that map vectors to vectors.

Source: Loshchilov and Hutter 2019, Decoupled Weight Decay Regularization (arXiv 1711.05101), algorithm 2.
Reference: torch.optim.AdamW
Equation: w <- w - lr (m / (sqrt(v) + eps) + weight_decay w)
Cost: two numbers of state per parameter

Biases, gains, tables of symbols and positions, class and register tokens do not decay.
"""

from __future__ import annotations

import torch
from torch import nn

from blockyard.contracts import NonNegative, OptimizerBuilder, Positive, Rate
from blockyard.optimizer._groups import decay_groups, fused_available, split_by_decay


class AdamW(OptimizerBuilder):
    """Adam with decoupled weight decay.

    Options:
        lr: learning rate at the schedule's factor 1
        weight_decay: decay per step, times the learning rate; on matrices only
        betas: memory of the first and the second moment
        eps: added to the root of the second moment
    """

    def __init__(
        self,
        *,
        lr: Positive = 1e-3,
        weight_decay: NonNegative = 0.05,
        betas: tuple[Rate, Rate] = (0.9, 0.95),
        eps: Positive = 1e-8,
    ) -> None:
        self.lr = lr
        self.weight_decay = weight_decay
        self.betas = betas
        self.eps = eps

    def build(self, model: nn.Module) -> torch.optim.AdamW:
        """A torch AdamW over every trainable parameter of `model`."""
        decay, plain = split_by_decay(model)
        return torch.optim.AdamW(
            decay_groups(decay, plain, self.weight_decay),
            lr=self.lr,
            betas=tuple(self.betas),
            eps=self.eps,
            fused=fused_available(decay + plain),
        )
