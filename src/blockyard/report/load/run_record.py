"""One run as the report sees it: how it stands, what it measured, what it cost."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from blockyard.atomic_files import read_json
from blockyard.report.cost_table import costs
from blockyard.runs.folder import CONFIG, RUN, SUMMARY
from blockyard.runs.status import read_status

State = Literal["done", "failed", "running", "queued", "interrupted", "missing", "refused"]


@dataclass(frozen=True)
class Record:
    """A cell of a comparison.

    arm: its name; seed: its replicate; setting: of what is tuned, key -> value
    path: the run's folder, there or not; summary and facts: its files, empty where they are not there
    """

    arm: str
    seed: int
    path: Path
    state: State
    reason: str | None = None
    setting: dict[str, Any] = field(default_factory=dict)
    variant: str = ""
    summary: dict[str, Any] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def run(self) -> str:
        """The run as it is listed: `<name>-<hash>/s<seed>`."""
        return f"{self.path.parent.name}/{self.path.name}"

    @property
    def done(self) -> bool:
        """Whether it came to its end."""
        return self.state == "done"

    @property
    def metrics(self) -> dict[str, float]:
        """Its metrics that are numbers; of a run that is done only."""
        found = self.summary.get("metrics") if self.done else None
        return (
            {name: float(value) for name, value in found.items() if _number(value)} if isinstance(found, dict) else {}
        )

    @property
    def cost(self) -> dict[str, float]:
        """What it cost, as far as it is known."""
        return costs(self.summary) if self.done else {}

    def figure(self, metric: str) -> float | None:
        """A metric or a cost by name."""
        value = self.metrics.get(metric)
        return self.cost.get(metric) if value is None else value

    @property
    def data(self) -> dict[str, Any]:
        """What is known of its data: fingerprint and sizes of the parts."""
        found = self.summary.get("data") or self.facts.get("data")
        return found if isinstance(found, dict) else {}


def read(
    path: Path, *, arm: str = "", seed: int = 0, setting: dict[str, Any] | None = None, variant: str = ""
) -> Record:
    """The run in a folder; one that is not there, or whose files are damaged, is said to be so."""
    place = {"arm": arm, "seed": seed, "path": path, "setting": dict(setting or {}), "variant": variant}
    if not (path / CONFIG).is_file():
        return Record(**place, state="missing", reason="not started")
    status = read_status(path)
    facts, _ = _json(path / RUN)
    summary, damage = _json(path / SUMMARY) if status.finished else ({}, None)
    reason = status.reason
    if status.finished and not summary:
        reason = damage or f"done, but it has no {SUMMARY}"
    elif status.finished and (odd := _odd(summary.get("metrics"))):
        reason = f"no number: {', '.join(odd)}"
    return Record(**place, state=status.state, reason=reason, summary=summary, facts=facts)


def _json(path: Path) -> tuple[dict[str, Any], str | None]:
    try:
        found = read_json(path)
    except FileNotFoundError:
        return {}, None
    except (OSError, ValueError) as error:
        return {}, f"{path.name} is damaged ({error})"
    return (found, None) if isinstance(found, dict) else ({}, f"{path.name} is damaged (it holds no mapping)")


def _odd(metrics: object) -> list[str]:
    return [name for name, value in metrics.items() if not _number(value)] if isinstance(metrics, dict) else []


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
