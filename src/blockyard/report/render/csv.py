"""A comparison as tidy CSV: one row an arm or simple baseline, or one row a run.

Numbers are in full precision, and empty where they are missing. A number that was computed in single precision is
written with the fewest digits that give it back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from blockyard.atomic_files import csv_text
from blockyard.report.arms.simple_baselines import KIND
from blockyard.report.load.document import ArmRow, BaselineRow, ComparisonDocument, GapRow
from blockyard.runs.costs import COSTS

_GAP = ("t_p", "permutation_p", "smallest_p", "holm_p", "effect")


def csv(data: ComparisonDocument) -> str:
    """Return one row an arm, and one a simple baseline. data: `Comparison.as_dict()`."""
    others = [name for name in data["metrics"] if name != data["metric"]]
    header = ["arm", "baseline", "metric", "direction", "n", "planned", "mean", "low", "high", "interval_kind"]
    header += ["difference", "difference_low", "difference_high", "difference_n", *_GAP, "verdict", "pareto"]
    header += [*COSTS, *(f"{key}_ratio" for key in COSTS), *others]
    rows = [_arm(data, arm, others) for arm in data["arms"]]
    return csv_text(header, [*rows, *(_baseline(data, row, header) for row in data.get("baselines") or [])])


def _baseline(data: ComparisonDocument, row: BaselineRow, header: Sequence[str]) -> list[Any]:
    """A simple baseline: its name in the place of the arm's, its values, and its kind in that of the verdict."""
    name = f"{row['name']} ({', '.join(row['arms'])})" if row["arms"] else row["name"]
    cells = {"arm": name, "metric": data["metric"], "direction": data["direction"], "mean": row["value"]}
    cells |= {"verdict": KIND, **{key: value for key, value in row["values"].items() if key != data["metric"]}}
    return [cells.get(column) for column in header]


def _arm(data: ComparisonDocument, arm: ArmRow, others: Sequence[str]) -> list[Any]:
    gap: GapRow = arm["difference"] or {}
    rival = arm.get("against", data["baseline"])
    row = [arm["name"], rival, data["metric"], data["direction"], arm["n"], arm["planned"], arm["mean"]]
    row += [*(arm["interval"] or (None, None)), arm["interval_kind"], gap.get("mean")]
    row += [*(gap.get("interval") or (None, None)), gap.get("n"), gap.get("t_p"), gap.get("permutation_p")]
    row += [gap.get("smallest_p"), gap.get("holm_p"), gap.get("effect")]
    row += [arm["verdict"], "yes" if arm["pareto"] else "no"]
    row += [arm["cost"].get(key) for key in COSTS] + [arm["cost_ratio"].get(key) for key in COSTS]
    return row + [arm["other"][name]["mean"] for name in others]


def runs(data: ComparisonDocument) -> str:
    """Return one row a run: arm, seed, setting, state and every metric."""
    settings = list(dict.fromkeys(key for cell in data["cells"] for key in cell["setting"]))
    header = ["arm", "seed", *settings, "state", "reason", "run", *data["metrics"]]
    rows = (
        [
            *(cell[key] for key in ("arm", "seed")),
            *(cell["setting"].get(key) for key in settings),
            *(cell[key] for key in ("state", "reason", "run")),
            *(cell["metrics"].get(name) for name in data["metrics"]),
        ]
        for cell in data["cells"]
    )
    return csv_text(header, rows)
