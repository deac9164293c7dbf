"""A sweep's answer at W&B: a summary run beside the cells' runs, and a workspace with the page's panels.

The summary run is of the sweep's group, with job type `comparison`: the table, the curves and the
figures of each arm, with their better direction. It is offline where the cells' runs are, it comes
back within 12 s, and nothing that happens to it reaches the sweep.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from blockyard.atomic_files import read_json, write_json
from blockyard.engine.loggers._wandb import resolve, tear_down
from blockyard.engine.loggers._wandb_run import Place, bounded, close_run, conclude, define, open_run
from blockyard.report.wandb.workspace import workspace
from blockyard.runs.redact import redact, redact_text
from blockyard.sweep.plan.sweep_plan import SweepPlan

__all__ = ["mirror", "workspace"]

log = logging.getLogger("blockyard")

FILE = "wandb.json"  # in the sweep's folder: id and what was said last
JOB = "comparison"
_SECONDS = 12.0
_COSTS = ("parameters", "flops_per_sample", "step_seconds", "samples_per_second", "peak_memory")


def mirror(comparison: Mapping[str, Any], plan: SweepPlan, *, seconds: float = _SECONDS) -> str | None:
    """Log a comparison to the summary run where the sweep's logger is W&B; what to tell the user, or None.

    Says nothing twice: the same figures are logged once. Never raises, and is back after `seconds`.
    """
    node = _logger(plan)
    if node is None or resolve(str(node.get("mode") or "auto")) == "disabled":
        return None
    content = _content(comparison)
    mark = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]
    known = _known(plan.folder)
    if known.get("said") == mark:
        return None
    group = str(node.get("group") or plan.name)
    place = Place(
        folder=plan.folder,
        # The same run again when seeds are added; another sweep of this name elsewhere is another run.
        id=str(known.get("id") or hashlib.sha256(str(plan.folder).encode()).hexdigest()[:8]),
        project=str(node.get("project") or "blockyard"),
        entity=node.get("entity"),
        group=group,
        job_type=JOB,
        name=f"{plan.name}/comparison",
        tags=[plan.name, JOB],
    )
    mode = resolve(str(node.get("mode") or "auto"))
    question = redact({"question": dict(comparison.get("question") or {}), "metric": comparison["metric"]})
    failure = bounded(lambda: _tell(place, mode, question, content), seconds)
    if failure is not None:
        tear_down()
        log.warning("W&B was not told of the comparison: %s; the sweep's folder has it", redact_text(failure)[:200])
        return None
    write_json(plan.folder / FILE, {"id": place.id, "project": place.project, "group": group, "said": mark})
    return f"W&B: {place.name} in group {group} of project {place.project}"


def _logger(plan: SweepPlan) -> dict[str, Any] | None:
    """The W&B logger's node of the sweep's arms, or None where they have another."""
    for variant in plan.variants.values():
        node = variant.config.get("logger")
        if isinstance(node, dict) and str(node.get("_target_", "")).endswith("loggers.wandb.Wandb"):
            return node
    return None


def _known(folder: Path) -> dict[str, Any]:
    try:
        found = read_json(folder / FILE)
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _content(comparison: Mapping[str, Any]) -> dict[str, Any]:
    """What is said, as plain data: tables, curves, figures and their directions, words."""
    metric, ways = str(comparison["metric"]), dict(comparison.get("directions") or {})
    ways.setdefault(metric, str(comparison["direction"]))
    figures: dict[str, float] = {}
    for arm in comparison["arms"]:
        others = {name: (found or {}).get("mean") for name, found in (arm.get("other") or {}).items()}
        for name, value in {**others, metric: arm.get("mean")}.items():
            if isinstance(value, int | float) and math.isfinite(value):
                figures[f"{arm['name']}/{name}"] = float(value)
    verdict = comparison.get("expect") or {}
    return {
        "arms": [_row(arm) for arm in comparison["arms"]],
        "cells": [
            {"arm": cell["arm"], "seed": cell["seed"], "state": cell["state"], "reason": cell.get("reason")}
            | {"run": cell.get("run"), metric: (cell.get("metrics") or {}).get(metric)}
            for cell in comparison.get("cells") or []
        ],
        "curves": _curves(comparison, f"val/{metric.partition('/')[2] or metric}"),
        "figures": figures,
        "directions": {name: ways[name.partition("/")[2]] for name in figures if name.partition("/")[2] in ways},
        "words": {
            "answer": comparison.get("answer"),
            "claim": comparison.get("claim"),
            "expect": verdict.get("text"),
            "verdict": verdict.get("verdict"),
            "baseline": comparison.get("baseline"),
            "metric": metric,
        },
    }


def _row(arm: Mapping[str, Any]) -> dict[str, Any]:
    difference, cost = arm.get("difference") or {}, arm.get("cost") or {}
    low, high = arm.get("interval") or (None, None)
    below, above = difference.get("interval") or (None, None)
    return {
        "arm": arm["name"],
        "n": arm.get("n"),
        "mean": arm.get("mean"),
        "low": low,
        "high": high,
        "difference": difference.get("mean"),
        "difference low": below,
        "difference high": above,
        "p": difference.get("t_p"),
        "permutation p": difference.get("permutation_p"),
        "Holm p": difference.get("holm_p"),
        "verdict": arm.get("verdict"),
        **{name: cost.get(name) for name in _COSTS},
        "overrides": " ".join(arm.get("overrides") or ()),
    }


def _curves(comparison: Mapping[str, Any], metric: str) -> dict[str, list[list[float]]]:
    """Arm -> [steps, mean over seeds], at the steps that every seed of the arm has."""
    runs: dict[str, list[dict[float, float]]] = {}
    for curve in comparison.get("curves") or []:
        values = (curve.get("metrics") or {}).get(metric) or []
        points = {x: y for x, y in zip(curve.get("step") or [], values, strict=False) if y is not None}
        if points:
            runs.setdefault(curve["arm"], []).append(points)
    found = {}
    for arm, many in runs.items():
        steps = sorted(set.intersection(*(set(points) for points in many)))
        if steps:
            found[arm] = [steps, [math.fsum(points[x] for points in many) / len(many) for x in steps]]
    return found


def _tell(place: Any, mode: Any, question: dict[str, Any], content: dict[str, Any]) -> None:
    import wandb

    run = open_run(place, question, mode)
    define(run, content["directions"])
    metric, arms = content["words"]["metric"], _table(content["arms"])
    said: dict[str, Any] = {"comparison": arms, "cells": _table(content["cells"]), **content["figures"]}
    said["plots/arms"] = wandb.plot.bar(_table(content["arms"], ("arm", "mean")), "arm", "mean", title=metric)
    said["plots/cost"] = wandb.plot.scatter(
        _table(content["arms"], ("arm", "flops_per_sample", "mean")),
        "flops_per_sample",
        "mean",
        title=f"{metric}, cost",
    )
    curves = content["curves"]
    if curves:
        xs, ys = zip(*curves.values(), strict=True)
        said["plots/curves"] = wandb.plot.line_series(list(xs), list(ys), list(curves), "validation", "step")
    run.log(said)
    conclude(
        run, {name: value for name, value in {**content["figures"], **content["words"]}.items() if value is not None}
    )
    close_run(run)


def _table(rows: list[dict[str, Any]], columns: tuple[str, ...] | None = None) -> Any:
    import wandb

    names = list(columns or (rows[0] if rows else ()))
    return wandb.Table(columns=names, data=[[row.get(name) for name in names] for row in rows], allow_mixed_types=True)
