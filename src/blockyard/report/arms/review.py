"""Doubts of a reviewer about the results: curves that still improve, main effects that hide an interaction."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from blockyard.report.load.document import CurveRow, EffectsRow, InteractionRow
from blockyard.report.stats.verdict import ALPHA
from blockyard.runs.metric_name import MetricName

_LAST = 0.2  # of the training
_STILL = 0.1  # of the whole improvement, made in that last part
_EVALUATIONS = 5  # of a run, from which its end can be told from its start


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
    """Yield a sentence where validation still improves at the end, so that a longer budget may change the order.

    metric: of the comparison; its twin on validation is looked at
    """
    name = str(MetricName.parse(metric).on("val").plain())
    shares: dict[str, list[float]] = {}
    for curve in curves:
        share = _late_share(curve, name, -1.0 if direction == "min" else 1.0)
        if share is not None:
            shares.setdefault(curve.arm, []).append(share)
    late = {arm: statistics.median(late_shares) for arm, late_shares in shares.items()}
    named = [f"{arm} ({100 * share:.0f} %)" for arm, share in late.items() if share >= _STILL]
    if named:
        more = f" and {len(named) - 6} more" if len(named) > 6 else ""
        yield (
            f"{name} still improves at the end: of its whole improvement, the last fifth of training made "
            f"{', '.join(named[:6])}{more}; a longer budget may change the order of the arms"
        )


def _late_share(curve: CurveRow, name: str, sign: float) -> float | None:
    """Return the share of a metric's improvement in the last part of a run; None where it did not improve."""
    points = [
        (step, sign * value)
        for step, value in zip(curve.step, curve.metrics.get(name, ()), strict=False)
        if value is not None
    ]
    if len(points) < _EVALUATIONS:
        return None
    late = [value for step, value in points if step <= (1 - _LAST) * points[-1][0]]
    first, last = points[0][1], points[-1][1]
    if not late or last <= first:
        return None
    return (last - max(late)) / (last - first)


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
