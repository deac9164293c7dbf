"""Schedule-free AdamW: gradients at a mixture of the weights and of their average. The average is evaluated.

Source: Defazio et al. 2024, The Road Less Scheduled (arXiv 2405.15682), algorithm 1
Reference: the algorithm in float64, in the tests; facebookresearch/schedule_free AdamWScheduleFree
Equation: y = (1 - b) z + b x, z <- z - lr (g(y) / (sqrt(v) + eps) + weight_decay y), x <- (1 - c) x + c z,
    c = lr^2 / (sum of lr^2 so far)
Cost: three numbers of state per parameter

    blockyard train optimizer=schedule_free schedule=constant optimizer.lr=2e-3

It is meant for a constant rate after a warm-up, and needs no end of training in advance. Metrics and checkpoints have
x; y is in the state of the optimizer meanwhile, so that a run resumes exactly.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from blockyard.contracts import ChoiceOptions, Positive, Rate, UpdateRule
from blockyard.contracts.inherited_options import with_options_of
from blockyard.model._unit_weights import without_unit_weights
from blockyard.optimizer._combined import BaseOptimizer
from blockyard.optimizer._decay import ParamGroup
from blockyard.optimizer._param_groups import GroupedOptimizer


class ScheduleFree(GroupedOptimizer):
    """AdamW with an average of the weights in place of momentum.

    Options:
        betas: share of the average in the weights at which gradients are taken, and decay rate of the second moment
        eps: term added to the root of the second moment
    """

    tensors_per_weight = 3

    @with_options_of(GroupedOptimizer, without=("decay_by", "cautious"))
    def __init__(
        self,
        *,
        lr: Positive = 2e-3,
        betas: tuple[Rate, Rate] = (0.9, 0.99),
        eps: Positive = 1e-8,
        **options: Any,
    ) -> None:
        super().__init__(lr=lr, **options)
        self.betas = (betas[0], betas[1])  # a config gives a list
        self.eps = eps

    @classmethod
    def update_rule(cls, options: ChoiceOptions) -> UpdateRule | None:
        """Return "adam": each coordinate moves by about the learning rate."""
        return "adam"

    def model_problems(self, model: nn.Module) -> list[str]:
        """Return sentences about parts that an average of weights does not fit, such as running statistics."""
        problems = super().model_problems(model)
        if any(getattr(module, "across_tokens", False) for module in model.modules()):
            problems.append(
                "it evaluates other weights than those whose statistics norm=batch keeps; use norm=layer or rms"
            )
        return problems + without_unit_weights(model)

    def build(self, model: nn.Module) -> AveragedAdam:
        """Return the optimizer over every trainable parameter of `model`."""
        groups = self.groups(model, rule="adam", eps=self.eps)
        return AveragedAdam(groups, lr=self.lr, betas=self.betas, eps=self.eps)

    def exchange(self, optimizer: Any) -> None:
        """Put the average in the model, or take it out again."""
        optimizer.exchange()

    def exchanged(self, optimizer: Any) -> bool:
        """Return whether the average is in the model."""
        return any(group["exchanged"] for group in optimizer.param_groups)


class AveragedAdam(BaseOptimizer):
    """The update.

    The state of each parameter y has z, the average x, and the second moment. Each group has the sum of lr^2, and
    `exchanged`: True while its parameters hold x, and the state `average` holds y.
    """

    def __init__(self, groups: list[ParamGroup], *, lr: float, betas: tuple[float, float], eps: float) -> None:
        counts = {"steps": 0, "weight_sum": 0.0, "exchanged": False}
        super().__init__(groups, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": 0.0, **counts})

    def update_parameters(self) -> None:
        """Update every parameter that has a gradient. Raises RuntimeError while the average is in the model."""
        for group in self.param_groups:
            if group["exchanged"]:
                raise RuntimeError("the model has its average; exchange the weights back before a step")
            group["steps"] += 1
            # Weights of a warm-up, at small rates, count little in the average.
            weight = float(group["lr"]) ** 2
            group["weight_sum"] += weight
            share = weight / group["weight_sum"] if group["weight_sum"] else 0.0
            for p in group["params"]:
                if p.grad is not None:
                    self._update(p, p.grad, group, share)

    def _update(self, p: Tensor, gradient: Tensor, group: ParamGroup, share: float) -> None:
        state = self.state[p]
        mixed, second = group["betas"]
        if not state:
            state |= {"step": 0, "z": p.detach().clone(), "average": p.detach().clone()}
            state["exp_avg_sq"] = torch.zeros_like(p)
        state["step"] += 1
        z = state["z"]
        average = state["average"]
        state["exp_avg_sq"].lerp_(gradient.square(), 1 - second)
        size = (state["exp_avg_sq"] / (1 - second ** state["step"])).sqrt() + group["eps"]
        z.sub_((gradient / size + group["weight_decay"] * p) * group["lr"])
        average.lerp_(z, share)
        p.copy_(z.lerp(average, mixed))

    @torch.no_grad()
    def exchange(self) -> None:
        """Exchange every parameter with its average, or back."""
        for group in self.param_groups:
            group["exchanged"] = not group["exchanged"]
            for p in group["params"]:
                if self.state.get(p):
                    other = self.state[p]["average"].clone()
                    self.state[p]["average"].copy_(p)
                    p.copy_(other)
