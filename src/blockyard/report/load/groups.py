"""What was gathered for a comparison: arms, their runs, and what must be said about them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from blockyard.report.load.run_record import Record


@dataclass
class Group:
    """An arm.

    config: complete, of any of its runs; choices: the YAML of each family
    runs: of the setting that counts; planned: seeds that it should have
    settings: of what was tuned, each with its mean on validation; tried: how many were
    """

    name: str
    config: dict[str, Any] = field(default_factory=dict)
    choices: dict[str, str | None] = field(default_factory=dict)
    overrides: tuple[str, ...] = ()
    levels: dict[str, str] = field(default_factory=dict)
    runs: list[Record] = field(default_factory=list)
    planned: int = 0
    chosen: dict[str, Any] | None = None
    tried: int | None = None
    identity: str | None = None
    refused: tuple[str, ...] = ()
    figures: dict[str, dict[int, float]] | None = None  # metric -> seed -> figure, where it is not each run's own

    def values(self, metric: str) -> dict[int, float]:
        """The figures of a metric by seed."""
        if self.figures is not None:
            return self.figures.get(metric, {})
        return {run.seed: value for run in self.runs if (value := run.figure(metric)) is not None}

    @property
    def done(self) -> list[Record]:
        """Its runs that came to their end."""
        return [run for run in self.runs if run.done]


@dataclass
class Gathered:
    """Everything a comparison is made of.

    records: every cell, of all settings; groups: the arms, in order
    folder: the sweep's own; kind: how the arms were made: arms, grid, zip, one_at_a_time, leave_one_out, found
    metric, direction: the sweep's own; notes: what the planner decided for the user
    """

    title: str
    groups: list[Group]
    records: list[Record]
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

    def named(self, name: str) -> Group | None:
        """The arm of that name."""
        return next((group for group in self.groups if group.name == name), None)
