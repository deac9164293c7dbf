"""The rows of a comparison as plain data: one for each arm, one for each cell, and the learning curve of each run.

A curve is read from metrics.csv and thinned for a page.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from blockyard.report.arms.changes import FEW_ARMS, MAX_ARMS, changes
from blockyard.report.arms.missing import MissingResult
from blockyard.report.arms.terms import ComparisonTerms
from blockyard.report.load.arms import ArmRuns, ComparisonInput
from blockyard.report.load.costs import median_costs, pareto, ratios, with_active
from blockyard.report.load.document import ArmRow, BudgetRow, CellRow, ChangesRow, CurveRow, MeanRow
from blockyard.report.load.metrics import metric_names
from blockyard.report.load.run_record import LoadedRun
from blockyard.report.stats.metric_range import clipped, metric_range
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

    results: of every arm; missing: why an arm has no result, for the arms without one
    """
    costs = with_active({arm.name: median_costs(run.cost for run in arm.done) for arm in data.arms})
    points = {name: (results[name].mean.mean, costs[name].get(terms.cost)) for name in costs}
    front = pareto(points, terms.direction, COSTS[terms.cost][0])
    names = metric_names(data.records)
    rows: list[ArmRow] = []
    for arm in data.arms:
        result = results[arm.name]
        rival = terms.rival(arm.name)
        failed = sum(run.state == "failed" for run in arm.runs)
        verdict, explanation = _verdict(result, missing.get(arm.name), failed)
        row = ArmRow(
            name=arm.name,
            n=result.mean.n,
            planned=arm.planned,
            failed=failed,
            values={str(seed): value for seed, value in sorted(arm.values(terms.metric).items())},
            mean=result.mean.mean,
            interval=result.mean.interval,
            interval_kind=result.mean.kind,
            difference=result.difference if result.difference and result.difference.n else None,
            verdict=verdict,
            words=explanation,
            overrides=list(arm.overrides),
            levels=dict(arm.levels),
            changes=_changes(data, terms, arm, costs),
            cost=costs[arm.name],
            cost_ratio=ratios(costs[arm.name], costs[rival] if rival else None),
            pareto=arm.name in front,
            budget=BudgetRow(settings=arm.tried, chosen=arm.chosen) if arm.tried is not None else None,
            other={name: _mean(arm, name, terms) for name in names},
            against=terms.rivals.get(arm.name),
        )
        rows.append(row)
    return rows


def _changes(
    data: ComparisonInput, terms: ComparisonTerms, arm: ArmRuns, costs: Mapping[str, Mapping[str, float | None]]
) -> ChangesRow:
    """Return the changes of an arm against its rival.

    Options are compared for a few runs of no sweep anyway, whose arms do not say what they change.
    """
    rival = terms.rival(arm.name)
    few = data.question is None and len(data.arms) <= FEW_ARMS
    reference = data.arm(rival) if rival and (terms.changes or few) else None
    parameters = (costs[rival]["parameters"] if rival else None, costs[arm.name]["parameters"])
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


def _mean(arm: ArmRuns, metric: str, terms: ComparisonTerms) -> MeanRow:
    values = list(arm.values(metric).values())
    mean = terms.mean(values)
    return MeanRow(mean=mean.mean, interval=clipped(mean.interval, metric_range(metric, values)), n=mean.n)


def curves(records: list[LoadedRun], flops: Mapping[str, float | None]) -> list[CurveRow]:
    """Return the curve of each run that has one: steps, samples, FLOPs and seconds, and every metric.

    flops: per sample, by arm, for runs that have not recorded it yet
    """
    # All curves are one JSON text in one page: with many runs each has fewer points.
    points = max(MIN_POINTS, min(MAX_POINTS, MAX_TOTAL // max(1, len(records))))
    rows = [curve(record, flops.get(record.arm), points) for record in records if record.state != "refused"]
    return [row for row in rows if row.step]


def curve(record: LoadedRun, flops: float | None = None, points: int = MAX_POINTS) -> CurveRow:
    """Return one run's curve, thinned. A metric that a row does not have is None there."""
    rows = thin(_read_rows(record.path), points)
    per_sample = record.cost.get("flops_per_sample", flops)
    metrics = [name for name in dict.fromkeys(name for row in rows for name in row) if name not in AXES]
    samples = [row.get("samples") for row in rows]
    return CurveRow(
        arm=record.arm,
        seed=record.seed,
        run=record.run,
        setting=record.setting,
        step=[int(row["step"]) for row in rows],
        samples=samples,
        flops=[None if per_sample is None or count is None else rounded(per_sample * count) for count in samples],
        seconds=[row.get("seconds") for row in rows],
        metrics={name: [rounded(row.get(name)) for row in rows] for name in metrics},
    )


def thin(rows: list[Row], points: int) -> list[Row]:
    """Return at most `points` rows: the last one, then rows with validation metrics, then the rest, evenly spaced."""
    if len(rows) <= points:
        return rows
    validated = [index for index, row in enumerate(rows) if any(name.startswith("val/") for name in row)]
    kept = set(_evenly_spaced(validated, points)) | {len(rows) - 1}
    rest = [index for index in range(len(rows)) if index not in kept]
    kept |= set(_evenly_spaced(rest, points - len(kept)))
    return [rows[index] for index in sorted(kept)][-points:]


def rounded(value: float | None) -> float | None:
    """Return a value with six significant digits, enough for a plot."""
    return None if value is None else float(f"{value:.6g}")


def _read_rows(folder: Path) -> list[Row]:
    try:
        return read_metrics(folder / FILE)
    except OSError:
        return []


def _evenly_spaced(indices: list[int], count: int) -> list[int]:
    if count <= 0:
        return []
    if len(indices) <= count:
        return indices
    if count == 1:
        return indices[-1:]
    return [indices[round(k * (len(indices) - 1) / (count - 1))] for k in range(count)]
