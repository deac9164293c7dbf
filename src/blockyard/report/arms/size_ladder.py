"""The rungs of a comparison: arms that differ in their size, and their worth in compute.

The rungs are the levels of a factor of a grid, or of the key `ladder` of a sweep file.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence

from blockyard.config.tree import is_number
from blockyard.errors import UserError, near
from blockyard.report.load.arms import ArmRuns, ComparisonInput
from blockyard.report.load.document import DecisionRow, LadderArmRow, LadderMisfitRow, LadderRow, Limits
from blockyard.report.load.run_record import LoadedRun
from blockyard.report.stats.decisions import decision_accuracy, mean_gaps, pair_gaps, told_apart
from blockyard.report.stats.ladder import FARTHER, ArmLadder, ladder, no_law
from blockyard.report.stats.metric_range import metric_range
from blockyard.report.stats.paired import finite
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
        groups.setdefault(_without_size(arm, factor), []).append(arm)
    base = next(iter(groups))
    points = {}
    for name, arms in groups.items():
        if any(arm.name == baseline for arm in arms):
            base = name
        points[name] = _points(arms, metric)
    fitted = ladder(points, base, floors)
    unfitted = []
    for misfit in fitted.unfitted:
        compute = [compute for compute, _ in misfit.rungs]
        loss = [loss for _, loss in misfit.rungs]
        unfitted.append(LadderMisfitRow(name=misfit.name, compute=compute, loss=loss, worst=misfit.worst))
    return LadderRow(
        factor=factor,
        baseline=base,
        farther=FARTHER,
        floors=floors,
        arms=[_arm(fit) for fit in fitted.arms],
        unfitted=unfitted,
    )


def _without_size(arm: ArmRuns, factor: str) -> str:
    """Return the name of an arm on a ladder, which is the same at every rung."""
    others = [level for name, level in arm.levels.items() if name != factor]
    return ",".join(others) or "arm"


def decision_rows(data: ComparisonInput, metrics: Sequence[str], factor: str) -> list[DecisionRow]:
    """Return whether the rungs order the arms as the largest finished rung does, for each metric and smaller rung."""
    rungs: dict[str, list[ArmRuns]] = {}
    for arm in data.arms:
        if factor in arm.levels:
            rungs.setdefault(arm.levels[factor], []).append(arm)
    computes = {rung: [_compute(run) for arm in arms for run in arm.done] for rung, arms in rungs.items()}
    sizes = {rung: statistics.median(filter(None, values)) for rung, values in computes.items() if any(values)}
    rows = []
    for metric in metrics:
        gaps = {}
        for rung in sorted(sizes, key=sizes.__getitem__):
            values = {_without_size(arm, factor): finite(arm.values(metric)) for arm in rungs[rung]}
            pairs = pair_gaps(values)
            if pairs:
                gaps[rung] = pairs
        if len(gaps) < 2:
            continue
        *smaller, largest = gaps
        counts = decision_accuracy([mean_gaps(pairs) for pairs in gaps.values()], told_apart(gaps[largest]))
        for rung, count in zip(smaller, counts, strict=True):
            if count.pairs:
                rows.append(DecisionRow(metric=metric, rung=rung, largest=largest, **count._asdict()))
    return rows


def is_loss(metric: str, direction: str) -> bool:
    """Return whether a metric falls with compute towards a floor: less is better, and it is no share."""
    return direction == "min" and metric_range(metric, ()) is None


def rivals(data: ComparisonInput, baseline: str | None) -> dict[str, str]:
    """Return the arm that each arm of a sweep with `ladder` is compared with: the baseline at its own rung.

    Empty for other sweeps. An arm whose rung the baseline does not have is left out.
    """
    if not baseline or not (data.question or {}).get("ladder"):
        return {}
    reference = data.arm(baseline)
    if reference is None:
        return {}
    by_rung: dict[str, str] = {}
    for arm in data.arms:
        if arm.levels.get(ARM_LEVEL) == reference.levels.get(ARM_LEVEL):
            by_rung[arm.levels[FACTOR]] = arm.name
    return {arm.name: by_rung[arm.levels[FACTOR]] for arm in data.arms if arm.levels.get(FACTOR) in by_rung}


def ladder_answer(row: LadderRow) -> str:
    """Return the worth of each arm in compute, in a sentence or two."""
    others = [arm for arm in row.arms if arm.name != row.baseline]
    if not others:
        (arm,) = row.arms
        return (
            f"The loss of {arm.name} follows {arm.floor:.3g} + {arm.scale:.3g} / C^{arm.power:.3g} in the "
            f"FLOPs C of training; the law of the other rungs misses the largest by {100 * arm.held_out:+.2g} %."
        )
    sentences = []
    printed = [arm for arm in others if arm.withheld is None]
    if printed:
        last = max(arm.compute[-1] for arm in row.arms)
        parts = []
        for arm in printed[:MAX_NAMED]:
            gap = "" if arm.trend is None else f" (the gap {arm.trend})"
            parts.append(f"{arm.name} is worth {_worth(arm.multiplier, arm.interval)}{gap}")
        if len(printed) > MAX_NAMED:
            parts.append(f"and {len(printed) - MAX_NAMED} more arms")
        sentences.append(
            f"At the largest rung ({last:.3g} FLOPs), in the compute of {row.baseline}: {'; '.join(parts)}."
        )
    farther = [arm for arm in printed[:MAX_NAMED] if arm.farther_withheld is None]
    if farther:
        worths = ", ".join(f"{arm.name} {_worth(arm.farther, arm.farther_interval)}" for arm in farther)
        sentences.append(f"Extrapolated to {row.farther:g} times that: {worths}.")
    sentences += _withheld(row, others)
    if row.unfitted:
        errors = {misfit.name: misfit.worst for misfit in row.unfitted}
        sentences.append(f"{no_law(errors)}.")
    return " ".join(sentences)


def _withheld(row: LadderRow, others: Sequence[LadderArmRow]) -> Iterator[str]:
    """Yield which multipliers are withheld, and why."""
    base = next(arm for arm in row.arms if arm.name == row.baseline)
    if base.withheld is not None:
        yield f"No compute multipliers are given: of {base.name}, the baseline, {base.withheld}."
        return
    near = [f"{arm.name} ({arm.withheld})" for arm in others if arm.withheld is not None]
    if near:
        yield f"No compute multiplier is given for {', '.join(near)}."
    far = [f"{arm.name} ({arm.farther_withheld})" for arm in others if arm.withheld is None and arm.farther_withheld]
    if far:
        yield f"Not extrapolated: {', '.join(far)}."


def decisions_answer(rows: Sequence[DecisionRow], metric: str) -> str:
    """Return how many pairs of arms each rung orders as the largest one does, in a sentence; "" without pairs."""
    rows = [row for row in rows if row.metric == metric]
    if not rows:
        return ""
    kept = ", ".join(f"{_share(row.kept, row.pairs)} at {row.rung}" for row in rows)
    text = f"Pairs of arms with the sign of their difference at {rows[0].largest}: {kept}"
    if not any(row.decided for row in rows):
        text += "; the seeds tell none of them apart there"
    elif any(row.decided < row.pairs for row in rows):
        shares = ", ".join(_share(row.decided_kept, row.decided) for row in rows)
        text += f"; of those that the seeds tell apart there, {shares}"
    return f"{text}."


def _share(count: int, of: int) -> str:
    percent = f" ({100 * count / of:.0f} %)" if of else ""
    return f"{count} of {of}{percent}"


def _worth(times: float | None, interval: Limits | None) -> str:
    if times is None or math.isinf(times):
        return "more than its law can tell"
    if interval is None:
        return f"{times:.3g} times"
    return f"{times:.3g} times ({interval[0]:.3g} to {interval[1]:.3g})"


def _points(arms: list[ArmRuns], metric: str) -> dict[int, list[tuple[float, float]]]:
    """Return seed -> (compute, loss) of each rung, in the order of compute, for the seeds that all rungs have."""
    rungs: list[dict[int, tuple[float, float]]] = []
    for arm in arms:
        rung = {}
        for run in arm.done:
            point = _point(run, metric)
            if point is not None:
                rung[run.seed] = point
        if rung:
            rungs.append(rung)
    if not rungs:
        return {}
    rungs.sort(key=lambda rung: min(compute for compute, _ in rung.values()))
    common = set.intersection(*map(set, rungs))
    return {seed: [rung[seed] for rung in rungs] for seed in sorted(common)}


def _point(run: LoadedRun, metric: str) -> tuple[float, float] | None:
    """Return the FLOPs of training and the loss of a run; None where either is unknown."""
    compute = _compute(run)
    loss = run.value(metric)
    if compute is None or loss is None:
        return None
    return compute, loss


def _compute(run: LoadedRun) -> float | None:
    """Return the FLOPs of training of a run; None where they are unknown or 0, which has no logarithm."""
    samples = run.summary.get("samples")
    flops = run.summary.get("flops_per_sample")
    training = flops.get("training") if isinstance(flops, dict) else None
    if not (is_number(samples) and is_number(training)):
        return None
    compute = float(samples or 0) * float(training or 0)
    return compute if compute > 0 else None


def _arm(fit: ArmLadder) -> LadderArmRow:
    predicted, measured = fit.held_out
    return LadderArmRow(
        name=fit.name,
        compute=[compute for compute, _ in fit.rungs],
        loss=[loss for _, loss in fit.rungs],
        floor=fit.law.floor,
        scale=fit.law.scale,
        power=fit.law.power,
        worst=fit.worst,
        held_out=predicted / measured - 1,
        multiplier=fit.multiplier,
        interval=fit.interval,
        farther=fit.farther,
        farther_interval=fit.farther_interval,
        trend=fit.trend,
        held_out_interval=fit.held_out_interval,
        withheld=fit.withheld,
        farther_withheld=fit.farther_withheld,
    )
