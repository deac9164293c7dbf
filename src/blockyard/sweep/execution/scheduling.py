"""Whose turn it is: which cells of a plan are due, and in which order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from blockyard.sweep.plan.sweep_plan import Cell, SweepPlan
from blockyard.sweep.search import tune

if TYPE_CHECKING:
    from blockyard.sweep.execution.runner import Run


def due(plan: SweepPlan, runs: Mapping[str, Run]) -> Sequence[Cell]:
    """The cells that are due: all, or of a tuned sweep those whose turn has come by the runs so far."""
    if not plan.question.get("tune"):
        return plan.cells
    values = {key: run.now.metrics for key, run in runs.items() if run.now.state == "done"}
    # One that was killed may still get its value, and a choice without it would not be the same again.
    return tune.due(plan, values, [key for key, run in runs.items() if run.tried and run.now.state == "failed"])


def ordered(plan: SweepPlan, cells: Sequence[Cell]) -> list[Cell]:
    """First seeds first and the baseline before the other arms: early comparisons are between equals."""
    baseline = plan.question.get("baseline")
    arms = {arm.name: (arm.name != baseline, place) for place, arm in enumerate(plan.arms)}
    seeds = {seed: place for place, seed in enumerate(dict.fromkeys(cell.seed for cell in plan.cells))}
    places = {key: place for place, key in enumerate(plan.variants)}

    def place(cell: Cell) -> tuple[Any, ...]:
        arm = plan.variants[cell.variant].arm
        return seeds.get(cell.seed, len(seeds)), arms.get(arm, (True, len(arms))), places[cell.variant]

    return sorted(cells, key=place)
