"""What a comparison is computed from: the arms, their runs, and warnings about them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from blockyard.report.load.run_record import RunRecord


@dataclass
class ArmRuns:
    """One arm.

    config: complete, of any of its runs; choices: the YAML of each family
    runs: those of the setting that counts; planned: how many seeds it should have
    chosen: the tuned setting, if any; tried: how many settings were tried, None where nothing is tuned
    averages: metric -> seed -> value, where a value is an average over runs instead of one run's own
    """

    name: str
    config: dict[str, Any] = field(default_factory=dict)
    choices: dict[str, str | None] = field(default_factory=dict)
    overrides: tuple[str, ...] = ()
    levels: dict[str, str] = field(default_factory=dict)
    runs: list[RunRecord] = field(default_factory=list)
    planned: int = 0
    chosen: dict[str, Any] | None = None
    tried: int | None = None
    identity: str | None = None
    refused: tuple[str, ...] = ()
    averages: dict[str, dict[int, float]] | None = None

    def values(self, metric: str) -> dict[int, float]:
        """Return the values of a metric or cost, by seed."""
        if self.averages is not None:
            return self.averages.get(metric, {})
        return {run.seed: value for run in self.runs if (value := run.value(metric)) is not None}

    @property
    def done(self) -> list[RunRecord]:
        """The runs that finished."""
        return [run for run in self.runs if run.done]


@dataclass
class ComparisonInput:
    """All arms and runs of a comparison.

    records: every cell, of all settings; arms: in order
    folder: the sweep's own; kind: how the arms were made: arms, grid, zip, one_at_a_time, leave_one_out, inferred
    tasks: names of the tasks that the selected runs are of, where no sweep put them together
    metric, direction: the sweep's own; notes: decisions of the planner that the user should know
    """

    title: str
    arms: list[ArmRuns]
    records: list[RunRecord]
    kind: str = "arms"
    question: dict[str, Any] | None = None
    baseline: str | None = None
    metric: str | None = None
    direction: str | None = None
    folder: Path | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    tuning: list[dict[str, Any]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    tasks: list[str] = field(default_factory=list)

    def arm(self, name: str) -> ArmRuns | None:
        """Return the arm of that name, if there is one."""
        return next((arm for arm in self.arms if arm.name == name), None)
