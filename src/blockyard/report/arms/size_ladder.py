"""The rungs of a comparison: arms that differ in their size, and their worth in compute.

The rungs are the levels of a factor of a grid, or of the key `ladder` of a sweep file.
"""

from __future__ import annotations

import math

from blockyard.errors import UserError, near
from blockyard.report.load.arms import ArmRuns, ComparisonInput
from blockyard.report.load.document import LadderArmRow, LadderMisfitRow, LadderRow, Limits
from blockyard.report.load.run_record import LoadedRun, is_finite
from blockyard.report.stats.ladder import FARTHER, ArmLadder, ladder, no_law
from blockyard.report.stats.metric_range import metric_range
from blockyard.sweep.cells import ARM_LEVEL
from blockyard.sweep.spec.keys import Floors
from blockyard.sweep.spec.ladder import FACTOR

MAX_NAMED = 4  # arms that the answer names


def ladder_row(
    data: ComparisonInput,
    metric: str,
    direction: str,
    baseline: str | None,
    factor: str,
    floors: Floors = "shared",
) -> LadderRow:
    """Return the ladders of the arms that differ in everything but `factor`, whose levels are the rungs.

    Raises UserError where the arms have no such factor, the metric is not a loss, or no law fits the baseline or any
    other arm.
    """
    factors = list(dict.fromkeys(name for arm in data.arms for name in arm.levels))
    if factor not in factors:
        nearest = near(factor, factors)
        hint = f"; did you mean {nearest[0]}?" if nearest else ""
        has = f"this one has {', '.join(factors)}" if factors else "the arms of this one have none"
        raise UserError(f"ladder={factor}: no factor of a grid{hint} ({has}); write the sizes as one in `grid:`")
    if not is_loss(metric, direction):
        raise UserError(f"ladder: {metric} is not a loss; --metric test/loss, or bits per byte, has a law in compute")
    groups: dict[str, list[ArmRuns]] = {}
    for arm in data.arms:
        groups.setdefault(_group(arm, factor), []).append(arm)
    base = next(iter(groups))
    for name, arms in groups.items():
        if any(arm.name == baseline for arm in arms):
            base = name
    points = {name: _points(arms, metric) for name, arms in groups.items()}
    fitted = ladder(points, base, floors)
    return LadderRow(
        factor=factor,
        baseline=base,
        farther=FARTHER,
        floors=floors,
        arms=[_arm(one) for one in fitted.arms],
        unfitted=[
            LadderMisfitRow(
                name=one.name,
                compute=[compute for compute, _ in one.rungs],
                loss=[loss for _, loss in one.rungs],
                worst=one.worst,
            )
            for one in fitted.unfitted
        ],
    )


def is_loss(metric: str, direction: str) -> bool:
    """Return whether a metric falls with compute towards a floor: less is better, and it is no share."""
    return direction == "min" and metric_range(metric, ()) is None


def rivals(data: ComparisonInput, baseline: str | None) -> dict[str, str]:
    """Return the arm that each arm of a sweep with `ladder` is compared with: the baseline at its own rung.

    Empty for other sweeps. An arm whose rung the baseline does not have is left out.
    """
    own = data.arm(baseline) if baseline and (data.question or {}).get("ladder") else None
    if own is None:
        return {}
    at = {arm.levels[FACTOR]: arm.name for arm in data.arms if arm.levels.get(ARM_LEVEL) == own.levels.get(ARM_LEVEL)}
    return {arm.name: at[arm.levels[FACTOR]] for arm in data.arms if arm.levels.get(FACTOR) in at}


def ladder_answer(row: LadderRow) -> str:
    """Return the worth of each arm in compute, in a sentence or two."""
    others = [arm for arm in row.arms if arm.name != row.baseline]
    if not others:
        (arm,) = row.arms
        return (
            f"The loss of {arm.name} follows {arm.floor:.3g} + {arm.scale:.3g} / C^{arm.power:.3g} in the "
            f"FLOPs C of training; the law of the other rungs misses the largest by {100 * arm.held_out:+.2g} %."
        )
    last = max(arm.compute[-1] for arm in row.arms)
    parts = [f"{arm.name} is worth {_worth(arm.multiplier, arm.interval)}{_gap(arm)}" for arm in others[:MAX_NAMED]]
    more = f"; and {len(others) - MAX_NAMED} more arms" if len(others) > MAX_NAMED else ""
    far = ", ".join(f"{arm.name} {_worth(arm.farther, arm.farther_interval)}" for arm in others[:MAX_NAMED])
    return (
        f"At the largest rung ({last:.3g} FLOPs), in the compute of {row.baseline}: {'; '.join(parts)}{more}. "
        f"Extrapolated to {row.farther:g} times that: {far}."
    ) + (f" {no_law({one.name: one.worst for one in row.unfitted})}." if row.unfitted else "")


def _worth(times: float | None, interval: Limits | None) -> str:
    if times is None or math.isinf(times):
        return "more than its law can tell"
    return f"{times:.3g} times" + ("" if interval is None else f" ({interval[0]:.3g} to {interval[1]:.3g})")


def _gap(arm: LadderArmRow) -> str:
    return "" if arm.trend is None else f" (the gap {arm.trend})"


def _group(arm: ArmRuns, factor: str) -> str:
    return ",".join(level for name, level in arm.levels.items() if name != factor) or "arm"


def _points(arms: list[ArmRuns], metric: str) -> dict[int, list[tuple[float, float]]]:
    """Return seed -> (compute, loss) of each rung, in the order of compute, for the seeds that all rungs have."""
    rungs = [{run.seed: pair for run in arm.done if (pair := _point(run, metric)) is not None} for arm in arms]
    rungs = sorted((rung for rung in rungs if rung), key=lambda rung: min(compute for compute, _ in rung.values()))
    common = sorted(set.intersection(*(set(rung) for rung in rungs))) if rungs else []
    return {seed: [rung[seed] for rung in rungs] for seed in common}


def _point(run: LoadedRun, metric: str) -> tuple[float, float] | None:
    """Return the FLOPs of training and the loss of a run; None where either is unknown."""
    samples, each, loss = run.summary.get("samples"), run.summary.get("flops_per_sample"), run.value(metric)
    training = each.get("training") if isinstance(each, dict) else None
    if loss is None or not (is_finite(samples) and is_finite(training)):
        return None
    compute = float(samples or 0) * float(training or 0)
    return (compute, loss) if compute > 0 else None


def _arm(one: ArmLadder) -> LadderArmRow:
    predicted, measured = one.held_out
    return LadderArmRow(
        name=one.name,
        compute=[compute for compute, _ in one.rungs],
        loss=[loss for _, loss in one.rungs],
        floor=one.law.floor,
        scale=one.law.scale,
        power=one.law.power,
        worst=one.worst,
        held_out=predicted / measured - 1,
        multiplier=one.multiplier,
        interval=one.interval,
        farther=one.farther,
        farther_interval=one.farther_interval,
        trend=one.trend,
    )
