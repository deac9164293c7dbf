"""Searches the best setting of each arm on validation, with the same number of trials for every arm.

A trial is a run like any other, in its own folder. Optuna's storage records the settings that were tried,
and every process that searches works from it: the same command continues after a kill, a second process
helps, and no trial runs twice. After the death of a process another one takes over its trials with their settings, and
the runs resume. A failed trial is tried again on request, with its setting and in its place.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from blockyard.engine.faults.interrupts import PAUSED
from blockyard.runs.identity import run_name
from blockyard.runs.lock import exclusive, held
from blockyard.sweep.cell import trial_store
from blockyard.sweep.cell.states import final_metrics, read_state
from blockyard.sweep.cells import BUSY, Outcome, Task, cell_name
from blockyard.sweep.executor.base import Executor
from blockyard.sweep.plan import history
from blockyard.sweep.plan.cell_composer import CellComposer
from blockyard.sweep.plan.cell_settings import with_run_name
from blockyard.sweep.plan.sweep_plan import MetricFacts, SearchFacts, SweepPlan
from blockyard.sweep.plan.target_metric import validation_metric
from blockyard.sweep.search.trial_config import arm_template
from blockyard.sweep.search.trials import AGAIN, Owner, Trials
from blockyard.sweep.search.tune import plan_with_chosen
from blockyard.sweep.spec.keys import Search
from blockyard.sweep.spec.threshold import of_metric

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

DEFAULT_PARALLEL = 8  # trials in parallel where the executor cannot tell how many run together
_MAX_KILLS = 2  # of a trial's process, after which the trial has failed
_PAUSE = 1.0  # seconds between two looks while only other processes work


def run_search(
    plan: SweepPlan,
    executor: Executor,
    *,
    retry: bool = False,
    elsewhere: bool = False,
    say: Callable[[str], object] = lambda _: None,
    stopped: Callable[[], bool] = lambda: False,
) -> SweepPlan:
    """Search every arm, and save and return the plan with the best setting of each arm on all seeds as cells.

    executor: the caller enters it; leaving it stops the runs that are left
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
    stored = history.store_plan(result)
    for line in stored.messages:
        say(line)
    return stored.plan


def parallel_trials(executor: Executor, search: Search) -> int:
    """Return how many trials are open at the same time."""
    if (search.get("sampler") or "tpe") == "random" and (search.get("pruner") or "none") == "none":
        return executor.capacity
    # A sampler or pruner that learns from finished trials must not create all of them beforehand.
    return min(executor.capacity, executor.parallel or DEFAULT_PARALLEL)


class TrialLoop:
    """Runs the trials of a search with an executor that the caller has entered.

    capacity: how many trials are open at the same time
    """

    def __init__(
        self,
        plan: SweepPlan,
        executor: Executor,
        composer: CellComposer,
        *,
        capacity: int,
        say: Callable[[str], object],
    ) -> None:
        self.plan = plan
        self.executor = executor
        self.say = say
        self.options = plan.search
        self.capacity = capacity
        self.seeds = list(plan.question["seeds"])
        self.trial_seeds = self.seeds[: self.options.get("seeds", 1)]  # on which each setting runs
        self.owner = Owner(plan.folder)
        self.running: dict[str, tuple[Trials, int]] = {}  # by run
        self.retry_at: dict[str, float] = {}  # when to look again at a run that another process held
        self.metric = ""
        self.direction = ""
        templates = []
        for arm in plan.arms:
            template = arm_template(plan, arm.name, composer)
            if template is not None:
                templates.append(template)
        if templates:
            config = templates[0].variant.config
            reached = of_metric((plan.facts.get("metric") or MetricFacts()).get("name"))
            measured = plan.question.get("metric")
            if reached:  # an outcome of whole runs: its metric chooses
                measured = reached.metric
            self.metric, self.direction = validation_metric(measured, config, list(config.get("allow") or []))
        with exclusive(plan.folder):
            self.arms = [
                Trials.open(template, plan.folder, self.options, self.metric, self.direction, self.seeds[0])
                for template in templates
            ]

    def retry_failed(self) -> None:
        """Create one more attempt at every failed trial."""
        with exclusive(self.plan.folder):
            for arm in self.arms:
                for trial in arm.failed():
                    arm.retry(trial, self.owner.name)

    @property
    def facts(self) -> SearchFacts:
        """The settings of the search, which the plan records with its trials."""
        return {
            "trials": self.options.get("trials"),
            "sampler": self.options["sampler"],
            "pruner": self.options["pruner"],
            "metric": self.metric,
            "direction": self.direction,
            "seed": self.seeds[0],
        }

    def report_failures(self) -> None:
        """Print the arms with failed trials, and the option that tries them again."""
        for arm in self.arms:
            failed = len(arm.failed())
            if failed:
                self.say(f"{arm.arm}: {failed} of {arm.budget} trials failed; --retry tries them again")

    def work(self, stopped: Callable[[], bool]) -> None:
        """Run trials until all trials of every arm have ended, or until stopped."""
        while not stopped():
            # One process at a time, since the setting of a new trial follows from the number of trials.
            with exclusive(self.plan.folder):
                self._start_trials()
            if not self.running and all(arm.finished_count() >= arm.budget for arm in self.arms):
                return
            if not self.running:
                time.sleep(_PAUSE)
                continue
            for outcome in self.executor.poll(_PAUSE):
                if outcome.key in self.running:
                    self._finish(*self.running.pop(outcome.key), outcome)

    def _start_trials(self) -> None:
        """Fill free slots: first with trials of a dead process, then with new ones, alternating between arms."""
        running = {(arm.arm, number) for arm, number in self.running.values()}
        for arm in self.arms:
            for trial in arm.unfinished():
                if (arm.arm, trial.number) in running or not self.owner.may_run(trial):
                    continue
                if len(self.running) < self.capacity:
                    self._start(arm, trial)
        while len(self.running) < self.capacity:
            incomplete = [arm for arm in self.arms if len(arm.counted()) < arm.budget]
            if not incomplete:
                return
            arm = min(incomplete, key=lambda arm: len(arm.counted()))
            self._start(arm, arm.create())

    def _start(self, arm: Trials, trial: FrozenTrial) -> None:
        number = trial.number
        setting = arm.setting(trial)
        values = arm.values(trial)
        seed = next((seed for seed in self.trial_seeds if str(seed) not in values), None)
        if seed is None:  # its process was killed after the last seed
            self._complete(arm, number)
            return
        config, choices, problems = arm.template.config(setting, seed)
        key = None if problems else f"{run_name(config)}/s{seed}"
        is_first_seed = seed == self.trial_seeds[0]
        arm.set_attributes(number, owner=self.owner.name, setting=setting)
        if is_first_seed:
            arm.set_attributes(number, run=key)
        if key is None:
            arm.fail(number, f"refused: {'; '.join(problems)}")
            self._report(arm, number)
            return
        duplicate = arm.duplicate_of(trial, key) if is_first_seed else None
        if duplicate is not None:
            if duplicate.state.is_finished():
                arm.copy_result(number, duplicate)
                self._report(arm, number)
            return
        # A run that is trained already leaves the trial unfinished, so that a later round looks at it again.
        in_use = key in self.running or held(Path(self.plan.outputs) / key)
        if in_use or self.retry_at.get(key, 0.0) > time.monotonic():
            return
        self.running[key] = (arm, number)
        self.executor.submit(
            Task(
                key,
                with_run_name(config, cell_name(arm.arm, setting, seed)),
                choices,
                command=("blockyard", "sweep", self.plan.name),
                retry=bool({"kills", AGAIN} & set(trial.user_attrs)),
                trial={
                    "storage": trial_store.storage_url(self.plan.folder),
                    "study": arm.arm,
                    "number": number,
                    "prunes": is_first_seed,
                },
            )
        )

    def _finish(self, arm: Trials, number: int, outcome: Outcome) -> None:
        """Record how a run ended in the study, or wait where another process holds the run."""
        reason = outcome.reason or f"exit code {outcome.code}"
        kills = int(arm[number].user_attrs.get("kills", 0)) + 1
        if outcome.code == BUSY:
            self.retry_at[outcome.key] = time.monotonic() + _PAUSE
            return
        if outcome.code == 0:
            metrics = final_metrics(Path(self.plan.outputs) / outcome.key, [self.metric])
            value = trial_store.finite_or_none(metrics.get(self.metric))
            if value is None:
                arm.fail(number, f"{self.metric} is not a finite number")
            else:
                values = arm.values(arm[number]) | {outcome.key.rpartition("/s")[2]: value}
                arm.set_attributes(number, values=values)
                if len(values) < len(self.trial_seeds):
                    return
                self._complete(arm, number)
        elif outcome.code != PAUSED and kills < _MAX_KILLS and self._was_killed(outcome):
            arm.set_attributes(number, kills=kills)
            self.say(f"{arm.arm} trial {number}: {reason}; trying once more")
            return
        else:
            arm.fail(number, reason, pruned=outcome.code == PAUSED)
        self._report(arm, number)

    @staticmethod
    def _complete(arm: Trials, number: int) -> None:
        """Record the mean over the seeds as the value of a trial."""
        arm.complete(number, statistics.fmean(arm.values(arm[number]).values()))

    def _was_killed(self, outcome: Outcome) -> bool:
        """Return whether a run was interrupted."""
        if outcome.code < 0 or outcome.code in (130, 143):
            return True
        # Ray and SLURM lose runs without such a code; the status of the run has the reason.
        return read_state(Path(self.plan.outputs) / outcome.key).state == "interrupted"

    def _report(self, arm: Trials, number: int) -> None:
        trial = arm[number]
        setting = " ".join(f"{key}={value}" for key, value in arm.setting(trial).items())
        result = trial.state.name.lower()
        if trial.state.name == "COMPLETE":
            result = f"{self.metric} {trial.values[0]:.4g}"
        if trial.user_attrs.get("reason"):
            result += f" ({trial.user_attrs['reason']})"
        self.say(f"{arm.arm} trial {number}, {arm.finished_count()} of {arm.budget} ended: {setting}: {result}")
