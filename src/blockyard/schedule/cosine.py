"""Cosine: decays over half a cosine to a final share of the learning rate, after a linear warm-up.

Source: Loshchilov and Hutter 2017, SGDR (arXiv 1608.03983), eq. 5, without restarts.
Reference: torch.optim.lr_scheduler.CosineAnnealingLR
Equation: final + (1 - final) (1 + cos(pi p)) / 2, p from 0 after the warm-up to 1 at the end
"""

from __future__ import annotations

import math

from blockyard.schedule._warmup import Decaying, progress


class Cosine(Decaying):
    """Cosine decay."""

    def after_warmup(self, step: int, warmup: int, total: int) -> float:
        """Return the factor at `step`, of `total`, after `warmup` steps of warm-up."""
        decay = (1 + math.cos(math.pi * progress(step, warmup, total))) / 2
        return self.final + (1 - self.final) * decay
