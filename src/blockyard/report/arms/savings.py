"""A gain of an arm as the training that it saves: how soon it has the value with which the baseline ends.

The target is the baseline's last value on validation, seed by seed. Both arms are timed alike, by the first point of
the straight lines between evaluations that reaches the target: noise lets a curve reach a value early, and the quotient
of two first points has that in both. The mean over seeds is of the logarithms, since it is of quotients.

Source: for speed to a target, Dahl et al. 2023, Benchmarking Neural Network Training Algorithms (arXiv 2306.07179)
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from blockyard.report.arms.terms import ComparisonTerms
from blockyard.report.load.arms import ComparisonInput
from blockyard.report.load.document import CurveRow, SavedRow, SavingRow
from blockyard.report.stats.intervals import mean_of
from blockyard.runs.costs import COSTS
from blockyard.runs.metric_name import MetricName
from blockyard.sweep.spec.threshold import of_metric

EVALUATIONS = 8  # of a run, from which its curve is read
UNITS = {"steps": "step", "seconds": "seconds", "flops": "flops"}  # name in a row -> the field of a curve
_LIMITS = {"seconds": "max_seconds", "flops": "max_flops"}  # the options of the trainer that end a run by a unit
_MAX_NAMED = 4
_SHOWN = {"steps": "steps", "seconds": "seconds", "flops": "FLOPs"}


def savings(data: ComparisonInput, terms: ComparisonTerms, curves: Sequence[CurveRow]) -> list[SavingRow]:
    """Return the share of the baseline's training that each arm takes; empty where no validation metric tells."""
    metric = terms.metric
    if metric in COSTS or of_metric(metric) is not None:
        return []
    name = str(MetricName.parse(metric).on("val").plain())
    sign = -1.0 if terms.directions.get(name, terms.direction) == "min" else 1.0
    by_run = {curve.run: curve for curve in curves}
    by_arm: dict[str, dict[int, CurveRow]] = {}
    for arm in data.arms:
        # An arm with several runs on each seed has no curve of a seed.
        runs = arm.done if arm.averages is None else []
        by_arm[arm.name] = {run.seed: by_run[run.run] for run in runs if run.run in by_run}
    saving_rows = []
    # An interval of so many independent seeds, fixed before.
    fixed = data.standing is None and terms.split_ratio is None
    for arm in data.arms:
        rival = terms.rival(arm.name)
        if rival is None or rival == arm.name or rival not in by_arm:
            continue
        row = _row(arm.name, rival, by_arm, name, sign, intervals=fixed)
        if row is not None:
            saving_rows.append(row)
    return saving_rows


def _row(
    arm: str, rival: str, by_arm: Mapping[str, Mapping[int, CurveRow]], metric: str, sign: float, *, intervals: bool
) -> SavingRow | None:
    """Return the row of an arm; None without a seed on which both curves can be read."""
    quotients: dict[str, dict[str, float | None]] = {unit: {} for unit in UNITS}
    for seed in sorted(by_arm[arm].keys() & by_arm[rival].keys()):
        for unit, field in UNITS.items():
            points = curve_points(by_arm[arm][seed], field, metric, sign)
            base_points = curve_points(by_arm[rival][seed], field, metric, sign)
            if min(len(points), len(base_points)) < EVALUATIONS:
                continue
            target = base_points[-1][1]
            base_length = first_reach(base_points, target)
            length = first_reach(points, target)
            if base_length:
                quotients[unit][str(seed)] = None if length is None else length / base_length
    saved = {unit: _saved(values, intervals=intervals) for unit, values in quotients.items()}
    if all(part is None for part in saved.values()):
        return None
    return SavingRow(arm=arm, against=rival, metric=metric, **saved)


def curve_points(curve: CurveRow, field: str, metric: str, sign: float) -> list[tuple[float, float]]:
    """Return the evaluations of a curve as (length, value) where both are known; more is better."""
    points = []
    for length, value in zip(getattr(curve, field), curve.metrics.get(metric, ()), strict=False):
        if length is not None and value is not None:
            points.append((float(length), sign * value))
    return points


def first_reach(points: Sequence[tuple[float, float]], target: float) -> float | None:
    """Return the length at which the lines between points first reach a value; None where they never do."""
    before: tuple[float, float] | None = None
    for length, value in points:
        if value >= target:
            if before is None:
                return length
            share = (target - before[1]) / (value - before[1])
            return before[0] + share * (length - before[0])
        before = (length, value)
    return None


def _saved(quotients: Mapping[str, float | None], *, intervals: bool) -> SavedRow | None:
    """Return the mean share over seeds, which is unknown where the arm does not get there on one of them."""
    if not quotients:
        return None
    logs = [math.log(quotient) for quotient in quotients.values() if quotient]
    never = sum(quotient is None for quotient in quotients.values())
    share = None
    interval = None
    if not never and len(logs) == len(quotients):
        mean = mean_of(logs)
        if mean.mean is not None:
            share = math.exp(mean.mean)
        if intervals and mean.interval is not None:
            interval = (math.exp(mean.interval[0]), math.exp(mean.interval[1]))
    return SavedRow(share=share, interval=interval, never=never, shares=dict(quotients))


def savings_answer(savings_of_arms: Sequence[SavingRow], data: ComparisonInput) -> str:
    """Return a sentence on the training that the arms take to where the baseline ends; "" without a row.

    A ladder compares arms at several rungs, and says what they are worth in compute.
    """
    if (data.question or {}).get("ladder"):
        return ""
    # Of the budget that the arms share, the saved part counts.
    unit = "steps"
    for limited, option in _LIMITS.items():
        if all((arm.config.get("trainer") or {}).get(option) is not None for arm in data.arms):
            unit = limited
            break
    parts = []
    for row in savings_of_arms:
        saved: SavedRow | None = getattr(row, unit)
        if saved is not None:
            parts.append(f"{row.arm} {_share_text(saved)}")
    if not parts:
        return ""
    named = parts[:_MAX_NAMED]
    if len(parts) > _MAX_NAMED:
        named.append(f"{len(parts) - _MAX_NAMED} more arms are in comparison.json")
    against, metric = savings_of_arms[0].against, savings_of_arms[0].metric
    return f"Of the {_SHOWN[unit]} that {against} takes to its last {metric}, {'; '.join(named)}."


def _share_text(saved: SavedRow) -> str:
    """Return the share as text, or on how many seeds the arm gets there."""
    seeds = len(saved.shares)
    if saved.never == seeds:
        return "never gets there"
    if saved.never:
        reached = sorted(share for share in saved.shares.values() if share is not None)
        ends = " to ".join(dict.fromkeys(_percent(share) for share in (reached[0], reached[-1])))
        return f"takes {ends} % on {len(reached)} of {seeds} seeds and never gets there on the others"
    assert saved.share is not None
    takes = f"takes {_percent(saved.share)} %"
    if saved.interval is not None:
        low, high = map(_percent, saved.interval)
        return f"{takes} (95 % interval {low} to {high} %)"
    return takes


def _percent(share: float) -> str:
    return f"{100 * share:.0f}"
