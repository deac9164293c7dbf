"""The rungs of a comparison: arms that differ in their size, and what each is worth in compute."""

from __future__ import annotations

from blockyard.errors import UserError, near
from blockyard.report.load.arms import ArmRuns, ComparisonInput
from blockyard.report.load.document import LadderArmRow, LadderRow
from blockyard.report.load.run_record import LoadedRun, is_finite
from blockyard.report.stats.ladder import FARTHER, ArmLadder, ladder
from blockyard.report.stats.metric_range import metric_range


def ladder_row(data: ComparisonInput, metric: str, direction: str, baseline: str | None, factor: str) -> LadderRow:
    """Return the ladders of the arms that differ in everything but `factor`, whose levels are the rungs.

    Raises UserError where the arms have no such factor, the metric is no loss, or no law fits.
    """
    factors = list(dict.fromkeys(name for arm in data.arms for name in arm.levels))
    if factor not in factors:
        hint = f"; did you mean {nearest[0]}?" if (nearest := near(factor, factors)) else ""
        has = f"this one has {', '.join(factors)}" if factors else "the arms of this one have none"
        raise UserError(f"ladder={factor}: no factor of a grid{hint} ({has}); write the sizes as one in `grid:`")
    if direction != "min" or metric_range(metric, ()) is not None:
        raise UserError(f"ladder: {metric} is no loss; --metric test/loss, or bits per byte, has a law in compute")
    groups: dict[str, list[ArmRuns]] = {}
    for arm in data.arms:
        groups.setdefault(_group(arm, factor), []).append(arm)
    base = next((name for name, arms in groups.items() if any(arm.name == baseline for arm in arms)), None)
    found = ladder({name: _points(arms, metric) for name, arms in groups.items()}, base or next(iter(groups)))
    return LadderRow(
        factor=factor,
        baseline=base or next(iter(groups)),
        farther=FARTHER,
        arms=[_arm(one) for one in found],
    )


def _group(arm: ArmRuns, factor: str) -> str:
    return ",".join(level for name, level in arm.levels.items() if name != factor) or "arm"


def _points(arms: list[ArmRuns], metric: str) -> dict[int, list[tuple[float, float]]]:
    """By seed the compute and the loss of each rung, in the order of compute; only seeds that all rungs have."""
    rungs = [{run.seed: pair for run in arm.done if (pair := _point(run, metric)) is not None} for arm in arms]
    rungs = sorted((rung for rung in rungs if rung), key=lambda rung: min(compute for compute, _ in rung.values()))
    common = sorted(set.intersection(*(set(rung) for rung in rungs))) if rungs else []
    return {seed: [rung[seed] for rung in rungs] for seed in common}


def _point(run: LoadedRun, metric: str) -> tuple[float, float] | None:
    """FLOPs of training, and the loss."""
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
