"""Cosine: decays over half a cosine to a final share of the learning rate, after a linear warm-up.

Source: Loshchilov and Hutter 2017, SGDR (arXiv 1608.03983), eq. 5, without restarts.
Reference: torch.optim.lr_scheduler.CosineAnnealingLR
Equation: final + (1 - final) (1 + cos(pi p)) / 2, p from 0 after the warm-up to 1 at the end
"""

from __future__ import annotations

import math

from blockyard.contracts import NonNegative
from blockyard.schedule._warmup import Length, WarmedUp, progress


class Cosine(WarmedUp):
    """Cosine decay.

    Options:
        warmup: length of the linear warm-up, in steps (an int) or as a share of the run (a float below 1)
        final: factor at the end of the run
    """

    def __init__(self, *, warmup: Length = 0.05, final: NonNegative = 0.0) -> None:
        super().__init__(warmup)
        self.final = final

    def after_warmup(self, step: int, warmup: int, total: int) -> float:
        """Return the factor at `step`, of `total`, after `warmup` steps of warm-up."""
        decay = (1 + math.cos(math.pi * progress(step, warmup, total))) / 2
        return self.final + (1 - self.final) * decay
