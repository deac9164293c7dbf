"""Linear: decays linearly to a final share of the learning rate, after a linear warm-up.

Source: Devlin et al. 2019, BERT (arXiv 1810.04805), appendix A.2.
Reference: transformers.get_linear_schedule_with_warmup
Equation: final + (1 - final) (1 - p), p from 0 after the warm-up to 1 at the end
"""

from __future__ import annotations

from blockyard.schedule._warmup import Decaying, progress


class Linear(Decaying):
    """Linear decay."""

    def after_warmup(self, step: int, warmup: int, total: int) -> float:
        """Return the factor at `step`, of `total`, after `warmup` steps of warm-up."""
        return 1 - (1 - self.final) * progress(step, warmup, total)
