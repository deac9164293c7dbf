"""The rows of a comparison: one for each arm, one for each cell."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from blockyard.report import cost_table
from blockyard.report.changes import MOST_ARMS, changes
from blockyard.report.load.groups import Gathered, Group
from blockyard.report.load.run_record import Record
from blockyard.report.missing_arms import Absent, absent
from blockyard.report.stats.intervals import mean_of
from blockyard.report.stats.paired import EFFECT, Difference
from blockyard.report.stats.statistics import Judged
from blockyard.report.stats.verdict import BASELINE, FEW


def rows(
    found: Gathered,
    judged: dict[str, Judged],
    baseline: str | None,
    metric: str,
    metrics: list[str],
    direction: str,
    axis: str,
    *,
    told: bool = True,
) -> list[dict[str, Any]]:
    """Every arm, in the order of the question.

    axis: the cost that quality is weighed against; told: whether what an arm changes is worked out
    """
    costs = {group.name: cost_table.over_runs(run.cost for run in group.done) for group in found.groups}
    points = {name: (judged[name].mean.mean, costs[name].get(axis)) for name in costs}
    front = cost_table.pareto(points, direction, cost_table.KEYS[axis][0])
    reference = found.named(baseline) if baseline and told else None
    meta_model = len(found.groups) <= MOST_ARMS
    made = []
    for group in found.groups:
        one = judged[group.name]
        counts = (costs[baseline]["parameters"] if baseline else None, costs[group.name]["parameters"])
        failed = sum(run.state == "failed" for run in group.runs)
        lacking = absent(group, metric, found.records)
        verdict, words = _judged(one, lacking, failed)
        made.append(
            {
                "name": group.name,
                "n": one.mean.n,
                "planned": group.planned,
                "failed": failed,
                "values": {str(seed): value for seed, value in sorted(group.values(metric).items())},
                "mean": one.mean.mean,
                "interval": one.mean.interval,
                "interval_kind": one.mean.kind,
                "difference": difference(one.difference),
                "verdict": verdict,
                "words": words,
                "overrides": list(group.overrides),
                "levels": dict(group.levels),
                "changes": changes(group, reference, counts, modules=meta_model),
                "cost": costs[group.name],
                "cost_ratio": cost_table.ratios(costs[group.name], costs[baseline] if baseline else None),
                "pareto": group.name in front,
                "budget": {"settings": group.tried, "chosen": group.chosen} if group.tried is not None else None,
                "other": {name: _other(group, name) for name in metrics},
            }
        )
    return made


def _judged(one: Judged, lacking: Absent | None, failed: int) -> tuple[str, str]:
    """The verdict and its words; of an arm without figures what became of it."""
    if lacking is None:
        many = f" {failed} cell{'s' if failed > 1 else ''} failed." if failed and one.verdict == FEW else ""
        return one.verdict, one.words + many
    if one.verdict == BASELINE:
        return BASELINE, f"{one.words} {lacking.words}"
    return lacking.verdict, lacking.words


def difference(found: Difference | None) -> dict[str, Any] | None:
    """A difference as a comparison holds it; None where there is no common seed."""
    if found is None or not found.n:
        return None
    made = {key: value for key, value in asdict(found).items() if key != "deviation"}
    return made | {"effect_kind": EFFECT}


def cell(record: Record) -> dict[str, Any]:
    """A run, or a cell that has none."""
    return {
        "arm": record.arm,
        "seed": record.seed,
        "setting": record.setting,
        "state": record.state,
        "reason": record.reason,
        "run": record.run if record.state not in ("missing", "refused") else None,
        "metrics": record.metrics,
    }


def flops(group: Group) -> float | None:
    """FLOPs per sample of an arm, for the curves of its runs that are not done."""
    return cost_table.over_runs(run.cost for run in group.done)["flops_per_sample"]


def _other(group: Group, metric: str) -> dict[str, Any]:
    found = mean_of(list(group.values(metric).values()))
    return {"mean": found.mean, "interval": found.interval, "n": found.n}
