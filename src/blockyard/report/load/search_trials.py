"""Keep one arm for each search among runs that came with a folder: its best trial.

run.json records that a run is a trial. The other trials of a study tried settings that were not chosen; as arms
of a comparison they would answer questions that the sweep does not ask.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from blockyard.atomic_files import read_json
from blockyard.errors import UserError
from blockyard.report.load.metrics import direction_by_name
from blockyard.report.load.run_record import LoadedRun, read_run
from blockyard.runs.folder import RUN
from blockyard.sweep.plan.sweep_plan import MetricFacts, SweepPlan

TRIAL = "trial"  # in run.json


@dataclass(frozen=True)
class _Study:
    """The search of one arm. storage: the URL of its database."""

    storage: str
    arm: str

    @property
    def folder(self) -> Path:
        """The sweep's folder."""
        return Path(self.storage.removeprefix("sqlite:///")).parent


def keep_best_trials(paths: Sequence[Path], listed: Collection[Path]) -> tuple[list[Path], list[str]]:
    """Return the runs without the trials that were not chosen, and a note on each search.

    listed: the runs that came with a folder of many; runs named one by one stay
    """
    trials: dict[_Study, list[LoadedRun]] = {}
    arms_with_runs: set[Path] = set()  # parent folders of runs that are not trials
    for path in paths:
        study = _study(path) if path in listed else None
        if study is None:
            arms_with_runs.add(path.parent)
        else:
            trials.setdefault(study, []).append(read_run(path))
    dropped: set[Path] = set()
    notes = []
    for study, runs in trials.items():
        metric, direction = _metric(study)
        best = _best(runs, metric, direction)
        # A setting that was run on other seeds too is an arm of its own, whichever search tried it.
        dropped.update(
            run.path
            for run in runs
            if (best is None or run.path.parent != best.path.parent) and run.path.parent not in arms_with_runs
        )
        kept = f"only the best on {metric} is kept, {best.run}" if best else "none of them finished"
        notes.append(
            f"{len(runs)} runs are trials of the search {study.folder.name}, arm {study.arm}; {kept}; "
            f"`blockyard compare {study.folder.name}` shows all"
        )
    if dropped and len(dropped) == len(paths):
        return list(paths), []
    return [path for path in paths if path not in dropped], notes if dropped else []


def _study(path: Path) -> _Study | None:
    try:
        trial = read_json(path / RUN).get(TRIAL)
        return _Study(str(trial["storage"]), str(trial["study"])) if isinstance(trial, dict) else None
    except (OSError, ValueError, KeyError, AttributeError):
        return None


def _metric(study: _Study) -> tuple[str, str]:
    """Return the metric that the search optimized and its direction; the loss where the sweep's folder is gone."""
    try:
        metric = SweepPlan.load(study.folder).facts.get("metric") or MetricFacts()
    except UserError:
        metric = MetricFacts()
    name = str(metric.get("validation") or "val/loss")
    return name, str(metric.get("direction") or direction_by_name(name) or "min")


def _best(runs: list[LoadedRun], metric: str, direction: str) -> LoadedRun | None:
    """A run of the best setting, by the mean over its seeds, of those that ran on the most seeds."""
    sign = -1.0 if direction == "max" else 1.0
    settings: dict[Path, list[tuple[float, LoadedRun]]] = {}
    for run in runs:
        if (value := run.value(metric)) is not None:
            settings.setdefault(run.path.parent, []).append((sign * value, run))
    most = max(map(len, settings.values()), default=0)
    means = [
        (math.fsum(value for value, _ in tried) / most, tried[0][1].run, tried[0][1])
        for tried in settings.values()
        if len(tried) == most
    ]
    return min(means, key=lambda entry: entry[:2])[2] if means else None
