"""Optimizers of two parts: one rule for the matrices inside the blocks, AdamW for all other parameters."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from blockyard.contracts import Positive, Rate, UpdateRule
from blockyard.contracts.inherited_options import with_options_of
from blockyard.optimizer._combined import BaseOptimizer, CombinedOptimizer
from blockyard.optimizer._decay import CautiousOptimizer, ParamGroup
from blockyard.optimizer._param_groups import GroupedOptimizer, fused_available, hidden_matrices, split_by_decay

Arithmetic = Literal["bfloat16", "float32"]  # type that Newton-Schulz computes in
NO_MATRIX = "no block of this model has a trainable matrix; choose optimizer=adamw"


class MatrixOptimizer(GroupedOptimizer):
    """One rule for hidden matrices, AdamW for the rest. Subclasses implement `matrix_rule` and `matrix_optimizer`.

    arithmetic: type that Newton-Schulz computes in; None for a rule without it

    Options:
        betas: decay rates of AdamW's first and second moment
        eps: term added to the root of AdamW's second moment
        adamw_lr: learning rate of the parameters that AdamW updates; null is the rate of the matrices
    """

    tensors_per_weight = 1  # for hidden matrices; the rest has 2
    arithmetic: Arithmetic | None = None

    @with_options_of(GroupedOptimizer)
    def __init__(
        self,
        *,
        betas: tuple[Rate, Rate] = (0.9, 0.95),
        eps: Positive = 1e-8,
        adamw_lr: Positive | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.betas = (betas[0], betas[1])  # a config gives a list
        self.eps = eps
        self.adamw_lr = adamw_lr

    @property
    @abstractmethod
    def matrix_rule(self) -> UpdateRule | None:
        """The size of the updates of matrices; None if it is unknown."""

    @abstractmethod
    def matrix_optimizer(self, groups: list[ParamGroup]) -> Optimizer:
        """Return the optimizer of the matrices."""

    def model_problems(self, model: nn.Module) -> list[str]:
        """Return sentences about a model without a trained matrix in a block, or factors that name no parameter."""
        problems = super().model_problems(model)
        if self.matrices(model):
            return problems
        return [NO_MATRIX, *problems]

    def matrices(self, model: nn.Module) -> list[nn.Parameter]:
        """Return the parameters that the rule updates: the trainable matrices inside blocks."""
        return hidden_matrices(model)

    def build(self, model: nn.Module) -> CombinedOptimizer:
        """Return both parts combined into one optimizer. Raises ValueError if no block has a matrix."""
        hidden = self.matrices(model)
        if not hidden:
            name = type(self).__module__.rpartition(".")[2]
            raise ValueError(f"optimizer={name}: {NO_MATRIX}")
        ids = {id(p) for p in hidden}
        rest = [p for group in split_by_decay(model) for p in group if id(p) not in ids]
        parts = [self.matrix_optimizer(self.groups(model, hidden, rule=self.matrix_rule))]
        if rest:
            groups = self.groups(model, rest, self.adamw_lr, rule="adam", eps=self.eps)
            fused = fused_available(groups)
            parts.append(torch.optim.AdamW(groups, lr=self.lr, betas=self.betas, eps=self.eps, fused=fused))
        if self.cautious:
            return CautiousOptimizer(parts)
        return CombinedOptimizer(parts)


class MatrixSteps(BaseOptimizer):
    """The rule of the matrices. Subclasses implement `update` and keep moments in the `state` of the parameter.

    options: the options of every parameter group that does not set them itself
    """

    def __init__(self, groups: list[ParamGroup], **options: Any) -> None:
        super().__init__(groups, {**options, "weight_decay": 0.0})

    @abstractmethod
    def update(self, p: Tensor, gradient: Tensor, group: ParamGroup) -> None:
        """Update one matrix (M, N) in place."""

    def update_parameters(self) -> None:
        """Update every matrix that has a gradient."""
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    self.update(p, p.grad, group)
