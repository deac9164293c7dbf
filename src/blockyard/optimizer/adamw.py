"""AdamW, fused, with weight decay on linear maps only.

Source: Loshchilov and Hutter 2019, Decoupled Weight Decay Regularization (arXiv 1711.05101), algorithm 2.
Reference: torch.optim.AdamW
Equation: w <- w - lr (m / (sqrt(v) + eps) + weight_decay w)
Cost: two numbers of state per parameter

The decay of a weight in a step follows the learning rate; `optimizer/_decay.py` has `decay_by` and `cautious`.
Biases, gains, embedding and position tables, class and register tokens do not decay.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from blockyard.contracts import (
    ChoiceOptions,
    Positive,
    Rate,
    UpdateRule,
)
from blockyard.contracts.inherited_options import with_options_of
from blockyard.optimizer._decay import CautiousOptimizer
from blockyard.optimizer._param_groups import GroupedOptimizer, fused_available


class AdamW(GroupedOptimizer):
    """Adam with decoupled weight decay.

    Options:
        betas: decay rates of the first and the second moment
        eps: term added to the root of the second moment
    """

    tensors_per_weight = 2

    @with_options_of(GroupedOptimizer)
    def __init__(
        self,
        *,
        betas: tuple[Rate, Rate] = (0.9, 0.95),
        eps: Positive = 1e-8,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.betas = (betas[0], betas[1])  # a config gives a list
        self.eps = eps

    @classmethod
    def update_rule(cls, options: ChoiceOptions) -> UpdateRule | None:
        """Return "adam": each coordinate moves by about the learning rate."""
        return "adam"

    def build(self, model: nn.Module) -> torch.optim.Optimizer:
        """Return a torch AdamW over every trainable parameter of `model`."""
        groups = self.groups(model, rule="adam", eps=self.eps)
        fused = fused_available(groups)
        adamw = torch.optim.AdamW(groups, lr=self.lr, betas=self.betas, eps=self.eps, fused=fused)
        if self.cautious:
            return CautiousOptimizer([adamw])
        return adamw
