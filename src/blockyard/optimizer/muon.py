"""Muon: orthogonalised momentum for the matrices inside the blocks, AdamW for all other parameters.

Source: Jordan et al. 2024, Muon: an optimizer for hidden layers (kellerjordan.github.io/posts/muon);
    Liu et al. 2025, Muon is Scalable for LLM Training (arXiv 2502.16982), the update's scale.
Reference: torch.optim.Muon
Equation: W <- W - lr s (NS(momentum of G) + weight_decay W), NS(M) close to U V^T of M's SVD
Cost: one number of state per matrix element, and a few matmuls of the matrix's own size per step

AdamW updates tables, biases, gains, convolutions and the head. Muon treats a projection that holds queries, keys and
values side by side as one matrix.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import torch
from annotated_types import Ge, Le
from torch import nn

from blockyard.contracts import Because, DecayFactors, LayerDecay, NonNegative, Positive, Rate, RateFactors, UpdateRule
from blockyard.optimizer._combined import CombinedOptimizer
from blockyard.optimizer._param_groups import (
    NO_FACTORS,
    GroupedOptimizer,
    fused_available,
    hidden_matrices,
    split_by_decay,
)

NO_MATRIX = "no block of this model has a trainable matrix; choose optimizer=adamw"
Iterations = Annotated[int, Ge(1), Le(100), Because("each is a matrix product; five are enough to converge")]


class Muon(GroupedOptimizer):
    """Muon for hidden matrices, AdamW for the rest.

    Options:
        lr: learning rate at the schedule's factor 1
        weight_decay: decay per step, times the learning rate; on linear maps only
        momentum: momentum of Muon
        nesterov: use Nesterov momentum
        ns_steps: number of Newton-Schulz iterations
        scale: match_rms_adamw scales updates to the RMS of AdamW's, so that one lr suits both; original is Jordan's
        betas: decay rates of AdamW's first and second moment
        eps: term added to the root of AdamW's second moment
        adamw_lr: learning rate of what AdamW updates; null is that of the matrices
        layer_decay: factor on the learning rate with each layer from the output to the input, for fine-tuning
        rates: factors on the learning rate of parts of the model, by name: {embedder: 10, blocks.0: 0.5, "*.bias": 2}
        decays: the same on the weight decay; a name of tables, gains or biases alone makes these decay too
    """

    tensors_per_weight = 1  # of hidden matrices; 2 of the rest

    def __init__(
        self,
        *,
        lr: Positive = 1e-3,
        weight_decay: NonNegative = 0.05,
        momentum: Rate = 0.95,
        nesterov: bool = True,
        ns_steps: Iterations = 5,
        scale: Literal["match_rms_adamw", "original"] = "match_rms_adamw",
        betas: tuple[Rate, Rate] = (0.9, 0.95),
        eps: Positive = 1e-8,
        adamw_lr: Positive | None = None,
        layer_decay: LayerDecay = 1.0,
        rates: RateFactors = NO_FACTORS,
        decays: DecayFactors = NO_FACTORS,
    ) -> None:
        self.set_groups(lr, weight_decay, layer_decay, rates, decays)
        self.adamw_lr = adamw_lr
        self.momentum = momentum
        self.nesterov = nesterov
        self.ns_steps = ns_steps
        self.scale = scale
        self.betas = (betas[0], betas[1])  # a config gives a list
        self.eps = eps
        if not hasattr(torch.optim, "Muon"):
            raise ValueError(
                f"optimizer=muon needs torch.optim.Muon, which torch {torch.__version__} does not have; "
                "install a newer torch or choose optimizer=adamw"
            )

    @classmethod
    def update_rule(cls, options: dict[str, Any]) -> UpdateRule | None:
        """That of its matrices; the rest is Adam's."""
        return "muon_rms" if options.get("scale", "match_rms_adamw") == "match_rms_adamw" else "muon"

    def model_problems(self, model: nn.Module) -> list[str]:
        """A model must have a matrix inside a block that is trained, and a parameter for every name of a factor."""
        return [*([] if hidden_matrices(model) else [NO_MATRIX]), *super().model_problems(model)]

    def build(self, model: nn.Module) -> CombinedOptimizer:
        """Muon and AdamW combined into one optimizer. Raises ValueError where no block has a matrix."""
        hidden = hidden_matrices(model)
        if not hidden:
            raise ValueError(f"optimizer=muon: {NO_MATRIX}")
        muon_ids = {id(p) for p in hidden}
        rest = [p for group in split_by_decay(model) for p in group if id(p) not in muon_ids]
        muon = torch.optim.Muon(
            self.groups(model, hidden, rule=self.update_rule({"scale": self.scale})),
            lr=self.lr,
            weight_decay=self.weight_decay,
            momentum=self.momentum,
            nesterov=self.nesterov,
            ns_steps=self.ns_steps,
            adjust_lr_fn=self.scale,
        )
        if not rest:
            return CombinedOptimizer([muon])
        groups = self.groups(model, rest, self.adamw_lr, rule="adam", eps=self.eps)
        adamw = torch.optim.AdamW(
            groups,
            lr=self.lr,
            betas=self.betas,
            eps=self.eps,
            fused=fused_available(groups),
        )
        return CombinedOptimizer([muon, adamw])
