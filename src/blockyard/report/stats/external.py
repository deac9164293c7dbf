"""Figures from papers and other tools beside the arms: shown, and compared as far as what is known of them allows.

They share no seeds with the runs, so nothing is paired: with a number of runs and their standard deviation Welch's test
is made, with a bare value the test of an arm's mean against it, as if it were exact.

Source: Welch 1947, The Generalization of Student's Problem; Holm 1979 over the arms.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from blockyard.report.load.document import ExternalGapRow, ExternalRow
from blockyard.report.stats.intervals import LEVEL, all_equal
from blockyard.report.stats.paired import Values, diverged_seeds, finite
from blockyard.report.stats.verdict import ALPHA, BETTER, MIN_SEEDS, NO_DIFFERENCE, TOO_FEW, UNDECIDED, WORSE
from blockyard.sweep.stopping.evidence import holm


def external_rows(
    figures: Mapping[str, Mapping[str, Any]], values: Values, direction: str, *, tested: bool
) -> list[ExternalRow]:
    """Return each figure with its difference to every arm: arm minus figure.

    figures: `external` of a sweep file; tested: False where the number of seeds follows from the results, so that a
    test of a fixed number would be wrong
    """
    return [_row(name, figure, values, direction, tested) for name, figure in figures.items()]


def _row(name: str, figure: Mapping[str, Any], values: Values, direction: str, tested: bool) -> ExternalRow:
    value, n, sd = float(figure["value"]), figure.get("n"), figure.get("sd")
    gaps = [_gap(arm, list(finite(by_seed).values()), value, n, sd, tested) for arm, by_seed in values.items()]
    ps = {gap.arm: gap.p for gap in gaps if gap.p is not None}
    holm_ps = dict(zip(ps, holm(list(ps.values())), strict=True))
    arms = [_judged(gap, holm_ps.get(gap.arm), direction, diverged_seeds(values[gap.arm])) for gap in gaps]
    return ExternalRow(name=name, value=value, n=n, sd=sd, source=str(figure["source"]), arms=arms)


def _judged(gap: ExternalGapRow, holm_p: float | None, direction: str, diverged: list[int]) -> ExternalGapRow:
    """Return the difference with its corrected p and the verdict; as it is where no test was made.

    diverged: the seeds of the arm whose runs diverged
    """
    if holm_p is None or gap.mean is None:
        return gap
    if holm_p > ALPHA:
        verdict = NO_DIFFERENCE
    elif (gap.mean > 0) == (direction == "max"):
        verdict = BETTER
    else:
        verdict = WORSE
    if verdict == BETTER and diverged:  # by the runs that are left alone
        verdict = UNDECIDED
    return replace(gap, holm_p=holm_p, verdict=verdict)


def _gap(arm: str, own: list[float], value: float, n: int | None, sd: float | None, tested: bool) -> ExternalGapRow:
    """Return the difference of an arm's mean to a figure, with its test but without the verdict over all arms."""
    import numpy as np
    from scipy import stats

    if not own:
        return ExternalGapRow(arm=arm, mean=None, interval=None, p=None, holm_p=None, verdict=TOO_FEW)
    mean = math.fsum(own) / len(own)
    difference = mean - value
    gap = ExternalGapRow(arm=arm, mean=difference, interval=None, p=None, holm_p=None, verdict=TOO_FEW)
    if not tested:
        return replace(gap, verdict=UNDECIDED)
    if len(own) < MIN_SEEDS:
        return gap
    count = len(own)
    square = math.fsum((each - mean) ** 2 for each in own) / (count - 1) / count
    other = sd**2 / n if sd is not None and n else 0.0
    if not other and all_equal(np.asarray(own), max(abs(value), *map(abs, own))):
        return replace(gap, verdict=UNDECIDED)  # nothing varies: no test says how sure a difference is
    parts = square**2 / (count - 1) + (other**2 / (n - 1) if other and n else 0.0)
    free, error = (square + other) ** 2 / parts, math.sqrt(square + other)
    half = float(stats.t.ppf((1 + LEVEL) / 2, free)) * error
    p = float(2 * stats.t.sf(abs(difference) / error, free))
    return replace(gap, interval=(difference - half, difference + half), p=p)
