"""Searches the best setting of each arm on validation, with the same number of trials for every arm.

A trial is a run like any other, in its own folder. Optuna's storage records which settings were tried,
and every process that searches works from it: the same command continues after a kill, a second process
helps, and no trial runs twice.
"""

from __future__ import annotations

from collections.abc import Callable

from blockyard.sweep.executor.base import Executor
from blockyard.sweep.plan import history
from blockyard.sweep.plan.cell_composer import CellComposer
from blockyard.sweep.plan.sweep_plan import SweepPlan
from blockyard.sweep.search.trial_loop import TrialLoop
from blockyard.sweep.search.tune import plan_with_chosen
from blockyard.sweep.spec.budget import Search

DEFAULT_PARALLEL = 8  # trials in parallel where the executor cannot tell how many run together


def run_search(
    plan: SweepPlan,
    executor: Executor,
    *,
    retry: bool = False,
    elsewhere: bool = False,
    say: Callable[[str], object] = lambda _: None,
    stopped: Callable[[], bool] = lambda: False,
) -> SweepPlan:
    """Search every arm; save and return the plan whose cells are the best setting of each arm on all seeds.

    executor: the caller enters it; leaving it stops what still runs
    retry: try failed trials again, each with its setting
    elsewhere: whether trials run on other machines, so that GPUs missing on this one do not matter
    stopped: whether to stop, called once a second; the plan is then returned unchanged
    Raises UserError where the metric is not measured on validation or Optuna rejects the space.
    """
    options = plan.question.get("search")
    if not options:
        return plan
    composer = CellComposer(plan.facts.get("config_dirs") or (), elsewhere=elsewhere, outputs=plan.outputs)
    loop = TrialLoop(plan, executor, composer, capacity=parallel_trials(executor, options), say=say)
    with loop.owner.lock():
        if retry:
            loop.retry_failed()
        loop.work(stopped)
    if stopped():
        return plan
    loop.report_failures()
    result = plan_with_chosen(plan, loop.arms, loop.facts, loop.seeds)
    for line in history.store_plan(result):
        say(line)
    return result


def parallel_trials(executor: Executor, search: Search) -> int:
    """How many trials are open at the same time.

    A sampler or pruner that learns from finished trials must not create all of them beforehand: there it
    is as many as run together, or DEFAULT_PARALLEL where the executor cannot tell.
    """
    if (search.get("sampler") or "tpe") == "random" and (search.get("pruner") or "none") == "none":
        return executor.capacity
    return min(executor.capacity, executor.parallel or DEFAULT_PARALLEL)
