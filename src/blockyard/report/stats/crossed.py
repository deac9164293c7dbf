"""The difference of two arms for new test samples, from the score of every run on every sample.

The differences D of S seeds and E samples are a two-way layout with one value in each cell, whose rows and columns are
both drawn at random:

    D_ij = m + seed_i + sample_j + rest_ij
    over seeds     Var(mean) = MS_seeds / (S E)                            new models, these samples: the paired t test
    over samples   Var(mean) = MS_samples / (S E)                          these models, new samples
    over both      Var(mean) = (MS_seeds + MS_samples - MS_rest) / (S E)   new models on new samples

with S - 1, E - 1, and Satterthwaite's degrees of freedom. Where MS_rest makes the last one smaller than either of the
others, the larger of these stands: a variance over more cannot be smaller.

Source: Searle, Casella, McCulloch 1992, Variance Components, sec. 4.3; Owen and Eckles 2012, Bootstrapping data arrays
of arbitrary order (arXiv 1106.2125), for crossed factors; Miller 2024, Adding Error Bars to Evals (arXiv 2411.00640).
Reference: statsmodels' analysis of variance for the mean squares; coverage by simulation.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from blockyard.report.load.document import Difference
from blockyard.report.stats.intervals import LEVEL, ROUNDING

if TYPE_CHECKING:
    import numpy as np


def mean_squares(gaps: np.ndarray) -> tuple[float, float, float]:
    """Return the mean squares of seeds, samples and the rest of differences (S, E), both at least two."""
    seeds, samples = gaps.shape
    mean, rows, columns = gaps.mean(), gaps.mean(1), gaps.mean(0)
    rest = gaps - rows[:, None] - columns[None, :] + mean
    return (
        float(samples * ((rows - mean) ** 2).sum() / (seeds - 1)),
        float(seeds * ((columns - mean) ** 2).sum() / (samples - 1)),
        float((rest**2).sum() / ((seeds - 1) * (samples - 1))),
    )


def crossed_difference(gaps: np.ndarray, over: str, effective: float | None = None) -> Difference:
    """Return the mean of differences (S, E), with its t test and 95 % interval.

    over: "seeds", "samples" or "both"
    effective: the number of samples of one weight that say as much, for the degrees of freedom; default E
    """
    from scipy import stats

    seeds, samples = gaps.shape
    mean = float(gaps.mean()) if gaps.size else None
    if mean is None or seeds < 2 or samples < 2:
        return Difference(seeds, mean, over=over)
    of_seeds, of_samples, of_rest = mean_squares(gaps)
    free_seeds = seeds - 1.0
    free_samples = (samples if effective is None else effective) - 1.0
    if over == "both":
        both = of_seeds + of_samples - of_rest
        parts = of_seeds**2 / free_seeds + of_samples**2 / free_samples
        parts += of_rest**2 / (free_seeds * free_samples)
        square, free = max(
            (both, both**2 / parts if parts else 1.0), (of_seeds, free_seeds), (of_samples, free_samples)
        )
    else:
        square, free = (of_seeds, free_seeds) if over == "seeds" else (of_samples, free_samples)
    error = math.sqrt(square / (seeds * samples))
    if error <= ROUNDING * float(abs(gaps).max()):
        return Difference(seeds, mean, over=over, permutation_p=1.0 if mean == 0 else None)
    half = float(stats.t.ppf((1 + LEVEL) / 2, free)) * error
    p = float(2 * stats.t.sf(abs(mean) / error, free))
    return Difference(seeds, mean, interval=(mean - half, mean + half), t_p=p, error=error, free=free, over=over)
