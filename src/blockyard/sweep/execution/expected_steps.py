"""The steps of arms whose runs end by time or by FLOPs, as far as they are known before the runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from blockyard.sweep.cells import Variant
from blockyard.sweep.execution.estimate import FinishedRuns, RunSizes
from blockyard.sweep.plan.sweep_plan import SweepPlan
from blockyard.sweep.plan.timed import by_the_clock

if TYPE_CHECKING:
    from blockyard.engine.data_reader import DataReader
    from blockyard.sweep.execution.step_times import MeasuredRun

_MOST = 12  # arms whose first steps are measured


def clock_of(plan: SweepPlan) -> str | None:
    """Return what a clock decides in a sweep, as text; None where nothing is."""
    metric = plan.facts.get("metric") or {}
    return by_the_clock(metric.get("name"), {variant.arm: variant.config for variant in plan.variants.values()})


def expected_steps(
    plan: SweepPlan, measured: Callable[[Variant], MeasuredRun | None] | None, data: DataReader | None
) -> Iterator[str]:
    """Yield a line about the arms that end by time, and one about those that end by FLOPs.

    measured: returns the times of an arm's first steps, None where they are unknown
    data: has read the data of the cells
    """
    arms = {variant.arm: variant for variant in reversed(plan.variants.values())}
    timed = [variant for variant in arms.values() if variant.config["trainer"].get("max_seconds") is not None]
    counted = [variant for variant in arms.values() if variant.config["trainer"].get("max_flops") is not None]
    if timed:
        yield from _timed(timed[::-1], measured)
    if counted:
        sizes = RunSizes(plan, FinishedRuns(), data=data)
        numbers = {variant.arm: sizes.steps(variant.config) for variant in reversed(counted)}
        steps = [f"{arm} about {number:,.0f}" for arm, number in numbers.items() if number is not None]
        if steps:
            yield f"expected steps, by the FLOPs of a forward pass: {', '.join(steps)}"


def _timed(variants: list[Variant], measured: Callable[[Variant], MeasuredRun | None] | None) -> Iterator[str]:
    """Yield the line about arms that end by time."""
    steps = []
    if measured is not None:
        for variant in variants[:_MOST]:
            run = measured(variant)
            if run is not None:
                steps.append(f"{variant.arm} about {run.total:,}")
    if not steps:
        yield "expected steps: unknown before a dry run on this machine, which measures first steps"
        return
    text = f"expected steps, by first steps of one cell alone: {', '.join(steps)}"
    if len(variants) > _MOST:
        text += f"; of {len(variants) - _MOST} more arms they are not measured"
    yield text
