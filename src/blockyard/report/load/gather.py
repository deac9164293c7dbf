"""From what the user names to what is compared."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from blockyard.errors import UserError
from blockyard.report.load.from_plan import from_plan
from blockyard.report.load.from_runs import from_runs
from blockyard.report.load.from_searches import of_searches
from blockyard.report.load.groups import Gathered
from blockyard.report.load.named_runs import Named, named
from blockyard.report.load.plan_check import since_frozen
from blockyard.sweep.plan.sweep_plan import SweepPlan

Selection = SweepPlan | str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


def gather(
    asked: Selection,
    *,
    outputs: str | os.PathLike[str] = "outputs",
    by: str | None = None,
) -> Gathered:
    """A sweep as it was planned, or any runs as arms that are found from their configs.

    asked: a plan, or words and paths: a sweep's folder, name or file; runs' folders; a folder of many; ids
    by: a config key whose values are the arms
    Raises UserError for what is not there or cannot be compared.
    """
    if isinstance(asked, SweepPlan):
        plans, meant = [asked], Named((), ())
    else:
        words = [asked] if isinstance(asked, str | os.PathLike) else list(asked)
        meant = named(words, outputs)
        plans = [SweepPlan.load(folder) for folder in meant.sweeps]
    made = from_plan(plans[0]) if len(plans) == 1 and not meant.runs and not by else _together(plans, meant, by)
    made.warnings += [said for path in meant.files for plan in plans if (said := since_frozen(path, plan))]
    return made


def _together(plans: list[SweepPlan], meant: Named, by: str | None) -> Gathered:
    """The runs of several sweeps, of none, or of one by the values of a key."""
    every: dict[Path, None] = dict.fromkeys(meant.runs)
    gathered = [from_plan(plan) for plan in plans]
    lacking = 0
    for found in gathered:
        runs = [run for group in found.groups for run in group.runs]
        lacking += sum(run.state == "missing" for run in runs)
        every |= dict.fromkeys(run.path.absolute() for run in runs if run.state != "missing")
    if not every:
        raise UserError("there is nothing to compare yet: no cell of the sweep has been started")
    paths, notes = (list(every), []) if by else of_searches(list(every), meant.listed)
    names = [plan.name for plan in plans] or [Path(str(path)).name for path in meant.runs[:1]]
    made = from_runs(paths, by=by, title=" and ".join(names) if plans else "runs")
    made.warnings += notes
    if lacking:
        made.warnings.append(f"{lacking} cells of {', '.join(names)} have not been started")
    if gathered and not meant.runs:
        _keep(made, gathered, by)
    return made


def _keep(made: Gathered, sweeps: list[Gathered], by: str | None) -> None:
    """What a sweep says of its metric holds for other arms too; what it says of its own arms does not."""
    ways = {(found.metric, found.direction) for found in sweeps}
    if len(ways) == 1:
        made.metric, made.direction = next(iter(ways))
    if len(sweeps) > 1:
        return
    (found,) = sweeps
    question = found.question or {}
    made.question = {**question, "expect": None, "baseline": None}
    dropped = [f"{key} ({question[key]})" for key in ("expect", "baseline") if question.get(key)]
    if dropped:
        made.warnings.append(
            f"the arms are the values of {by}, not those of {found.title}; not judged here, because it is said of "
            f"its own arms: {', '.join(dropped)}"
        )
