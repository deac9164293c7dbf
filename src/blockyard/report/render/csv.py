"""A comparison as tidy CSV: one row an arm or simple baseline, or one row a run.

Numbers are in full precision, and empty where they are missing. A number that was computed in single precision is
written with the fewest digits that give it back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from blockyard.atomic_files import csv_text
from blockyard.report.arms.simple_baselines import KIND
from blockyard.report.load.document import ArmRow, ComparisonDocument, Difference
from blockyard.runs.costs import COSTS

_TESTS = ("t_p", "permutation_p", "smallest_p", "holm_p", "effect")


def csv(data: ComparisonDocument) -> str:
    """Return one row an arm, and one a simple baseline."""
    others = [name for name in data.metrics if name != data.metric]
    header = ["arm", "baseline", "metric", "direction", "n", "planned", "mean", "low", "high", "interval_kind"]
    header += ["difference", "difference_low", "difference_high", "difference_n", *_TESTS, "verdict", "pareto"]
    header += [*COSTS, *(f"{key}_ratio" for key in COSTS), *others]
    rows = [_arm(data, arm, others) for arm in data.arms]
    for baseline in data.baselines:
        # The name of a simple baseline stands in the arm's column, its kind in the verdict's.
        cells: dict[str, Any] = {"arm": baseline.name, "metric": data.metric, "direction": data.direction}
        if baseline.arms:
            cells["arm"] += f" ({', '.join(baseline.arms)})"
        cells |= {"mean": baseline.value, "verdict": KIND}
        for metric, value in baseline.values.items():
            if metric != data.metric:
                cells[metric] = value
        rows.append([cells.get(column) for column in header])
    return csv_text(header, rows)


def _arm(data: ComparisonDocument, arm: ArmRow, others: Sequence[str]) -> list[Any]:
    gap = arm.difference or Difference(0)
    low, high = arm.interval or (None, None)
    row = [arm.name, arm.against or data.baseline, data.metric, data.direction, arm.n, arm.planned, arm.mean]
    row += [low, high, arm.interval_kind]
    low, high = gap.interval or (None, None)
    row += [gap.mean, low, high, gap.n if arm.difference else None, *(getattr(gap, name) for name in _TESTS)]
    row += [arm.verdict, "yes" if arm.pareto else "no"]
    row += [arm.cost.get(key) for key in COSTS]
    row += [arm.cost_ratio.get(key) for key in COSTS]
    return row + [arm.other[name].mean for name in others]


def runs(data: ComparisonDocument) -> str:
    """Return one row a run: arm, seed, setting, state and every metric."""
    settings = list(dict.fromkeys(key for cell in data.cells for key in cell.setting))
    header = ["arm", "seed", *settings, "state", "reason", "run", *data.metrics]
    rows = []
    for cell in data.cells:
        row = [cell.arm, cell.seed, *(cell.setting.get(key) for key in settings)]
        row += [cell.state, cell.reason, cell.run, *(cell.metrics.get(name) for name in data.metrics)]
        rows.append(row)
    return csv_text(header, rows)
