"""Which cells of a plan are due, and in which order they run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from blockyard.sweep.plan.sweep_plan import Cell, SweepPlan
from blockyard.sweep.search import tune

if TYPE_CHECKING:
    from blockyard.sweep.execution.runner import PlannedRun


def due_cells(plan: SweepPlan, runs: Mapping[str, PlannedRun]) -> Sequence[Cell]:
    """The cells that may run: all of them, or for a tuned sweep those that the runs so far select."""
    if not plan.question.get("tune"):
        return plan.cells
    values = {key: run.now.metrics for key, run in runs.items() if run.now.state == "done"}
    # A killed run may still get its value, and a choice without that value could differ later.
    failed = [key for key, run in runs.items() if run.ended and run.now.state == "failed"]
    return tune.due_cells(plan, values, failed)


def in_run_order(plan: SweepPlan, cells: Sequence[Cell]) -> list[Cell]:
    """Cells by seed and then by arm, the baseline first, so that early comparisons have equal numbers of seeds."""
    baseline = plan.question.get("baseline")
    arms = {arm.name: (arm.name != baseline, index) for index, arm in enumerate(plan.arms)}
    seeds = {seed: index for index, seed in enumerate(dict.fromkeys(cell.seed for cell in plan.cells))}
    variants = {key: index for index, key in enumerate(plan.variants)}

    def order(cell: Cell) -> tuple[int, tuple[bool, int], int]:
        arm = plan.variants[cell.variant].arm
        return seeds.get(cell.seed, len(seeds)), arms.get(arm, (True, len(arms))), variants[cell.variant]

    return sorted(cells, key=order)
