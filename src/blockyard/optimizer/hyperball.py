"""Hyperball: steps of a fixed relative length over matrices of a fixed norm; AdamW for all other parameters.

Source: Wen et al. 2026, Fantastic Pretraining Optimizers and Where to Find Them II: Hyperball Optimization
    (arXiv 2606.16899), there AdamH and MuonH
Reference: the equations in float64, in the tests
Equation: W <- R N(W - lr R N(U)), with N(X) = X / |X| in the Frobenius norm, R the norm of W at the first step, and U
    the update of Muon, NS(momentum of G), or of Adam, M / (sqrt(V) + eps)
Cost: that of Muon, or of Adam, and two norms of each matrix per step

The learning rate is about the angle, in radians, by which a matrix turns in a step. No weight decay acts on a matrix. A
matrix that starts at zero has no norm to keep: AdamW updates it, like tables, biases, gains and the head.

parametrization=mup refuses it. The source finds that rates carry over from width to width without one. With batches of
fewer tokens than channels, updates have a low rank, and the effect of a step grew as width^0.3 to width^0.4 here.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from blockyard.contracts import ChoiceOptions, Positive, Rate, UpdateRule
from blockyard.contracts.inherited_options import with_options_of
from blockyard.optimizer._decay import ParamGroup
from blockyard.optimizer._matrices import Arithmetic, MatrixOptimizer, MatrixSteps
from blockyard.optimizer._newton_schulz import Iterations, MomentumSteps
from blockyard.weight_init import zeros_at_start

Direction = Literal["muon", "adam"]


class Hyperball(MatrixOptimizer):
    """Steps on a sphere for hidden matrices, AdamW for the rest.

    Options:
        lr: length of a step over the norm of the matrix, at the schedule's factor 1
        direction: direction of a step, of Muon (MuonH) or of Adam (AdamH)
        momentum: momentum of Muon
        nesterov: use Nesterov momentum in Muon
        ns_steps: number of Newton-Schulz iterations of Muon
        arithmetic: type that Newton-Schulz computes in, as of muon
        betas: decay rates of Adam's first and second moment, of both parts
        eps: term added to the root of Adam's second moment, in both parts
        adamw_lr: learning rate of the parameters that AdamW updates
        weight_decay: decay per step of the parameters that AdamW updates, times their learning rate; on linear maps
            only
    """

    @with_options_of(MatrixOptimizer, without=("decay_by", "cautious", "decays"))
    def __init__(
        self,
        *,
        lr: Positive = 1e-2,
        direction: Direction = "muon",
        momentum: Rate = 0.95,
        nesterov: bool = True,
        ns_steps: Iterations = 5,
        arithmetic: Arithmetic = "float32",  # of configs from before the option; conf/optimizer has the default
        adamw_lr: Positive = 1e-3,
        **options: Any,
    ) -> None:
        super().__init__(lr=lr, adamw_lr=adamw_lr, **options)
        self.direction = direction
        self.momentum = momentum
        self.nesterov = nesterov
        self.ns_steps = ns_steps
        self.arithmetic = arithmetic if direction == "muon" else None
        self.tensors_per_weight = 1 if direction == "muon" else 2

    @classmethod
    def update_rule(cls, options: ChoiceOptions) -> UpdateRule | None:
        """Return None: a step of a fixed norm moves an output the further, the lower the rank of the update is."""
        return None

    @property
    def matrix_rule(self) -> UpdateRule | None:
        """None: the size of the updates is unknown."""
        return None

    def matrices(self, model: nn.Module) -> list[nn.Parameter]:
        """Return the hidden matrices that do not start at zero."""
        zero = zeros_at_start(model)
        return [p for p in super().matrices(model) if id(p) not in zero]

    def matrix_optimizer(self, groups: list[ParamGroup]) -> Optimizer:
        """Return the steps over these groups, without weight decay."""
        for group in groups:
            group["weight_decay"] = 0.0
        if self.direction == "adam":
            return AdamSphereSteps(groups, lr=self.lr, betas=self.betas, eps=self.eps)
        return SphereSteps(
            groups,
            lr=self.lr,
            momentum=self.momentum,
            nesterov=self.nesterov,
            steps=self.ns_steps,
            arithmetic=self.arithmetic or "float32",
        )


class SphereSteps(MomentumSteps):
    """The update of matrices by Muon. state of each: its momentum and its norm."""

    def step_along(self, update: Tensor, p: Tensor, group: ParamGroup) -> None:
        """Update one matrix p (M, N) in place. Raises ValueError for a matrix that is zero at first."""
        move_on_sphere(p, update, group["lr"], self.state[p])


class AdamSphereSteps(MatrixSteps):
    """The update of matrices by Adam. state of each: its moments, the number of steps, and its norm."""

    def update(self, p: Tensor, gradient: Tensor, group: ParamGroup) -> None:
        """Update one matrix (M, N) in place. Raises ValueError for a matrix that is zero at first."""
        state = self.state[p]
        move_on_sphere(p, _adam(state, gradient, group), group["lr"], state)


def move_on_sphere(p: Tensor, update: Tensor, lr: float, state: dict[str, Tensor]) -> None:
    """Move a matrix p (M, N) by lr times its norm against the update (M, N), and back to its norm.

    state: has the norm of the first step as `radius`, from that step on

    Raises:
        ValueError: p is zero at the first step.
    """
    if "radius" not in state:
        state["radius"] = p.norm()
        if not state["radius"]:
            raise ValueError(
                f"optimizer=hyperball keeps the norm of a matrix, and one of {tuple(p.shape)} is zero at the first "
                "step; choose optimizer=muon or adamw"
            )
    length = update.norm().clamp_min(torch.finfo(p.dtype).tiny)
    p.sub_(update / length * (lr * state["radius"]))
    p.mul_(state["radius"] / p.norm())  # back to the norm of the first step


def _adam(state: dict[str, Tensor], gradient: Tensor, group: ParamGroup) -> Tensor:
    """Return Adam's update (M, N)."""
    first, second = group["betas"]
    if "step" not in state:
        state["step"] = torch.zeros((), dtype=torch.float64)
        state["exp_avg"] = torch.zeros_like(gradient)
        state["exp_avg_sq"] = torch.zeros_like(gradient)
    state["step"] += 1
    count = int(state["step"])
    mean = state["exp_avg"].lerp_(gradient, 1 - first) / (1 - first**count)
    size = (state["exp_avg_sq"].lerp_(gradient.square(), 1 - second) / (1 - second**count)).sqrt()
    return mean / (size + group["eps"])
