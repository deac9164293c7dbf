"""Estimates the cost of the cells that are left: FLOPs, and time from finished runs on this host.

FLOPs of training are taken as three times those of the forward pass. Time is that of finished runs from start to end,
evaluations included: of the same arm with another seed, or in proportion to the FLOPs of runs of similar size. Where no
finished run is comparable, a dry run measures the first steps of the first cell for a few seconds. How many samples an
epoch has comes from the data, which is read, or from a finished run on the same data. Runs that were measured alone do
not show how parallel cells share cores, caches and memory; the time is then followed by its upper bound, that of one
cell after another.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from blockyard.sweep.execution.run_costs import FinishedRuns, RunSizes
from blockyard.sweep.plan.sweep_plan import Cell, SweepPlan, Variant

if TYPE_CHECKING:
    from blockyard.engine.data_reader import DataReader
    from blockyard.sweep.execution.measured_run import MeasuredRun

_LATER = "unknown until the first cell has finished"


@dataclass(frozen=True)
class Estimate:
    """The cost of cells.

    flops: of training all of them, None where unknown
    seconds: with `parallel` cells at a time, or one after another where `parallel` is None; None where unknown
    at_most: seconds if parallel cells slow each other down until they gain nothing; None where finished runs show this
    longest: seconds of the longest cell; source: where the time comes from
    problem: why the size of a model is unknown, or None
    """

    cells: int
    flops: float | None = 0.0
    seconds: float | None = 0.0
    parallel: int | None = 1
    at_most: float | None = None
    longest: float = 0.0
    source: str = ""
    problem: str | None = None

    def __str__(self) -> str:
        if not self.cells:
            return "nothing is left to run"
        flops = f"{self.flops:.2g} FLOPs" if self.flops is not None else "FLOPs unknown" if self.problem else None
        if self.seconds is None:
            cost = f"{flops}, time {_LATER}" if flops else f"FLOPs and time {_LATER}"
        else:
            cost = f"{flops or 'FLOPs unknown'}, {self._time()} ({self.source})"
        problem = f"; the size of a model is unknown: {self.problem}" if self.problem else ""
        return f"{self.cells} to run: {cost}{problem}"

    def _time(self) -> str:
        assert self.seconds is not None
        if self.parallel is not None:
            most = "" if self.at_most is None else format_duration(self.at_most)
            shared = f", up to {most} if they slow each other down," if most else ""
            return f"about {format_duration(self.seconds)}{shared} with {self.parallel} in parallel"
        return (
            f"about {format_duration(self.seconds)} one after another, {format_duration(self.longest)} if all run in "
            "parallel; the queue decides how many do, unless executor.workers does"
        )


def estimate(
    plan: SweepPlan,
    cells: Sequence[Cell],
    *,
    parallel: int | None = 1,
    data: DataReader | None = None,
    measured: Callable[[Variant], MeasuredRun | None] | None = None,
) -> Estimate:
    """The cost of `cells`, which are those still to run.

    parallel: how many run at the same time; None where a queue decides
    data: has read the data of the cells, and knows how many samples an epoch has
    measured: measures the first steps of an arm, which is done where no finished run is comparable
    """
    if not cells:
        return Estimate(0)
    finished = FinishedRuns.read(plan)
    sizes = RunSizes(plan, finished, data=data)
    flops = [sizes.flops(cell.variant) for cell in cells]
    available = [value for value in flops if value is not None]
    total = math.fsum(available) if len(available) == len(flops) else None
    rate = finished.rate([value for value in available if value])
    times: list[float] | None = []
    for cell, size in zip(cells, flops, strict=True):
        size = size if size is not None else (statistics.fmean(available) if available else None)
        if own := finished.seconds.get(cell.run.partition("/")[0].rpartition("-")[2]):
            times.append(statistics.fmean(own))
        elif rate and size is not None:
            times.append(size / rate)
        else:
            times = None
            break
    if times is None:
        times = _measured(plan, cells, flops, data, measured)
        if times is None:
            return Estimate(len(cells), total, None, parallel, problem=sizes.problem)
        source, alone = f"from the first steps of {plan.variants[cells[0].variant].arm}, measured now", True
    else:
        source = f"from {finished.count} finished run{'s' if finished.count > 1 else ''} on this host"
        alone = finished.alone
    slots = None if parallel is None else max(1, min(parallel, len(cells)))
    one_by_one = math.fsum(times)
    at_most = one_by_one if alone and slots is not None and slots > 1 else None
    return Estimate(
        len(cells), total, one_by_one / (slots or 1), slots, at_most, max(times), source, problem=sizes.problem
    )


def _measured(
    plan: SweepPlan,
    cells: Sequence[Cell],
    flops: Sequence[float | None],
    data: DataReader | None,
    measured: Callable[[Variant], MeasuredRun | None] | None,
) -> list[float] | None:
    """Seconds of each cell from the first steps of the first one, in proportion to FLOPs; None where unmeasured."""
    variant = plan.variants[cells[0].variant]
    if data is None or measured is None or data.read(variant.config).train_samples is None:
        return None
    run = measured(variant)
    if run is None:
        return None
    _, splits = data.splits(variant.config)
    first = flops[0]
    return [run.seconds(variant.config, splits, size=size / first if size and first else 1.0) for size in flops]


def format_duration(seconds: float) -> str:
    """A duration in rounded seconds, minutes or hours."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{round(seconds / 60)} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
