"""The step of an optimizer, and several torch optimizers combined into one."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, overload

import torch
from torch.optim import Optimizer


class BaseOptimizer(Optimizer):
    """Evaluates the closure once and then updates the parameters. Subclasses implement `update_parameters`."""

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Take one step. Return the loss of the closure, or None without one."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self.update_parameters()
        return loss

    @abstractmethod
    def update_parameters(self) -> None:
        """Update every parameter that has a gradient, in place."""


class CombinedOptimizer(BaseOptimizer):
    """Steps several optimizers as one. Groups and state are shared, so torch's own saving and loading work.

    Args:
        parts: optimizers over disjoint parameters
    """

    def __init__(self, parts: list[Optimizer]) -> None:
        self.parts = parts
        self._sizes = [len(part.param_groups) for part in parts]
        super().__init__([group for part in parts for group in part.param_groups], {})
        self._link()

    def _link(self) -> None:
        start = 0
        for part, size in zip(self.parts, self._sizes, strict=True):
            part.param_groups = self.param_groups[start : start + size]
            part.state = self.state
            start += size

    def update_parameters(self) -> None:
        """Step every part."""
        for part in self.parts:
            part.step()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the `state_dict` of the same optimizers over the same parameters."""
        super().load_state_dict(state_dict)  # replaces the groups and the state that the parts share
        self._link()
