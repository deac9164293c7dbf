"""AdamW, fused, with weight decay on linear maps only.

Source: Loshchilov and Hutter 2019, Decoupled Weight Decay Regularization (arXiv 1711.05101), algorithm 2.
Reference: torch.optim.AdamW
Equation: w <- w - lr (m / (sqrt(v) + eps) + weight_decay w)
Cost: two numbers of state per parameter

Biases, gains, embedding and position tables, class and register tokens do not decay.
"""

from __future__ import annotations

import torch
from torch import nn

from blockyard.contracts import LayerDecay, NonNegative, OptimizerBuilder, Positive, Rate
from blockyard.optimizer._param_groups import decay_groups, fused_available, layer_rates, split_by_decay


class AdamW(OptimizerBuilder):
    """Adam with decoupled weight decay.

    Options:
        lr: learning rate at the schedule's factor 1
        weight_decay: decay per step, times the learning rate; on linear maps only
        betas: decay rates of the first and the second moment
        eps: term added to the root of the second moment
        layer_decay: factor on the learning rate with each layer from the output to the input, for fine-tuning
    """

    tensors_per_weight = 2

    def __init__(
        self,
        *,
        lr: Positive = 1e-3,
        weight_decay: NonNegative = 0.05,
        betas: tuple[Rate, Rate] = (0.9, 0.95),
        eps: Positive = 1e-8,
        layer_decay: LayerDecay = 1.0,
    ) -> None:
        self.lr = lr
        self.weight_decay = weight_decay
        self.betas = (betas[0], betas[1])  # a config gives a list
        self.eps = eps
        self.layer_decay = layer_decay

    def build(self, model: nn.Module) -> torch.optim.AdamW:
        """A torch AdamW over every trainable parameter of `model`."""
        decay, no_decay = split_by_decay(model)
        return torch.optim.AdamW(
            decay_groups(decay, no_decay, self.weight_decay, layer_rates(model, self.lr, self.layer_decay)),
            lr=self.lr,
            betas=self.betas,
            eps=self.eps,
            fused=fused_available(decay + no_decay),
        )
