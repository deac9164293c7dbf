"""Stochastic gradient descent (SGD) with momentum, fused, with weight decay on linear maps only.

Source: Sutskever et al. 2013, On the importance of initialization and momentum in deep learning (ICML).
Reference: torch.optim.SGD
Equation: v <- momentum v + g;  w <- w - lr v
Cost: one number of state per parameter, none without momentum
"""

from __future__ import annotations

import torch
from torch import nn

from blockyard.contracts import LayerDecay, NonNegative, OptimizerBuilder, Positive, Rate
from blockyard.optimizer._param_groups import decay_groups, fused_available, layer_rates, split_by_decay


class SGD(OptimizerBuilder):
    """Gradient descent with momentum.

    Options:
        lr: learning rate at the schedule's factor 1
        weight_decay: added to the gradient as weight_decay * w; on linear maps only
        momentum: momentum factor
        nesterov: use Nesterov momentum; requires momentum above 0
        layer_decay: factor on the learning rate with each layer from the output to the input, for fine-tuning
    """

    def __init__(
        self,
        *,
        lr: Positive = 0.1,
        weight_decay: NonNegative = 1e-4,
        momentum: Rate = 0.9,
        nesterov: bool = True,
        layer_decay: LayerDecay = 1.0,
    ) -> None:
        if nesterov and not momentum:
            raise ValueError(
                "optimizer.nesterov=true needs optimizer.momentum above 0; "
                "set optimizer.momentum=0.9 or optimizer.nesterov=false"
            )
        self.lr = lr
        self.weight_decay = weight_decay
        self.momentum = momentum
        self.nesterov = nesterov
        self.layer_decay = layer_decay
        self.tensors_per_weight = 1 if momentum else 0

    def build(self, model: nn.Module) -> torch.optim.SGD:
        """A torch SGD over every trainable parameter of `model`."""
        decay, no_decay = split_by_decay(model)
        return torch.optim.SGD(
            decay_groups(decay, no_decay, self.weight_decay, layer_rates(model, self.lr, self.layer_decay)),
            lr=self.lr,
            momentum=self.momentum,
            nesterov=self.nesterov,
            fused=fused_available(decay + no_decay),
        )
