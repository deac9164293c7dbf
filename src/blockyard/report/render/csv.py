"""A comparison as CSV: tidy, one row an arm, or one row a run; numbers in full, empty where there is none."""

from __future__ import annotations

import csv as writer
import io
from collections.abc import Iterable, Sequence
from typing import Any

from blockyard.report.cost_table import KEYS

_GAP = ("t_p", "permutation_p", "smallest_p", "holm_p", "effect")


def csv(data: dict[str, Any]) -> str:
    """One row an arm, of what `Comparison.as_dict()` gives."""
    others = [name for name in data["metrics"] if name != data["metric"]]
    heads = ["arm", "baseline", "metric", "direction", "n", "planned", "mean", "low", "high", "interval_kind"]
    heads += ["difference", "difference_low", "difference_high", "difference_n", *_GAP, "verdict", "pareto"]
    heads += [*KEYS, *(f"{key}_ratio" for key in KEYS), *others]
    return _text(heads, (_arm(data, arm, others) for arm in data["arms"]))


def _arm(data: dict[str, Any], arm: dict[str, Any], others: Sequence[str]) -> list[Any]:
    gap = arm["difference"] or {}
    row = [arm["name"], data["baseline"], data["metric"], data["direction"], arm["n"], arm["planned"], arm["mean"]]
    row += [*(arm["interval"] or (None, None)), arm["interval_kind"], gap.get("mean")]
    row += [*(gap.get("interval") or (None, None)), gap.get("n"), *(gap.get(key) for key in _GAP)]
    row += [arm["verdict"], "yes" if arm["pareto"] else "no"]
    row += [arm["cost"].get(key) for key in KEYS] + [arm["cost_ratio"].get(key) for key in KEYS]
    return row + [arm["other"][name]["mean"] for name in others]


def runs(data: dict[str, Any]) -> str:
    """One row a run: arm, seed, setting, state and every metric."""
    settings = list(dict.fromkeys(key for cell in data["cells"] for key in cell["setting"]))
    heads = ["arm", "seed", *settings, "state", "reason", "run", *data["metrics"]]
    rows = (
        [
            *(cell[key] for key in ("arm", "seed")),
            *(cell["setting"].get(key) for key in settings),
            *(cell[key] for key in ("state", "reason", "run")),
            *(cell["metrics"].get(name) for name in data["metrics"]),
        ]
        for cell in data["cells"]
    )
    return _text(heads, rows)


def _text(heads: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    out = io.StringIO()
    made = writer.writer(out, lineterminator="\n")
    made.writerow(heads)
    made.writerows(["" if cell is None else cell for cell in row] for row in rows)
    return out.getvalue()
