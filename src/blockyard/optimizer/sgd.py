"""Stochastic gradient descent (SGD) with momentum, fused, with weight decay on linear maps only.

Source: Sutskever et al. 2013, On the importance of initialization and momentum in deep learning (ICML).
Reference: torch.optim.SGD
Equation: v <- momentum v + g;  w <- w - lr v
Cost: one number of state per parameter, none without momentum
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from blockyard.contracts import ChoiceOptions, NonNegative, Positive, Rate, UpdateRule
from blockyard.contracts.inherited_options import with_options_of
from blockyard.optimizer._param_groups import GroupedOptimizer, fused_available


class SGD(GroupedOptimizer):
    """Gradient descent with momentum.

    Options:
        weight_decay: added to the gradient as weight_decay * w; on linear maps only
        momentum: momentum factor
        nesterov: use Nesterov momentum; requires momentum above 0
    """

    @with_options_of(GroupedOptimizer, without=("decay_by", "cautious"))
    def __init__(
        self,
        *,
        lr: Positive = 0.1,
        weight_decay: NonNegative = 1e-4,
        momentum: Rate = 0.9,
        nesterov: bool = True,
        **options: Any,
    ) -> None:
        if nesterov and not momentum:
            raise ValueError(
                "optimizer.nesterov=true needs optimizer.momentum above 0; "
                "set optimizer.momentum=0.9 or optimizer.nesterov=false"
            )
        super().__init__(lr=lr, weight_decay=weight_decay, **options)
        self.momentum = momentum
        self.nesterov = nesterov
        self.tensors_per_weight = 1 if momentum else 0

    @classmethod
    def update_rule(cls, options: ChoiceOptions) -> UpdateRule | None:
        """Return "sgd": a coordinate moves by its gradient."""
        return "sgd"

    def build(self, model: nn.Module) -> torch.optim.SGD:
        """Return a torch SGD over every trainable parameter of `model`."""
        groups = self.groups(model, rule="sgd")
        # torch has no fused kernel of SGD for weights that are spread over processes.
        spread = any(isinstance(p, DTensor) for group in groups for p in group["params"])
        fused = fused_available(groups) and not spread
        return torch.optim.SGD(groups, lr=self.lr, momentum=self.momentum, nesterov=self.nesterov, fused=fused)
