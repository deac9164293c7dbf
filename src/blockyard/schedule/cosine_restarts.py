"""Cosine with warm restarts: the learning rate falls over half a cosine again and again, from its full value.

Source: Loshchilov and Hutter 2017, SGDR (arXiv 1608.03983), eq. 5 and section 3
Reference: torch.optim.lr_scheduler.CosineAnnealingWarmRestarts; `peak` as `cycle_decay` of timm's CosineLRScheduler
Equation: final + (peak^i - final) (1 + cos(pi p)) / 2 in cycle i = 0, 1, ..., p from 0 at its start to 1 at its end
"""

from __future__ import annotations

import math
from typing import Annotated, Any

from annotated_types import Ge, Gt, Le

from blockyard.contracts import Because
from blockyard.contracts.inherited_options import with_options_of
from blockyard.schedule._warmup import Length, WarmedUp, check_length, to_steps

Multiplier = Annotated[int, Ge(1), Le(100), Because("the second cycle would be longer than any run")]
Share = Annotated[float, Ge(0), Le(1)]
Factor = Annotated[float, Gt(0), Le(1)]


class CosineRestarts(WarmedUp):
    """Cosine decay that starts anew.

    Options:
        period: length of the first cycle, in steps (an int) or as a share of the run (a float below 1)
        multiplier: length of a cycle over the length of the cycle before it
        peak: factor at the start of a cycle over the factor at the start of the cycle before it
        final: factor that each cycle falls to
    """

    @with_options_of(WarmedUp)
    def __init__(
        self,
        *,
        period: Length = 0.25,
        multiplier: Multiplier = 1,
        peak: Factor = 1.0,
        final: Share = 0.0,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        check_length("schedule.period", period)
        if not period:
            raise ValueError("schedule.period=0 has no step; use a number of steps, or a share of the run above 0")
        self.period = period
        self.multiplier = multiplier
        self.peak = peak
        self.final = final

    def after_warmup(self, step: int, warmup: int, total: int) -> float:
        """Return the factor at `step`, of `total`, after `warmup` steps of warm-up."""
        index, since, length = self._cycle(step - warmup, max(to_steps(self.period, total), 1))
        decay = (1 + math.cos(math.pi * since / length)) / 2
        start = max(self.peak**index, self.final)  # a late cycle never rises from below its end
        return self.final + (start - self.final) * decay

    def _cycle(self, step: int, length: int) -> tuple[int, int, int]:
        """Return the index of the cycle of `step`, the steps since it began, and its length."""
        if self.multiplier == 1:
            return step // length, step % length, length
        index = 0
        while step >= length:
            index += 1
            step -= length
            length *= self.multiplier
        return index, step, length
