"""Log the comparison of a sweep to W&B as a summary run in addition to the runs of its cells.

The summary run belongs to the sweep's group and has the job type `comparison`. It holds the table, the learning
curves and each arm's metrics with their better direction. It is offline where the cells' runs are. Logging takes at
most 12 s, and its errors never reach the sweep.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import math
from typing import Any

from blockyard.atomic_files import read_json, write_json
from blockyard.config.tree import Node, is_node
from blockyard.engine.loggers._wandb import (
    RunSettings,
    bounded,
    close_run,
    conclude,
    define,
    open_run,
    resolve,
    tear_down,
)
from blockyard.engine.loggers._wandb_artifacts import log_sweep
from blockyard.report.home.stale import DATA, PAGE
from blockyard.report.load.document import ArmRow, ComparisonDocument, Difference
from blockyard.runs.folder import RUN, read_facts
from blockyard.runs.lock import exclusive
from blockyard.runs.metric_name import MetricName
from blockyard.runs.redact import redact, redact_text
from blockyard.sweep.plan.sweep_plan import FILE as PLAN
from blockyard.sweep.plan.sweep_plan import SweepPlan

log = logging.getLogger("blockyard")

FILE = "wandb.json"  # in the sweep's folder: the id of the summary run, and a hash of what was logged last
JOB_TYPE = "comparison"
_TIMEOUT = 12.0
_COSTS = ("parameters", "flops_per_sample", "step_seconds", "samples_per_second", "mfu", "peak_memory")


def mirror(comparison: ComparisonDocument, plan: SweepPlan, *, seconds: float = _TIMEOUT) -> str | None:
    """Log a comparison to the summary run if the sweep's logger is W&B; return a message for the user, or None.

    The same content is logged only once. Never raises, and returns after `seconds` at the latest.
    """
    node = _logger(plan)
    if node is None or resolve(str(node.get("mode") or "auto")) == "disabled":
        return None
    content = _content(comparison)
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]
    try:
        previous = read_json(plan.folder / FILE)
    except (OSError, ValueError):
        previous = {}
    if not isinstance(previous, dict):
        previous = {}
    if previous.get("said") == digest:
        return None
    group = str(node.get("group") or plan.name)
    place = RunSettings(
        folder=plan.folder,
        # The same run when seeds are added; a sweep of the same name in another folder is another run.
        id=str(previous.get("id") or hashlib.sha256(str(plan.folder).encode()).hexdigest()[:8]),
        project=str(node.get("project") or "blockyard"),
        entity=node.get("entity"),
        group=group,
        job_type=JOB_TYPE,
        name=f"{plan.name}/comparison",
        tags=[plan.name, JOB_TYPE],
    )
    mode = resolve(str(node.get("mode") or "auto"))
    question = redact({"question": dict(comparison.question or {}), "metric": comparison.metric})
    files = (PLAN, DATA, PAGE) if str(node.get("artifacts") or "none") != "none" else ()

    def work() -> None:
        run = _log_run(place, mode, question, content)
        if files:
            log_sweep(run, plan.name, plan.folder, files, {"runs": _weights(plan), **content["texts"]})
        close_run(run)

    failure = bounded(work, seconds)
    if failure is not None:
        tear_down()
        log.warning(
            "the comparison was not logged to W&B: %s; it is saved in the sweep's folder", redact_text(failure)[:200]
        )
        return None
    # Without the file the same content is logged again, which does no harm.
    with contextlib.suppress(OSError), exclusive(plan.folder):
        write_json(plan.folder / FILE, {"id": place.id, "project": place.project, "group": group, "said": digest})
    return f"W&B: {place.name} in group {group} of project {place.project}"


def _logger(plan: SweepPlan) -> Node | None:
    """Return the config of the arms' W&B logger; None where they use another logger."""
    for variant in plan.variants.values():
        logger = variant.config.get("logger")
        nodes = [logger]
        if isinstance(logger, dict) and not is_node(logger):  # several loggers by name
            nodes = list(logger.values())
        for node in nodes:
            if is_node(node) and str(node["_target_"]).endswith("loggers.wandb.Wandb"):
                return dict(node)
    return None


def _content(comparison: ComparisonDocument) -> dict[str, Any]:
    """Return the content of the summary run as plain data: tables, curves, metrics and their directions, texts."""
    metric = comparison.metric
    directions = {metric: comparison.direction, **comparison.directions}
    metrics: dict[str, float] = {}
    metric_directions: dict[str, str] = {}
    for arm in comparison.arms:
        means = {name: other.mean for name, other in arm.other.items()}
        means[metric] = arm.mean
        for name, value in means.items():
            if value is None:
                continue
            metrics[f"{arm.name}/{name}"] = float(value)
            if name in directions:
                metric_directions[f"{arm.name}/{name}"] = directions[name]
    cells = []
    for cell in comparison.cells:
        row = {"arm": cell.arm, "seed": cell.seed, "state": cell.state, "reason": cell.reason, "run": cell.run}
        cells.append({**row, metric: cell.metrics.get(metric)})
    validation = str(MetricName.parse(metric).on("val").logged())
    return {
        "arms": [_row(arm) for arm in comparison.arms],
        "cells": cells,
        "curves": _curves(comparison, validation),
        "metrics": metrics,
        "directions": metric_directions,
        "texts": {
            "answer": comparison.answer,
            "better_baseline": comparison.better_baseline,
            "claim": comparison.claim,
            "expect": comparison.expect.text if comparison.expect else None,
            "verdict": comparison.expect.judged if comparison.expect else None,
            "baseline": comparison.baseline,
            "metric": metric,
        },
    }


def _row(arm: ArmRow) -> dict[str, Any]:
    gap = arm.difference or Difference(0)
    low, high = arm.interval or (None, None)
    below, above = gap.interval or (None, None)
    return {
        "arm": arm.name,
        "n": arm.n,
        "mean": arm.mean,
        "low": low,
        "high": high,
        "difference": gap.mean,
        "difference low": below,
        "difference high": above,
        "p": gap.t_p,
        "permutation p": gap.permutation_p,
        "Holm p": gap.holm_p,
        "verdict": arm.verdict,
        **{name: arm.cost.get(name) for name in _COSTS},
        "overrides": " ".join(arm.overrides),
    }


def _curves(comparison: ComparisonDocument, metric: str) -> dict[str, tuple[list[int], list[float]]]:
    """Return arm -> [steps, mean over seeds], at the steps that every seed of the arm has."""
    runs: dict[str, list[dict[int, float]]] = {}
    for curve in comparison.curves:
        points: dict[int, float] = {}
        # A curve without the metric has no values at all.
        for step, value in zip(curve.step, curve.metrics.get(metric, []), strict=False):
            if value is not None and math.isfinite(value):
                points[step] = value
        if points:
            runs.setdefault(curve.arm, []).append(points)
    curves = {}
    for arm, seeds in runs.items():
        steps = sorted(set.intersection(*map(set, seeds)))
        means = []
        for step in steps:
            means.append(math.fsum(points[step] for points in seeds) / len(seeds))
        if steps:
            curves[arm] = steps, means
    return curves


def _weights(plan: SweepPlan) -> dict[str, str]:
    """Return run -> artifact with its weights, for each cell that W&B has recorded."""
    artifacts = {}
    for cell in plan.cells:
        recorded = read_facts(plan.path(cell) / RUN).get("wandb") or {}
        if recorded.get("id"):
            artifacts[cell.run] = f"weights-{recorded['id']}:best"
    return artifacts


def _log_run(place: Any, mode: Any, question: dict[str, Any], content: dict[str, Any]) -> Any:
    """Log everything but files, and return the open run."""
    import wandb

    run = open_run(place, question, mode)
    define(run, content["directions"])
    metric = content["texts"]["metric"]
    values: dict[str, Any] = {
        "comparison": _table(content["arms"]),
        "cells": _table(content["cells"]),
        **content["metrics"],
    }
    values["plots/arms"] = wandb.plot.bar(_table(content["arms"], ("arm", "mean")), "arm", "mean", title=metric)
    values["plots/cost"] = wandb.plot.scatter(
        _table(content["arms"], ("arm", "flops_per_sample", "mean")),
        "flops_per_sample",
        "mean",
        title=f"{metric} by training FLOPs per sample",
    )
    curves = content["curves"]
    if curves:
        xs, ys = zip(*curves.values(), strict=True)
        values["plots/curves"] = wandb.plot.line_series(list(xs), list(ys), list(curves), "validation", "step")
    run.log(values)
    summary = {**content["metrics"], **content["texts"]}
    conclude(run, {name: value for name, value in summary.items() if value is not None})
    return run


def _table(rows: list[dict[str, Any]], columns: tuple[str, ...] | None = None) -> Any:
    import wandb

    names: list[str | int] = []
    if columns:
        names = list(columns)
    elif rows:
        names = list(rows[0])
    data = [[row.get(str(name)) for name in names] for row in rows]
    return wandb.Table(columns=names, data=data, allow_mixed_types=True)
