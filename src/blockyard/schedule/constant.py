"""Constant: the full learning rate after a linear warm-up.

Source: Goyal et al. 2017, Accurate, Large Minibatch SGD (arXiv 1706.02677), section 2.2, the warm-up.
Reference: transformers.get_constant_schedule_with_warmup
Equation: 1
"""

from __future__ import annotations

from blockyard.schedule._warmup import Length, WarmedUp


class Constant(WarmedUp):
    """No decay."""

    def __init__(self, *, warmup: Length = 0) -> None:
        super().__init__(warmup=warmup)

    def after_warmup(self, step: int, warmup: int, total: int) -> float:
        """Return the factor at `step`, of `total`, after `warmup` steps of warm-up."""
        return 1.0
