"""The costs of an arm, their ratios to the baseline, and the Pareto front of quality against cost."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping

from blockyard.runs.costs import COSTS

ALIKE = 0.05  # costs within this part of each other are no trade-off: matching leaves as much
DETERMINED = ("flops", "parameters", "cache_bytes_per_token")  # by the config alone, and so the same in every run
AXES = {"flops": "flops_per_sample"} | {key: key for key in COSTS}  # name of a cost axis -> its key


def median_costs(runs: Iterable[Mapping[str, float]]) -> dict[str, float | None]:
    """Return the costs of an arm: the median over its runs, so that one disturbed run does not count."""
    measured = list(runs)
    medians: dict[str, float | None] = {}
    for key in COSTS:
        column = [run[key] for run in measured if key in run]
        medians[key] = statistics.median(column) if column else None
    return medians


def with_active(arms: Mapping[str, dict[str, float | None]]) -> dict[str, dict[str, float | None]]:
    """Return the costs of all arms: where one activates a part of its parameters per token, the others activate all."""
    if all(cost["active_parameters"] is None for cost in arms.values()):
        return dict(arms)
    costs = {}
    for arm, cost in arms.items():
        active = cost["active_parameters"]
        if active is None:
            active = cost["parameters"]
        costs[arm] = {**cost, "active_parameters": active}
    return costs


def default_axis(arms: Iterable[Mapping[str, float | None]]) -> str:
    """Return the cost axis that shows a trade-off: FLOPs, or the first of `DETERMINED` in which arms differ."""
    costs = list(arms)
    available: dict[str, list[float]] = {}
    for axis, key in AXES.items():
        values = [arm.get(key) for arm in costs]
        available[axis] = [value for value in values if value is not None]
    for axis in DETERMINED:
        values_of_axis = available[axis]
        # Arms that are matched in FLOPs, up to rounding, show no trade-off there.
        if len(values_of_axis) > 1 and max(values_of_axis) - min(values_of_axis) > ALIKE * abs(min(values_of_axis)):
            return axis
    return next((axis for axis, is_measured in available.items() if is_measured), "flops")


def ratios(arm: Mapping[str, float | None], baseline: Mapping[str, float | None] | None) -> dict[str, float | None]:
    """Return each cost divided by the baseline's; None where either is unknown or the baseline's is 0."""
    result: dict[str, float | None] = {}
    for key in COSTS:
        cost = arm.get(key)
        reference = baseline.get(key) if baseline else None
        result[key] = cost / reference if cost is not None and reference else None
    return result


def pareto(points: Mapping[str, tuple[float | None, float | None]], better: str, cheaper: str) -> set[str]:
    """Return the arms that no other arm dominates (at least as good on both axes, better on one).

    points: arm -> (quality, cost); an arm that lacks either is not in the set
    better, cheaper: the better direction of each axis, "max" or "min"
    """
    better_sign = 1 if better == "max" else -1
    cheaper_sign = 1 if cheaper == "max" else -1
    complete: dict[str, tuple[float, float]] = {}
    for arm, (quality, cost) in points.items():
        if quality is not None and cost is not None:
            complete[arm] = (better_sign * quality, cheaper_sign * cost)
    front = set()
    for arm, (quality, cost) in complete.items():
        if not any(q >= quality and c >= cost and (q > quality or c > cost) for q, c in complete.values()):
            front.add(arm)
    return front
