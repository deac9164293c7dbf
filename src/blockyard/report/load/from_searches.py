"""Trials of searches among runs that nobody named one by one: each search is one arm, its best trial.

A trial is known by what its run.json says of it. The others of its study tried what was not chosen; in a
table of arms they would stand for questions that nobody asked.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blockyard.atomic_files import read_json
from blockyard.errors import UserError
from blockyard.report.load.metric_direction import by_name
from blockyard.report.load.run_record import Record, read
from blockyard.runs.folder import RUN
from blockyard.sweep.plan.sweep_plan import SweepPlan

TRIAL = "trial"  # in run.json


@dataclass(frozen=True)
class _Study:
    """A search of one arm: where its record lies, and the arm."""

    storage: str
    arm: str

    @property
    def folder(self) -> Path:
        """The sweep's folder."""
        return Path(self.storage.removeprefix("sqlite:///")).parent


def of_searches(paths: Sequence[Path], listed: Collection[Path]) -> tuple[list[Path], list[str]]:
    """The runs without the trials that were not chosen, and what to say of each search.

    listed: the runs that came with a folder of many; others were named, and stay
    """
    trials: dict[_Study, list[Record]] = {}
    others: set[Path] = set()  # folders of kinds that have a run which is no trial
    for path in paths:
        study = _study(path) if path in listed else None
        if study is None:
            others.add(path.parent)
        else:
            trials.setdefault(study, []).append(read(path))
    dropped: set[Path] = set()
    notes = []
    for study, runs in trials.items():
        metric, direction = _metric(study)
        best = _best(runs, metric, direction)
        left = [run.path for run in runs if best is None or run.path != best.path]
        # A setting that was run on other seeds too is somebody's arm, whoever searched it.
        left = [path for path in left if path.parent not in others]
        dropped.update(left)
        which = f"the best on {metric}, {best.run}" if best else "none of which was run to its end"
        notes.append(
            f"{len(runs)} runs are trials of the search {study.folder.name}, arm {study.arm}: one arm, {which}; "
            f"`blockyard compare {study.folder.name}` shows them all"
        )
    if dropped and len(dropped) == len(paths):
        return list(paths), []
    return [path for path in paths if path not in dropped], notes if dropped else []


def _study(path: Path) -> _Study | None:
    try:
        found = read_json(path / RUN).get(TRIAL)
        return _Study(str(found["storage"]), str(found["study"])) if isinstance(found, dict) else None
    except (OSError, ValueError, KeyError, AttributeError):
        return None


def _metric(study: _Study) -> tuple[str, str]:
    """What the search chose by; of a sweep whose folder is gone, the loss."""
    try:
        metric: dict[str, Any] = SweepPlan.load(study.folder).facts.get("metric") or {}
    except UserError:
        metric = {}
    name = str(metric.get("validation") or "val/loss")
    return name, str(metric.get("direction") or by_name(name) or "min")


def _best(runs: list[Record], metric: str, direction: str) -> Record | None:
    sign = -1.0 if direction == "max" else 1.0
    known = [(sign * value, run.run, run) for run in runs if (value := run.figure(metric)) is not None]
    return min(known, key=lambda one: one[:2])[2] if known else None
