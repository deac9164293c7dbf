"""One run as the report reads it from its folder: state, metrics, cost."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

from blockyard.atomic_files import read_json
from blockyard.config.tree import is_number
from blockyard.runs.costs import costs
from blockyard.runs.folder import CONFIG, RUN, SUMMARY
from blockyard.runs.last_evaluations import last_means
from blockyard.runs.metric_name import MetricName
from blockyard.runs.status import diverged, read_status
from blockyard.sweep.cells import Setting

State = Literal["done", "failed", "running", "queued", "interrupted", "missing", "refused"]


@dataclass(frozen=True)
class LoadedRun:
    """One cell of a comparison.

    arm: its name; seed: its replicate; setting: of the tuned keys, key -> value
    path: the run's folder, whether it exists or not
    summary, facts: the contents of summary.json and run.json, empty where a file is missing
    damage: why run.json could not be read, or None
    outcome: of a run that diverged, what a sweep with `success`, `steps_to` or the like compares, by name
    """

    arm: str
    seed: int
    path: Path
    state: State
    reason: str | None = None
    setting: Setting = field(default_factory=dict)
    variant: str = ""
    summary: dict[str, Any] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    damage: str | None = None
    outcome: dict[str, float] = field(default_factory=dict)

    @property
    def run(self) -> str:
        """The run's path below the outputs folder: `<name>-<hash>/s<seed>`."""
        return f"{self.path.parent.name}/{self.path.name}"

    @property
    def done(self) -> bool:
        """Return whether the run finished."""
        return self.state == "done"

    @property
    def diverged(self) -> bool:
        """Return whether the run failed because a loss, a gradient or a weight was not finite."""
        return diverged(self.state, self.reason)

    @property
    def metrics(self) -> dict[str, float]:
        """The finite metrics of a finished run."""
        metrics = self.summary.get("metrics") if self.done else None
        if not isinstance(metrics, dict):
            return {}
        return {name: float(value) for name, value in metrics.items() if is_number(value)}

    @property
    def cost(self) -> dict[str, float]:
        """The known costs of a finished run."""
        return costs(self.summary) if self.done else {}

    def value(self, metric: str) -> float | None:
        """Return a metric or a cost by name."""
        value = self.metrics.get(metric, self.outcome.get(metric))
        return self.cost.get(metric) if value is None else value

    @property
    def data(self) -> dict[str, Any]:
        """The fingerprint of the data and the sizes of its splits, if recorded."""
        data = self.summary.get("data") or self.facts.get("data")
        return data if isinstance(data, dict) else {}


def read_run(
    path: Path,
    *,
    arm: str = "",
    seed: int = 0,
    setting: Setting | None = None,
    variant: str = "",
    names: Iterable[str] = (),
) -> LoadedRun:
    """Read the run in a folder. A folder that is missing or damaged gives a record with that state and reason.

    names: metrics that are needed; a summary lacks those that are means of last evaluations
    """
    record = partial(LoadedRun, arm=arm, seed=seed, path=path, setting=dict(setting or {}), variant=variant)
    if not (path / CONFIG).is_file():
        return record(state="missing", reason="not started")
    status = read_status(path)
    facts, lost = _read_mapping(path / RUN)
    summary, damage = _read_mapping(path / SUMMARY) if status.finished else ({}, None)
    reason = status.reason
    if status.finished and not summary:
        reason = damage or f"finished, but has no {SUMMARY}"
    elif status.finished:
        metrics = summary.get("metrics")
        if not isinstance(metrics, dict):
            metrics = {}
        not_finite = [name for name, value in metrics.items() if not is_number(value)]
        if not_finite:
            reason = f"not a finite number: {', '.join(not_finite)}"
    if summary:
        summary = _with_last_means(summary, path, names)
    return record(state=status.state, reason=reason, summary=summary, facts=facts, damage=lost)


def _with_last_means(summary: dict[str, Any], path: Path, names: Iterable[str]) -> dict[str, Any]:
    """Return the summary with the means of last evaluations among `names`, and their directions."""
    means = last_means(path, names)
    if not means:
        return summary
    directions = dict(summary.get("directions") or {})
    for name in means:
        one = str(MetricName.parse(name).logged())
        if one in directions:
            directions[name] = directions[one]
    return summary | {"metrics": {**(summary.get("metrics") or {}), **means}, "directions": directions}


def _read_mapping(path: Path) -> tuple[dict[str, Any], str | None]:
    try:
        content = read_json(path)
    except FileNotFoundError:
        return {}, None
    except (OSError, ValueError) as error:
        return {}, f"{path.name} is damaged ({error})"
    if isinstance(content, dict):
        return (content, None)
    return ({}, f"{path.name} is damaged (not a mapping)")
