"""Doubts of a reviewer about the results: curves that still improve, main effects that hide an interaction."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from blockyard.report.arms.savings import curve_points
from blockyard.report.load.document import CurveRow, EffectsRow, InteractionRow
from blockyard.report.stats.verdict import ALPHA
from blockyard.runs.metric_name import MetricName

_LAST = 0.2  # of the training
_STILL = 0.1  # of the whole improvement, made in that last part
_EVALUATIONS = 5  # of a run, from which its end can be told from its start
_TRAINING = "train/loss"
_FALSE_ALARM = 0.01  # of a loss in training that does not fall any more


def review(
    curves: Sequence[CurveRow],
    effects: EffectsRow | None,
    metric: str,
    direction: str,
    directions: Mapping[str, str],
) -> list[str]:
    """Return every sentence, in order. directions: of the metrics on validation, where they are known."""
    validation = str(MetricName.parse(metric).on("val").plain())
    return [
        *contradicted_effects(effects),
        *still_improving(curves, metric, directions.get(validation, direction)),
    ]


def still_improving(curves: Sequence[CurveRow], metric: str, direction: str) -> Iterator[str]:
    """Yield a sentence where runs still improve at the end, so that a longer budget may change the order.

    metric: of the comparison; its twin on validation is looked at, or train/loss in runs that evaluated it too rarely
    """
    name = str(MetricName.parse(metric).on("val").plain())
    sign = -1.0 if direction == "min" else 1.0
    shares: dict[str, list[float]] = {}
    ends: dict[str, list[_TrainingEnd]] = {}
    for curve in curves:
        points = curve_points(curve, "step", name, sign)
        if len(points) >= _EVALUATIONS:
            share = _late_share(points)
            if share is not None:
                shares.setdefault(curve.arm, []).append(share)
        # A run that was better at an earlier evaluation is left out: its loss in training then falls by overfitting.
        elif len(points) < 2 or points[-1][1] >= max(value for _, value in points[:-1]):
            end = _training_end(curve_points(curve, "step", _TRAINING, -1.0))
            if end is not None:
                ends.setdefault(curve.arm, []).append(end)
    late = {arm: statistics.median(late_shares) for arm, late_shares in shares.items()}
    yield from _still(name, {arm: share for arm, share in late.items() if share >= _STILL})
    yield from _still(
        f"{_TRAINING} ({name} was evaluated fewer than {_EVALUATIONS} times)",
        {arm: statistics.median(end.share for end in of_arm) for arm, of_arm in ends.items() if _falls(of_arm)},
    )


def _still(name: str, late: Mapping[str, float]) -> Iterator[str]:
    """Yield a sentence on the arms whose last part of training made these shares of an improvement."""
    named = [f"{arm} ({100 * share:.0f} %)" for arm, share in late.items()]
    if named:
        more = f" and {len(named) - 6} more" if len(named) > 6 else ""
        yield (
            f"{name} still improves at the end: of its whole improvement, the last fifth of training made "
            f"{', '.join(named[:6])}{more}; a longer budget may change the order of the arms"
        )


def _late_share(points: Sequence[tuple[float, float]]) -> float | None:
    """Return the share of the improvement in the last part of a run; None where it did not improve."""
    late = [value for step, value in points if step <= (1 - _LAST) * points[-1][0]]
    first, last = points[0][1], points[-1][1]
    if not late or last <= first:
        return None
    return (last - max(late)) / (last - first)


class _TrainingEnd(NamedTuple):
    """The end of a run by its loss in training.

    improvement: from the fourth fifth of training to the last one; variance: its variance where that of a row is 1
    share: of the improvement from the end of the first tenth on; before it, the loss falls to that of frequencies
    noise: squares of how far each row is from a line through its neighbours, over their variance where a row's is 1
    """

    improvement: float
    variance: float
    share: float
    noise: list[float]


def _training_end(points: Sequence[tuple[float, float]]) -> _TrainingEnd | None:
    """Return the end of a run by its logged losses, negated; None where they are few or did not improve."""
    last_step = points[-1][0] if points else 0

    def evaluations_between(start: float, end: float) -> list[tuple[float, float]]:
        return [(step, value) for step, value in points if start * last_step < step <= end * last_step]

    early = [value for _, value in evaluations_between(0.1, 0.3)]
    before = [value for _, value in evaluations_between(1 - 2 * _LAST, 1 - _LAST)]
    last = [value for _, value in evaluations_between(1 - _LAST, 1.0)]
    if not (early and before and last):
        return None
    whole = statistics.fmean(last) - statistics.fmean(early)
    if whole <= 0:
        return None
    noise = []
    middle = evaluations_between(0.3, 1.0)
    for (left, a), (step, value), (right, b) in zip(middle, middle[1:], middle[2:], strict=False):
        weight = (right - step) / (right - left)
        line = weight * a + (1 - weight) * b
        noise.append((value - line) ** 2 / (1 + weight**2 + (1 - weight) ** 2))
    improvement = statistics.fmean(last) - statistics.fmean(before)
    return _TrainingEnd(improvement, 1 / len(before) + 1 / len(last), improvement / whole, noise)


def _falls(ends: Sequence[_TrainingEnd]) -> bool:
    """Return whether the loss of an arm still falls by as much as matters, and by more than its noise."""
    from scipy import stats

    noise = [square for end in ends for square in end.noise]
    if not noise or statistics.median(end.share for end in ends) < _STILL:
        return False
    error = math.sqrt(statistics.fmean(noise) * sum(end.variance for end in ends)) / len(ends)
    # Neighbours share rows, so that their squares count for about half as many.
    limit = float(stats.t.ppf(1 - _FALSE_ALARM, len(noise) / 2)) * error
    return statistics.fmean(end.improvement for end in ends) > limit


def contradicted_effects(effects: EffectsRow | None) -> Iterator[str]:
    """Yield a sentence for each interaction in which the sign of a factor's effect depends on the other's level."""
    for pair in effects.interactions if effects else ():
        if pair.holm_p is None or pair.holm_p > ALPHA:
            continue
        yield from _hidden_by(pair)
        transposed = [list(column) for column in zip(*pair.cells, strict=True)]
        yield from _hidden_by(replace(pair, factors=pair.factors[::-1], cells=transposed, levels=pair.levels[::-1]))


def _hidden_by(pair: InteractionRow) -> Iterator[str]:
    """Yield a sentence for each level of the first factor whose effect has no one sign over the second factor."""
    factor, other = pair.factors
    first_level, *levels = pair.levels[0]
    first_means, *means = pair.cells
    for level, level_means in zip(levels, means, strict=True):
        gaps = [b - a for a, b in zip(first_means, level_means, strict=True) if a is not None and b is not None]
        if gaps and min(gaps) < 0 < max(gaps):
            yield (
                f"the main effect of {factor} hides an interaction: {level} against {first_level} is better at some "
                f"levels of {other} and worse at others"
            )
