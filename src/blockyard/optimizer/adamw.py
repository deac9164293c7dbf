"""AdamW, fused, with weight decay on linear maps only.

Source: Loshchilov and Hutter 2019, Decoupled Weight Decay Regularization (arXiv 1711.05101), algorithm 2.
Reference: torch.optim.AdamW
Equation: w <- w - lr (m / (sqrt(v) + eps) + weight_decay w)
Cost: two numbers of state per parameter

What a weight loses to decay in a step follows the learning rate; `optimizer/_decay.py` has `decay_by` and `cautious`.
Biases, gains, embedding and position tables, class and register tokens do not decay.
"""

from __future__ import annotations

import torch
from torch import nn

from blockyard.contracts import (
    ChoiceOptions,
    DecayFactors,
    LayerDecay,
    NonNegative,
    Positive,
    Rate,
    RateFactors,
    UpdateRule,
)
from blockyard.optimizer._decay import CautiousOptimizer, Decay
from blockyard.optimizer._param_groups import NO_FACTORS, GroupedOptimizer, fused_available


class AdamW(GroupedOptimizer):
    """Adam with decoupled weight decay.

    Options:
        lr: learning rate at the schedule's factor 1
        weight_decay: decay per step, times the learning rate; on linear maps only
        decay_by: what the decay follows: rate is the learning rate; independent the factor of the schedule alone, so
            that it does not change with lr; fading the rate times that factor
        cautious: decay those weights alone that the update does not make larger
        betas: decay rates of the first and the second moment
        eps: term added to the root of the second moment
        layer_decay: factor on the learning rate with each layer from the output to the input, for fine-tuning
        rates: factors on the learning rate of parts of the model, by name: {embedder: 10, blocks.0: 0.5, "*.bias": 2}
        decays: the same on the weight decay; a name of tables, gains or biases alone makes these decay too
    """

    tensors_per_weight = 2

    def __init__(
        self,
        *,
        lr: Positive = 1e-3,
        weight_decay: NonNegative = 0.05,
        decay_by: Decay = "rate",
        cautious: bool = False,
        betas: tuple[Rate, Rate] = (0.9, 0.95),
        eps: Positive = 1e-8,
        layer_decay: LayerDecay = 1.0,
        rates: RateFactors = NO_FACTORS,
        decays: DecayFactors = NO_FACTORS,
    ) -> None:
        self.set_groups(lr, weight_decay, layer_decay, rates, decays, decay_by=decay_by, cautious=cautious)
        self.betas = (betas[0], betas[1])  # a config gives a list
        self.eps = eps

    @classmethod
    def update_rule(cls, options: ChoiceOptions) -> UpdateRule | None:
        """Each coordinate moves by about the learning rate."""
        return "adam"

    def build(self, model: nn.Module) -> torch.optim.Optimizer:
        """A torch AdamW over every trainable parameter of `model`."""
        groups = self.groups(model, rule="adam", eps=self.eps)
        adamw = torch.optim.AdamW(
            groups,
            lr=self.lr,
            betas=self.betas,
            eps=self.eps,
            fused=fused_available(groups),
        )
        return CautiousOptimizer([adamw]) if self.cautious else adamw
