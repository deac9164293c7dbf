"""Half a cosine from the full rate to a final share of it, after a linear warm-up.

Source: Loshchilov and Hutter 2017, SGDR (arXiv 1608.03983), eq. 5, without restarts.
Reference: torch.optim.lr_scheduler.CosineAnnealingLR
Equation: final + (1 - final) (1 + cos(pi p)) / 2, p from 0 after the warm-up to 1 at the end
"""

from __future__ import annotations

import math

from blockyard.contracts import NonNegative, Schedule
from blockyard.schedule._warmup import Length, check_length, progress, rise, updates


class Cosine(Schedule):
    """Cosine decay.

    Options:
        warmup: updates (an int) or share of the run (a float below 1) of linear rise
        final: factor at the end of the run
    """

    def __init__(self, *, warmup: Length = 0.05, final: NonNegative = 0.0) -> None:
        check_length("schedule.warmup", warmup)
        self.warmup = warmup
        self.final = final

    def factor(self, step: int, total: int) -> float:
        """The factor for update number `step` (from 0) of `total`."""
        warmup = updates(self.warmup, total)
        rising = rise(step, warmup)
        if rising is not None:
            return rising
        fallen = (1 + math.cos(math.pi * progress(step, warmup, total))) / 2
        return self.final + (1 - self.final) * fallen
