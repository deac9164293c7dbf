"""The state of cells, read from their run folders. There is no other record."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from blockyard.atomic_files import is_regular, read_json
from blockyard.config.tree import Node
from blockyard.runs.costs import costs
from blockyard.runs.folder import CONFIG, RUN, SUMMARY
from blockyard.runs.last_evaluations import last_means
from blockyard.runs.lock import held
from blockyard.runs.metric_name import MetricName
from blockyard.runs.metrics import FILE as METRICS
from blockyard.runs.status import Status, read_status
from blockyard.sweep.cells import Cell

State = Literal["missing", "queued", "running", "done", "failed", "interrupted"]
_OBSERVED = 4.0  # seconds between two rows of a log, read once a second, from which the time of a run is estimated
_TAIL = 4096  # bytes at the end of metrics.csv that are read


@dataclass(frozen=True)
class CellState:
    """The state of one run.

    metrics: the metrics and costs of a finished run, from its summary
    seconds: from its last start to its end
    """

    state: State
    reason: str | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    step: int | None = None
    seconds: float | None = None


@dataclass(frozen=True)
class CellProgress:
    """The progress of a running run, None where unknown.

    fraction: 0 to 1
    seconds_left: until its end
    value: the metric at the last evaluation
    """

    fraction: float | None = None
    seconds_left: float | None = None
    value: float | None = None


def read_state(path: Path, names: Sequence[str] = ()) -> CellState:
    """Return the state of a run folder. It is `running` only where a live process holds its lock.

    names: as of `final_metrics`
    """
    if not (path / CONFIG).is_file():
        return CellState("running" if held(path) else "missing")
    status = read_status(path)
    if status.state == "queued" and held(path):
        return CellState("running")
    metrics = final_metrics(path, names) if status.state == "done" else {}
    return CellState(status.state, status.reason, metrics, status.step, duration(status))


def final_metrics(path: Path, names: Sequence[str] = ()) -> dict[str, float]:
    """Return the metrics and the costs of a finished run; empty where its summary cannot be read.

    names: metrics that are needed; the summary lacks those that are means of last evaluations
    """
    try:
        summary = read_json(path / SUMMARY)
        metrics: dict[str, float] = {}
        for name, value in summary["metrics"].items():
            metrics[str(name)] = math.nan if value is None else float(value)  # JSON has no NaN
        return costs(summary) | metrics | last_means(path, names)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def baseline_values(path: Path, metric: str) -> dict[str, float]:
    """Return the value of a metric on test of each simple baseline in a finished run's summary; empty without any."""
    values: dict[str, float] = {}
    try:
        baselines = read_json(path / SUMMARY)["baselines"]
        key = str(MetricName.parse(metric).on(""))
        for name, metrics in baselines.items():
            value = metrics.get(key)
            if value is not None and math.isfinite(value):
                values[str(name)] = float(value)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}
    return values


def read_progress(path: Path, config: Node, metric: str) -> CellProgress:
    """Return the progress of a running run, from the last rows of its metrics.csv.

    metric: the validation metric, val/NAME
    """
    try:
        if not is_regular(path / METRICS):
            return CellProgress()
        with (path / METRICS).open("rb") as file:
            names = file.readline().decode().strip().split(",")
            file.seek(max(file.tell(), file.seek(0, 2) - _TAIL))
            # The last line may still be in writing, and the first one be cut.
            lines = file.read().decode(errors="replace").split("\n")[:-1]
    except OSError:
        return CellProgress()
    value = None
    timed: dict[str, str] = {}
    for line in lines:
        cells = line.split(",")
        if len(cells) != len(names):
            continue
        row = dict(zip(names, cells, strict=True))
        measured = _number(row.get(metric))
        if measured is not None:
            value = measured
        if _number(row.get("seconds")):
            timed = row
    step = _number(timed.get("step"))
    seconds = _number(timed.get("seconds"))
    epoch = _number(timed.get("epoch"))
    trainer = config.get("trainer") or {}
    limit = trainer.get("max_seconds")
    if limit and seconds:
        return CellProgress(min(1.0, seconds / limit), max(0.0, limit - seconds), value)
    step_limits: list[float] = []
    if trainer.get("max_flops"):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            step_limits.append(float(read_json(path / RUN)["budget"]["steps"]))
    if trainer.get("max_steps"):
        step_limits.append(trainer["max_steps"])
    if trainer.get("max_epochs") and step and epoch:
        step_limits.append(trainer["max_epochs"] * step / epoch)
    if not step or not step_limits or not min(step_limits):
        return CellProgress(value=value)
    total = min(step_limits)
    left = None if seconds is None else max(0.0, seconds / step * (total - step))
    return CellProgress(min(1.0, step / total), left, value)


def duration(status: Status) -> float | None:
    """Return the seconds from the start of a run's last attempt to its end; None where it has not ended."""
    try:
        ended = datetime.fromisoformat(str(status.ended))
        return (ended - datetime.fromisoformat(str(status.started))).total_seconds()
    except ValueError:
        return None


def _number(text: str | None) -> float | None:
    try:
        return float(text) if text else None
    except ValueError:
        return None


@dataclass
class PlannedRun:
    """One run of the plan, and the cells whose run it is, in order.

    submitted: whether this command's executor holds it
    ended: whether it is over for this command, with a result or without
    observations: the time and the share of steps done, when the first and the last row of its log were read
    """

    cells: list[Cell]
    path: Path
    config: Node
    now: CellState
    submitted: bool = False
    ended: bool = False
    last_look: float = 0.0
    started: float | None = None
    seconds: float | None = None
    observations: list[tuple[float, float]] = field(default_factory=list)

    def observe(self, fraction: float | None) -> None:
        """Note the share of its steps that are done, if it has changed."""
        if not fraction or (self.observations and fraction <= self.observations[-1][1]):
            return
        if not self.observations:
            # The first run of a process was submitted before its imports, which are no part of its time.
            with contextlib.suppress(ValueError, TypeError):
                age = datetime.now(UTC) - datetime.fromisoformat(str(read_status(self.path).started))
                self.started = time.monotonic() - max(0.0, age.total_seconds())
        self.observations = [*self.observations[:1], (time.monotonic(), fraction)]

    def expected_seconds(self) -> float | None:
        """Return the seconds of the whole run by its steps so far; None before `_OBSERVED` seconds of them."""
        if not self.submitted or self.started is None or len(self.observations) < 2:
            return None
        (first_time, first_fraction), (last_time, last_fraction) = self.observations
        observed = last_time - first_time
        if observed < _OBSERVED:
            return None
        return last_time - self.started + (1 - last_fraction) * observed / (last_fraction - first_fraction)

    @property
    def open(self) -> bool:
        """True while the run may still change."""
        return not self.ended and self.now.state != "done"
