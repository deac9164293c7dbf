"""Load what the user selects for a comparison: a sweep, several sweeps, or any runs."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from blockyard.errors import UserError
from blockyard.report.load.arms import ComparisonInput
from blockyard.report.load.from_plan import from_plan
from blockyard.report.load.from_runs import from_runs
from blockyard.report.load.plan_drift import plan_drift
from blockyard.report.load.resolve import Resolved, resolve
from blockyard.report.load.search_trials import keep_best_trials
from blockyard.sweep.plan.sweep_plan import SweepPlan

Selection = SweepPlan | str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


def load_selection(
    selection: Selection,
    *,
    outputs: str | os.PathLike[str] = "outputs",
    by: str | None = None,
    task: int = 0,
) -> ComparisonInput:
    """Return the arms of a sweep as planned, or any runs as arms inferred from their configs.

    selection: a plan, or paths, names and ids: a sweep's folder, name or file; run folders; a folder of many runs
    by: a config key whose values are the arms; task: which of several, for runs that no sweep put together
    Raises UserError for what does not exist or cannot be compared.
    """
    if isinstance(selection, SweepPlan):
        plans, resolved = [selection], Resolved((), ())
    else:
        args = [selection] if isinstance(selection, str | os.PathLike) else list(selection)
        resolved = resolve(args, outputs)
        plans = [SweepPlan.load(folder) for folder in resolved.sweeps]
    one_sweep = len(plans) == 1 and not resolved.runs and not by
    result = from_plan(plans[0]) if one_sweep else _merge(plans, resolved, by, task)
    result.warnings += [text for path in resolved.files for plan in plans if (text := plan_drift(path, plan))]
    return result


def _merge(plans: list[SweepPlan], resolved: Resolved, by: str | None, task: int) -> ComparisonInput:
    """Return the runs of several sweeps, of no sweep, or of one sweep regrouped by a key."""
    paths: dict[Path, None] = dict.fromkeys(resolved.runs)
    sweeps = [from_plan(plan) for plan in plans]
    not_started = 0
    for sweep in sweeps:
        runs = [run for arm in sweep.arms for run in arm.runs]
        not_started += sum(run.state == "missing" for run in runs)
        paths |= dict.fromkeys(run.path.absolute() for run in runs if run.state != "missing")
    if not paths:
        raise UserError("nothing to compare yet: no cell of the sweep has been started")
    selected, notes = (list(paths), []) if by else keep_best_trials(list(paths), resolved.listed)
    names = [plan.name for plan in plans] or [path.name for path in resolved.runs[:1]]
    result = from_runs(selected, by=by, title=" and ".join(names) if plans else _folder_name(paths), task=task)
    result.warnings += notes
    if not_started:
        result.warnings.append(f"{not_started} cells of {', '.join(names)} have not been started")
    if sweeps and not resolved.runs:
        _inherit(result, sweeps, by)
    return result


def _folder_name(runs: Iterable[Path]) -> str:
    """Return the name of the folder that holds all runs, NAME-HASH/sSEED each; "runs" where there are several."""
    folders = {path.absolute().parents[1] for path in runs}
    return (folders.pop().name if len(folders) == 1 else "") or "runs"


def _inherit(result: ComparisonInput, sweeps: list[ComparisonInput], by: str | None) -> None:
    """Take over what the sweeps say about their metric; what they say about their own arms does not apply."""
    metrics = {(sweep.metric, sweep.direction) for sweep in sweeps}
    if len(metrics) == 1:
        result.metric, result.direction = next(iter(metrics))
    if len(sweeps) > 1:
        return
    (sweep,) = sweeps
    question = sweep.question or {}
    result.question = {**question, "expect": None, "baseline": None}
    dropped = [f"{key} ({question[key]})" for key in ("expect", "baseline") if question.get(key)]
    if dropped:
        result.warnings.append(
            f"the arms are the values of {by}, not those of {sweep.title}; ignored, because they refer to its own "
            f"arms: {', '.join(dropped)}"
        )
