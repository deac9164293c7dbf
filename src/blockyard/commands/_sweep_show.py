"""Shows a sweep before it runs, its cells and what they cost, and after it the time that it took."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from blockyard.commands._sweep_args import SweepArgs

if TYPE_CHECKING:
    from blockyard.engine.data_reader import DataReader
    from blockyard.sweep.execution.estimate import Estimate
    from blockyard.sweep.execution.measured_run import MeasuredRun
    from blockyard.sweep.executor.base import Executor
    from blockyard.sweep.plan.sweep_plan import Cell, SweepPlan, Variant


def show_sweep(plan: SweepPlan, executor: Executor, args: SweepArgs, data: DataReader | None = None) -> Estimate:
    """Print the cells and their cost; returns the cost. That of a search is an upper bound.

    data: has read the data of the cells. A dry run may measure the first steps of a cell, which takes a few seconds
    """
    from blockyard.sweep.execution.estimate import estimate
    from blockyard.sweep.execution.plan_table import PlanStatus, print_plan
    from blockyard.sweep.search.search_runner import parallel_trials

    def measure_variant(variant: Variant) -> MeasuredRun | None:
        from blockyard.sweep.execution.measured_run import measure

        return measure(variant.config, variant.choices, executor.threads)

    measured = measure_variant if args.dry_run and not args.elsewhere else None
    now = args.only(plan)
    stand = PlanStatus.read(plan)
    print_plan(stand, retry=args.retry)
    search = plan.question.get("search")
    if not search:
        due = (stand if now is plan else PlanStatus.read(now)).remaining(retry=args.retry)
        which = "" if now is plan else f"--arms {args.arms}: "
        cost = estimate(now, due, parallel=executor.parallel, data=data, measured=measured)
        sys.stdout.write(f"{which}{cost}\n")
        return cost
    slots = parallel_trials(executor, search)
    parallel = slots if executor.parallel or slots < executor.capacity else None
    cost = estimate(plan, _trials(plan), parallel=parallel, data=data, measured=measured)
    sys.stdout.write(f"at most {cost}\n")
    return cost


def say_time(plan: SweepPlan, announced: Estimate, seconds: float, say: Callable[[str], None]) -> None:
    """Record and print the time that was announced and the seconds that the sweep took."""
    from blockyard.sweep.execution.time_taken import record_time

    try:
        line = record_time(plan.folder, announced, seconds, at_most=bool(plan.question.get("search")))
    except OSError as error:  # the answer is written; this record alone is missing
        line = f"the time that the sweep took cannot be recorded in {plan.folder}: {error.strerror or error}"
    if line:
        say(line)


def _trials(plan: SweepPlan) -> list[Cell]:
    """As many cells as a search may run, each like its arm."""
    from blockyard.sweep.plan.sweep_plan import Cell

    runs = int(plan.question["search"]["trials"]) + len(plan.question["seeds"])
    return [Cell(key, number, f"trial/{key}-{number}") for key in plan.variants for number in range(runs)]
