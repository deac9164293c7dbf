"""The rows of a comparison as plain data: one for each arm, one for each cell, and the learning curve of each run.

A curve is read from metrics.csv and thinned for a page.
"""

from __future__ import annotations

from collections.abc import Mapping

from blockyard.report.arms.changes import FEW_ARMS, MAX_ARMS, changes
from blockyard.report.arms.missing import MissingResult
from blockyard.report.arms.terms import ComparisonTerms
from blockyard.report.load.arms import ArmRuns, ComparisonInput
from blockyard.report.load.costs import median_costs, pareto, ratios, with_active
from blockyard.report.load.document import ArmRow, BudgetRow, CellRow, ChangesRow, CurveRow, MeanRow
from blockyard.report.load.metrics import metric_names
from blockyard.report.load.run_record import LoadedRun
from blockyard.report.stats.metric_range import clipped, metric_range
from blockyard.report.stats.paired import diverged_seeds
from blockyard.report.stats.verdict import BASELINE, TOO_FEW, ArmResult
from blockyard.runs.costs import COSTS
from blockyard.runs.metrics import FILE, Row, read_metrics

FILES = ("config.yaml", "run.json", "metrics.csv", "summary.json", "log.txt", "error.txt")
MAX_POINTS = 200  # of the curve of one run
MAX_TOTAL = 40_000  # of all curves together
MIN_POINTS = 20
AXES = ("step", "epoch", "samples", "tokens", "seconds")


def arm_rows(
    data: ComparisonInput,
    terms: ComparisonTerms,
    results: Mapping[str, ArmResult],
    missing: Mapping[str, MissingResult],
) -> list[ArmRow]:
    """Return one row for each arm, in the order of the sweep.

    results: the result of each arm; missing: the reason why an arm has no result, for the arms without one
    """
    costs = with_active({arm.name: median_costs(run.cost for run in arm.done) for arm in data.arms})
    points: dict[str, tuple[float | None, float | None]] = {}
    for arm in data.arms:
        # The mean of the runs that did not diverge is not the quality of the arm.
        if not diverged_seeds(arm.outcomes(terms.metric)):
            points[arm.name] = (results[arm.name].mean.mean, costs[arm.name].get(terms.cost))
    front = pareto(points, terms.direction, COSTS[terms.cost][0])
    names = metric_names(data.records)
    rows: list[ArmRow] = []
    for arm in data.arms:
        result = results[arm.name]
        rival = terms.rival(arm.name)
        failed = sum(run.state == "failed" for run in arm.runs)
        verdict, explanation = _verdict(result, missing.get(arm.name), failed)
        difference = result.difference
        if difference is not None and not difference.n:
            difference = None
        budget = None
        if arm.tried is not None:
            budget = BudgetRow(settings=arm.tried, chosen=arm.chosen)
        other = {}
        for name in names:
            values = list(arm.values(name).values())
            mean = terms.mean(values)
            interval = clipped(mean.interval, metric_range(name, values))
            other[name] = MeanRow(mean=mean.mean, interval=interval, n=mean.n)
        row = ArmRow(
            name=arm.name,
            n=result.mean.n,
            planned=arm.planned,
            failed=failed,
            values={str(seed): value for seed, value in sorted(arm.values(terms.metric).items())},
            mean=result.mean.mean,
            interval=result.mean.interval,
            interval_kind=result.mean.kind,
            difference=difference,
            verdict=verdict,
            words=explanation,
            overrides=list(arm.overrides),
            levels=dict(arm.levels),
            changes=_changes(data, terms, arm, costs),
            cost=costs[arm.name],
            cost_ratio=ratios(costs[arm.name], costs[rival] if rival else None),
            pareto=arm.name in front,
            budget=budget,
            other=other,
            against=terms.rivals.get(arm.name),
            diverged=diverged_seeds(arm.outcomes(terms.metric)) or None,
        )
        rows.append(row)
    return rows


def _changes(
    data: ComparisonInput, terms: ComparisonTerms, arm: ArmRuns, costs: Mapping[str, Mapping[str, float | None]]
) -> ChangesRow:
    """Return the changes of an arm against its rival.

    Options of a few runs of no sweep are always compared, since the names of such arms do not tell their changes.
    """
    rival = terms.rival(arm.name)
    few = data.question is None and len(data.arms) <= FEW_ARMS
    reference = None
    reference_parameters = None
    if rival:
        reference_parameters = costs[rival]["parameters"]
        if terms.changes or few:
            reference = data.arm(rival)
    parameters = (reference_parameters, costs[arm.name]["parameters"])
    return changes(arm, reference, parameters, modules=terms.changes and len(data.arms) <= MAX_ARMS)


def _verdict(result: ArmResult, missing: MissingResult | None, failed: int) -> tuple[str, str]:
    """Return the verdict and its explanation; for an arm without a result the reason."""
    if missing is None and failed and result.verdict == TOO_FEW:
        cells = "1 cell" if failed == 1 else f"{failed} cells"
        return result.verdict, f"{result.explanation} {cells} failed."
    if missing is None:
        return result.verdict, result.explanation
    if result.verdict == BASELINE:
        return BASELINE, f"{result.explanation} {missing.explanation}"
    return missing.verdict, missing.explanation


def cell_row(record: LoadedRun) -> CellRow:
    """Return the row of a cell, whether it has a run or not. files: the files of its folder that a reader may open."""
    started = record.state not in ("missing", "refused")
    return CellRow(
        arm=record.arm,
        seed=record.seed,
        setting=record.setting,
        state=record.state,
        reason=record.reason,
        run=record.run if started else None,
        seconds=record.summary.get("seconds") if record.done else None,
        started=record.facts.get("time"),
        folder=str(record.path.absolute()) if started else None,
        files=[name for name in FILES if started and (record.path / name).is_file()],
        metrics=record.metrics,
    )


def curves(records: list[LoadedRun], flops: Mapping[str, float | None]) -> list[CurveRow]:
    """Return the curve of each run that has one: steps, samples, FLOPs and seconds, and every metric.

    flops: arm -> FLOPs per sample, for runs that have not recorded them yet
    """
    # All curves are one JSON text in one page: with many runs each has fewer points.
    points = max(MIN_POINTS, min(MAX_POINTS, MAX_TOTAL // max(1, len(records))))
    rows = []
    for record in records:
        if record.state == "refused":
            continue
        row = curve(record, flops.get(record.arm), points)
        if row.step:
            rows.append(row)
    return rows


def curve(record: LoadedRun, flops: float | None = None, points: int = MAX_POINTS) -> CurveRow:
    """Return one run's curve, thinned. A metric that a row does not have is None there."""
    try:
        rows = thin(read_metrics(record.path / FILE), points)
    except OSError:
        rows = []
    names: dict[str, None] = {}
    for row in rows:
        names |= dict.fromkeys(row)
    metrics: dict[str, list[float | None]] = {}
    for name in names:
        if name not in AXES:
            metrics[name] = [rounded(row.get(name)) for row in rows]
    per_sample = record.cost.get("flops_per_sample", flops)
    samples = [row.get("samples") for row in rows]
    computes: list[float | None] = []
    for count in samples:
        if per_sample is None or count is None:
            computes.append(None)
        else:
            computes.append(rounded(per_sample * count))
    return CurveRow(
        arm=record.arm,
        seed=record.seed,
        run=record.run,
        setting=record.setting,
        step=[int(row["step"]) for row in rows],
        samples=samples,
        flops=computes,
        seconds=[row.get("seconds") for row in rows],
        metrics=metrics,
    )


def thin(rows: list[Row], points: int) -> list[Row]:
    """Return at most `points` rows: the last one, then rows with validation metrics, then the rest, evenly spaced."""
    if len(rows) <= points:
        return rows
    validated = []
    for index, row in enumerate(rows):
        if any(name.startswith("val/") for name in row):
            validated.append(index)
    kept = set(_evenly_spaced(validated, points)) | {len(rows) - 1}
    rest = [index for index in range(len(rows)) if index not in kept]
    kept |= set(_evenly_spaced(rest, points - len(kept)))
    return [rows[index] for index in sorted(kept)][-points:]


def rounded(value: float | None) -> float | None:
    """Return a value with six significant digits, enough for a plot."""
    return None if value is None else float(f"{value:.6g}")


def _evenly_spaced(indices: list[int], count: int) -> list[int]:
    if count <= 0:
        return []
    if len(indices) <= count:
        return indices
    if count == 1:
        return indices[-1:]
    return [indices[round(k * (len(indices) - 1) / (count - 1))] for k in range(count)]
