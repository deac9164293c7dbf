"""Linear: decays linearly to a final share of the learning rate, after a linear warm-up.

Source: Devlin et al. 2019, BERT (arXiv 1810.04805), appendix A.2.
Reference: transformers.get_linear_schedule_with_warmup
Equation: final + (1 - final) (1 - p), p from 0 after the warm-up to 1 at the end
"""

from __future__ import annotations

from blockyard.contracts import NonNegative
from blockyard.schedule._warmup import Length, WarmedUp, progress


class Linear(WarmedUp):
    """Linear decay.

    Options:
        warmup: length of the linear warm-up, in steps (an int) or as a share of the run (a float below 1)
        final: factor at the end of the run
    """

    def __init__(self, *, warmup: Length = 0.05, final: NonNegative = 0.0) -> None:
        super().__init__(warmup)
        self.final = final

    def after_warmup(self, step: int, warmup: int, total: int) -> float:
        """Return the factor at `step`, of `total`, after `warmup` steps of warm-up."""
        return 1 - (1 - self.final) * progress(step, warmup, total)
