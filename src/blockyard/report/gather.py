"""From what the user names to what is compared."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from blockyard.errors import UserError
from blockyard.report.found import named
from blockyard.report.gathered import Gathered
from blockyard.report.grouped import from_runs
from blockyard.report.planned import from_plan
from blockyard.sweep.plan import SweepPlan

Asked = SweepPlan | str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


def gather(
    asked: Asked,
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
        plans, paths = [asked], ()
    else:
        words = [asked] if isinstance(asked, str | os.PathLike) else list(asked)
        meant = named(words, outputs)
        plans, paths = [SweepPlan.load(folder) for folder in meant.sweeps], meant.runs
    if len(plans) == 1 and not paths and not by:
        return from_plan(plans[0])
    every: dict[Path, None] = dict.fromkeys(paths)
    lacking = 0
    for plan in plans:
        found = from_plan(plan)
        runs = [run for group in found.groups for run in group.runs]
        lacking += sum(run.state == "missing" for run in runs)
        every |= dict.fromkeys(run.path.absolute() for run in runs if run.state != "missing")
    if not every:
        raise UserError("there is nothing to compare yet: no cell of the sweep has been started")
    names = [plan.name for plan in plans] or [Path(str(path)).name for path in paths[:1]]
    made = from_runs(list(every), by=by, title=" and ".join(names) if plans else "runs")
    if lacking:
        made.warnings.append(f"{lacking} cells of {', '.join(names)} have not been started")
    return made
