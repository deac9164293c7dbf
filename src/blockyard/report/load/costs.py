"""The costs of an arm, their ratios to the baseline, and the Pareto front of quality against cost."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence

from blockyard.runs.costs import COSTS

ALIKE = 0.05  # costs within this part of each other are no trade-off: matching leaves as much
DETERMINED = ("flops", "parameters", "cache_bytes_per_token")  # by the config alone, and so the same in every run
AXES = {"flops": "flops_per_sample"} | {key: key for key in COSTS}  # name of a cost axis -> its key


def median_costs(runs: Iterable[Mapping[str, float]]) -> dict[str, float | None]:
    """Return the costs of an arm: the median over its runs, so that one disturbed run does not count."""
    every = list(runs)
    columns = {key: [run[key] for run in every if key in run] for key in COSTS}
    return {key: statistics.median(column) if column else None for key, column in columns.items()}


def with_active(arms: Mapping[str, dict[str, float | None]]) -> dict[str, dict[str, float | None]]:
    """Return the costs of all arms: where one activates a part of its parameters per token, the others activate all."""
    if all(cost["active_parameters"] is None for cost in arms.values()):
        return dict(arms)
    every = {arm: cost["parameters"] for arm, cost in arms.items() if cost["active_parameters"] is None}
    return {arm: {**cost, "active_parameters": every.get(arm, cost["active_parameters"])} for arm, cost in arms.items()}


def default_axis(arms: Iterable[Mapping[str, float | None]]) -> str:
    """Return the cost axis that shows a trade-off: FLOPs, or the first of `DETERMINED` in which arms differ."""
    every = list(arms)
    available = {axis: [value for arm in every if (value := arm.get(key)) is not None] for axis, key in AXES.items()}
    differing = (axis for axis in DETERMINED if len(available[axis]) > 1 and not _alike(available[axis]))
    return next(differing, None) or next((axis for axis, values in available.items() if values), "flops")


def _alike(values: Sequence[float]) -> bool:
    return max(values) - min(values) <= ALIKE * abs(min(values))


def ratios(arm: Mapping[str, float | None], baseline: Mapping[str, float | None] | None) -> dict[str, float | None]:
    """Return each cost divided by the baseline's; None where either is unknown or the baseline's is 0."""
    reference = baseline or {}
    return {key: _ratio(arm.get(key), reference.get(key)) for key in COSTS}


def _ratio(cost: float | None, reference: float | None) -> float | None:
    return cost / reference if cost is not None and reference else None


def pareto(points: Mapping[str, tuple[float | None, float | None]], better: str, cheaper: str) -> set[str]:
    """Return the arms that no other arm dominates (at least as good on both axes, better on one).

    points: arm -> (quality, cost); an arm that lacks either is not in the set
    better, cheaper: the better direction of each axis, "max" or "min"
    """
    signs = (1 if better == "max" else -1, 1 if cheaper == "max" else -1)
    complete = {
        arm: (signs[0] * quality, signs[1] * cost)
        for arm, (quality, cost) in points.items()
        if quality is not None and cost is not None
    }
    return {
        arm
        for arm, (quality, cost) in complete.items()
        if not any(q >= quality and c >= cost and (q > quality or c > cost) for q, c in complete.values())
    }
