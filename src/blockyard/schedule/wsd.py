"""Warm-up, stable, decay (WSD): a long stable phase at the full learning rate and a short decay at the end.

Source: Hu et al. 2024, MiniCPM (arXiv 2404.06395), section 4; Haegele et al. 2024 (arXiv 2405.18392),
    the 1 - sqrt decay.
Reference: transformers.get_wsd_schedule
Equation: 1, then final + (1 - final) (1 - p) or (1 - sqrt(p)), p from 0 to 1 over the decay
"""

from __future__ import annotations

import math
from typing import Any, Literal

from blockyard.contracts.inherited_options import with_options_of
from blockyard.schedule._warmup import Decaying, Length, check_length, progress, to_steps


class WSD(Decaying):
    """Warm-up, stable, decay.

    Options:
        decay: length of the decay at the end, in steps (an int) or as a share of the run (a float below 1)
        shape: shape of the decay: linear, or sqrt for 1 - sqrt(p)
    """

    @with_options_of(Decaying)
    def __init__(
        self,
        *,
        decay: Length = 0.2,
        shape: Literal["linear", "sqrt"] = "sqrt",
        **options: Any,
    ) -> None:
        super().__init__(**options)
        check_length("schedule.decay", decay)
        warmup = self.warmup
        if isinstance(warmup, float) and isinstance(decay, float) and warmup + decay > 1:
            raise ValueError(
                f"schedule.warmup={warmup} and schedule.decay={decay} are shares of one run and sum to "
                "more than 1; lower one of them"
            )
        self.decay = decay
        self.shape = shape

    def after_warmup(self, step: int, warmup: int, total: int) -> float:
        """Return the factor at `step`, of `total`, after `warmup` steps of warm-up."""
        start = max(total - to_steps(self.decay, total), warmup)
        p = progress(step, start, total)
        if self.shape == "sqrt":
            p = math.sqrt(p)
        return 1 - (1 - self.final) * p
