"""The state of cells, read from their run folders, which are the only record."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from blockyard.atomic_files import is_regular, read_json
from blockyard.config.tree import Node
from blockyard.runs.costs import costs
from blockyard.runs.folder import CONFIG, SUMMARY
from blockyard.runs.lock import held
from blockyard.runs.metric_name import MetricName
from blockyard.runs.metrics import FILE as METRICS
from blockyard.runs.status import Status, read_status
from blockyard.sweep.cells import Cell

State = Literal["missing", "queued", "running", "done", "failed", "interrupted"]
_OBSERVED = 4.0  # seconds between two rows of a log, seen once a second, from which they tell the time of a run
_TAIL = 4096  # bytes at the end of metrics.csv that are read


@dataclass(frozen=True)
class CellState:
    """The state of one run.

    metrics: of a finished run, from its summary, and its costs; seconds: since it was last started
    """

    state: State
    reason: str | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    step: int | None = None
    seconds: float | None = None


@dataclass(frozen=True)
class CellProgress:
    """The progress of a running run, None where unknown.

    fraction: 0 to 1; seconds_left: until its end; value: the metric at the last evaluation
    """

    fraction: float | None = None
    seconds_left: float | None = None
    value: float | None = None


def read_state(path: Path) -> CellState:
    """The state of a run folder; `running` only where a live process holds its lock."""
    if not (path / CONFIG).is_file():
        return CellState("running" if held(path) else "missing")
    status = read_status(path)
    if status.state == "queued" and held(path):
        return CellState("running")
    metrics = final_metrics(path) if status.state == "done" else {}
    return CellState(status.state, status.reason, metrics, status.step, duration(status))


def final_metrics(path: Path) -> dict[str, float]:
    """The metrics and the costs of a finished run; empty where its summary cannot be read."""
    try:
        summary = read_json(path / SUMMARY)
        metrics = {str(name): math.nan if v is None else float(v) for name, v in summary["metrics"].items()}
        return costs(summary) | metrics
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def baseline_values(path: Path, metric: str) -> dict[str, float]:
    """The value of a metric on test of each simple baseline that a finished run has recorded; empty without any."""
    try:
        baselines = read_json(path / SUMMARY)["baselines"]
        key = str(MetricName.parse(metric).on(""))
        values = {str(name): own.get(key) for name, own in baselines.items()}
        return {name: float(value) for name, value in values.items() if value is not None and math.isfinite(value)}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def read_progress(path: Path, config: Node, metric: str) -> CellProgress:
    """The progress of a running run, from the last rows of its metrics.csv.

    metric: the validation metric, val/NAME
    """
    try:
        if not is_regular(path / METRICS):
            return CellProgress()
        with (path / METRICS).open("rb") as file:
            names = file.readline().decode().strip().split(",")
            file.seek(max(file.tell(), file.seek(0, 2) - _TAIL))
            lines = file.read().decode(errors="replace").split("\n")[:-1]
    except OSError:
        return CellProgress()
    rows = [dict(zip(names, cells, strict=True)) for line in lines if len(cells := line.split(",")) == len(names)]
    if not rows:
        return CellProgress()
    value = next((number for row in reversed(rows) if (number := _number(row.get(metric))) is not None), None)
    timed = next((row for row in reversed(rows) if _number(row.get("seconds"))), {})
    step, seconds, epoch = (_number(timed.get(name)) for name in ("step", "seconds", "epoch"))
    total = _total_steps(config.get("trainer") or {}, step, epoch)
    if not step or not total:
        return CellProgress(value=value)
    left = None if seconds is None else max(0.0, seconds / step * (total - step))
    return CellProgress(min(1.0, step / total), left, value)


def duration(status: Status) -> float | None:
    """Seconds from the start of a run's last attempt to its end; None where it has not ended."""
    try:
        ended, started = (datetime.fromisoformat(str(time)) for time in (status.ended, status.started))
        return (ended - started).total_seconds()
    except ValueError:
        return None


def _age(status: Status) -> float | None:
    """Return the seconds since a run's last attempt has started; None where it has not, by the clock of its machine."""
    try:
        return max(0.0, (datetime.now(UTC) - datetime.fromisoformat(str(status.started))).total_seconds())
    except (ValueError, TypeError):
        return None


def _total_steps(trainer: Node, step: float | None, epoch: float | None) -> float | None:
    limits = [trainer["max_steps"]] if trainer.get("max_steps") else []
    if trainer.get("max_epochs") and step and epoch:
        limits.append(trainer["max_epochs"] * step / epoch)
    return min(limits, default=None)


def _number(text: str | None) -> float | None:
    try:
        return float(text) if text else None
    except ValueError:
        return None


@dataclass
class PlannedRun:
    """One run of the plan and the cells that it answers, the first in order first.

    submitted: whether our executor holds it; ended: whether it is over for this command, well or not
    rows: when the first and the last row of its log were seen, and the part of its steps that were done then
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
    rows: list[tuple[float, float]] = field(default_factory=list)

    def observe(self, fraction: float | None) -> None:
        """Note the part of its steps that are done, if that has changed."""
        if not fraction or (self.rows and fraction <= self.rows[-1][1]):
            return
        if not self.rows and (age := _age(read_status(self.path))) is not None:
            self.started = time.monotonic() - age  # the first run of a process was submitted before its imports
        self.rows = [*self.rows[:1], (time.monotonic(), fraction)]

    def expected_seconds(self) -> float | None:
        """Return the seconds of the whole run by its steps so far; None before `_OBSERVED` seconds of them."""
        if not self.submitted or self.started is None or len(self.rows) < 2:
            return None
        (first, done), (last, more) = self.rows
        if last - first < _OBSERVED:
            return None
        return last - self.started + (1 - more) * (last - first) / (more - done)

    @property
    def open(self) -> bool:
        """Whether the run may still change."""
        return not self.ended and self.now.state != "done"
