"""Weight decay: its relation to the schedule, and decay only of weights that an update makes smaller anyway.

Source: Wortsman et al. 2023, Small-scale proxies for large-scale Transformer training instabilities (arXiv 2309.14322),
    independent decay; for decay that changes with the steps Xie et al. 2023, On the Overlooked Pitfalls of Weight Decay
    (arXiv 2011.11152), here as in nanochat; Chen et al. 2025, Cautious Weight Decay (arXiv 2510.12402), algorithm 1
Reference: the equations; karpathy/nanochat nanochat/optim.py
Equation: w <- w - lr_t u - d_t w, with d_t = lr_t weight_decay (rate), s_t weight_decay (independent) or
    lr_t s_t weight_decay (fading), s_t the factor of the schedule; cautious: d_t only where u w >= 0
Cost: nothing; cautious a copy of the weights that decay, for the length of a step
"""

from __future__ import annotations

from typing import Any, Literal

from torch.optim import Optimizer

from blockyard.optimizer._combined import CombinedOptimizer

Decay = Literal["rate", "independent", "fading"]
ParamGroup = dict[str, Any]  # as torch types them: "params" and the options that hold for these


def spread_decay(groups: list[ParamGroup], decay: Decay) -> list[ParamGroup]:
    """Return the groups with `weight_decay` such that it is the decay of a step, times the rate of the group."""
    if decay == "independent":
        for group in groups:
            group["weight_decay"] /= group["lr"]
    return groups


def fade(optimizer: Optimizer, factor: float) -> None:
    """Set the weight decay of every group to its value at the start, times the factor of the schedule."""
    for group in optimizer.param_groups:
        group["weight_decay"] = group.setdefault("initial_decay", group["weight_decay"]) * factor


class CautiousOptimizer(CombinedOptimizer):
    """Steps its parts without weight decay, then lets weights decay that the step has not made larger."""

    def update_parameters(self) -> None:
        """Step every part without weight decay, then apply the decay."""
        decays = [float(group["weight_decay"]) for group in self.param_groups]
        before: list[list[tuple[Any, Any]]] = []  # the weights that decay, of each group
        for group, decay in zip(self.param_groups, decays, strict=True):
            decaying = [p for p in group["params"] if p.grad is not None] if decay else []
            before.append([(p, p.clone()) for p in decaying])
            group["weight_decay"] = 0.0
        for part in self.parts:
            part.step()
        for group, decay, weights in zip(self.param_groups, decays, before, strict=True):
            group["weight_decay"] = decay
            for p, old in weights:  # old - p is the update, with the sign of u
                kept = (old - p) * old >= 0  # where the update and the weight have the same sign
                p.sub_(old * kept, alpha=float(group["lr"]) * decay)
