"""How the cells of a plan stand, read from their run folders: the only record there is."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from blockyard.atomic_files import read_json
from blockyard.runs.folder import CONFIG, SUMMARY
from blockyard.runs.lock import held
from blockyard.runs.metrics import FILE as METRICS
from blockyard.runs.status import Status, read_status

State = Literal["missing", "queued", "running", "done", "failed", "interrupted"]


@dataclass(frozen=True)
class Standing:
    """One run. metrics: of a finished one, from its summary; seconds: of its last turn."""

    state: State
    reason: str | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    step: int | None = None
    seconds: float | None = None


@dataclass(frozen=True)
class Progress:
    """How far a running one is. part: 0 to 1 where known; left: seconds; value: the metric so far."""

    part: float | None = None
    left: float | None = None
    value: float | None = None


def standing(path: Path) -> Standing:
    """How a run folder stands now; `running` is said only where a live process has it."""
    if not (path / CONFIG).is_file():
        return Standing("running" if held(path) else "missing")
    status = read_status(path)
    if status.state == "queued" and held(path):
        return Standing("running")
    metrics = finished(path) if status.state == "done" else {}
    return Standing(status.state, status.reason, metrics, status.step, _took(status))


def finished(path: Path) -> dict[str, float]:
    """The metrics of a finished run; empty where its summary cannot be read."""
    try:
        metrics = read_json(path / SUMMARY)["metrics"]
        return {str(name): float(value) for name, value in metrics.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def progress(path: Path, config: dict[str, Any], metric: str) -> Progress:
    """How far a running run is by the last rows of its metrics.csv. metric: the validation one, val/..."""
    try:
        with (path / METRICS).open("rb") as file:
            names = file.readline().decode().strip().split(",")
            file.seek(max(file.tell(), file.seek(0, 2) - 4096))
            lines = file.read().decode(errors="replace").split("\n")[:-1]
    except OSError:
        return Progress()
    rows = [dict(zip(names, cells, strict=True)) for line in lines if len(cells := line.split(",")) == len(names)]
    if not rows:
        return Progress()
    value = next((number for row in reversed(rows) if (number := _number(row.get(metric))) is not None), None)
    timed = next((row for row in reversed(rows) if _number(row.get("seconds"))), {})
    step, seconds, epoch = (_number(timed.get(name)) for name in ("step", "seconds", "epoch"))
    total = _total(config.get("trainer") or {}, step, epoch)
    if not step or not total:
        return Progress(value=value)
    left = None if seconds is None else max(0.0, seconds / step * (total - step))
    return Progress(min(1.0, step / total), left, value)


def _took(status: Status) -> float | None:
    try:
        return (datetime.fromisoformat(str(status.ended)) - datetime.fromisoformat(str(status.started))).total_seconds()
    except ValueError:
        return None


def _total(trainer: dict[str, Any], step: float | None, epoch: float | None) -> float | None:
    ends = [trainer["max_steps"]] if trainer.get("max_steps") else []
    if trainer.get("max_epochs") and step and epoch:
        ends.append(trainer["max_epochs"] * step / epoch)
    return min(ends, default=None)


def _number(text: str | None) -> float | None:
    try:
        return float(text) if text else None
    except ValueError:
        return None
