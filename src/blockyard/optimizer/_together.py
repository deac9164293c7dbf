"""Two torch optimizers behind the face of one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.optim import Optimizer


class Together(Optimizer):
    """Steps several optimizers as one; groups and state are shared, so saving and loading is torch's own.

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

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """One update of every part; the closure runs once, before all of them."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for part in self.parts:
            part.step()
        return loss

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what `state_dict` of the same optimizers over the same parameters gave."""
        super().load_state_dict(state_dict)
        self._link()
