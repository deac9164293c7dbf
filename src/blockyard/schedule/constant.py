"""Constant: the full learning rate after a linear warm-up.

Source: Goyal et al. 2017, Accurate, Large Minibatch SGD (arXiv 1706.02677), section 2.2, the warm-up.
Reference: transformers.get_constant_schedule_with_warmup
Equation: 1
"""

from __future__ import annotations

from blockyard.contracts import Schedule
from blockyard.schedule._warmup import Length, check_length, to_steps, warmup_factor


class Constant(Schedule):
    """No decay.

    Options:
        warmup: length of the linear warm-up, in steps (an int) or as a share of the run (a float below 1)
    """

    def __init__(self, *, warmup: Length = 0) -> None:
        check_length("schedule.warmup", warmup)
        self.warmup = warmup

    def factor(self, step: int, total: int) -> float:
        """The factor on the learning rate at `step` (from 0) of `total`."""
        warming = warmup_factor(step, to_steps(self.warmup, total))
        return 1.0 if warming is None else warming
