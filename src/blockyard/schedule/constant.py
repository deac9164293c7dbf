"""The full rate all along, after a linear warm-up.

Source: Goyal et al. 2017, Accurate, Large Minibatch SGD (arXiv 1706.02677), section 2.2, the warm-up.
Reference: transformers.get_constant_schedule_with_warmup
Equation: 1
"""

from __future__ import annotations

from blockyard.contracts import Schedule
from blockyard.schedule._warmup import Length, check_length, rise, updates


class Constant(Schedule):
    """No decay.

    Options:
        warmup: updates (an int) or share of the run (a float below 1) of linear rise
    """

    def __init__(self, *, warmup: Length = 0) -> None:
        check_length("schedule.warmup", warmup)
        self.warmup = warmup

    def factor(self, step: int, total: int) -> float:
        """The factor for update number `step` (from 0) of `total`."""
        rising = rise(step, updates(self.warmup, total))
        return 1.0 if rising is None else rising
