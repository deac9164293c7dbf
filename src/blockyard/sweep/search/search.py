"""Searching each arm's best setting on validation, the same number of trials for every arm.

A trial is a run like any other, in a folder of its own; Optuna's record beside the runs says which
settings were tried, and every process that searches works from it: the same command goes on after
a kill, a second one helps, and neither makes a trial too many. A trial that its process left behind
is taken over with its setting, and its run goes on where it stood; one that failed is tried again on
request, with its setting and in its place.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blockyard.config.check_cache import CheckCache
from blockyard.config.compose_many import Composer
from blockyard.engine.system.interrupts import LEFT
from blockyard.runs.folder import RunFolder
from blockyard.runs.identity import run_name
from blockyard.runs.lock import RunLock, held
from blockyard.sweep.execution.cell_states import standing
from blockyard.sweep.executor.base import BUSY, Executor, Outcome, Task
from blockyard.sweep.plan import history
from blockyard.sweep.plan.shared_settings import called
from blockyard.sweep.plan.sweep_plan import SweepPlan
from blockyard.sweep.search import optuna_store
from blockyard.sweep.search.best_settings import settled
from blockyard.sweep.search.trial_config import Compose, template
from blockyard.sweep.search.trials import AGAIN, Trials

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

_KILLS = 2  # of its process, after which a trial has failed
_PAUSE = 1.0  # seconds between two looks where there is nothing to do but wait for others
UNKNOWN = 8  # trials at once where who runs them does not say how many run together


def run(
    plan: SweepPlan,
    executor: Executor,
    *,
    retry: bool = False,
    elsewhere: bool = False,
    say: Callable[[str], None] = lambda _: None,
    stopped: Callable[[], bool] = lambda: False,
    compose: Compose | None = None,
) -> SweepPlan:
    """Search every arm; gives the plan with the best setting of each, over all seeds, as its cells, and saves it.

    executor: entered by the caller, whose leaving it stops what still runs
    retry: try failed trials again, each with its setting
    elsewhere: whether trials run on other machines, so that GPUs missing here are no reason against them
    stopped: whether to give up, asked once a second; the plan then comes back as it was
    compose: how a family is composed anew, where the space names one
    Raises UserError where the metric is not measured on validation or the space does not fit Optuna.
    """
    if not plan.question.get("search"):
        return plan
    # A family that the space names is composed beside the user's own folders, as the planner did.
    compose = compose or Composer(plan.facts.get("config_dirs") or ()).compose
    search = _Search(plan, executor, say, compose, CheckCache(elsewhere))
    with search.owned():
        if retry:
            search.again()
        search.work(stopped)
    if stopped():
        return plan
    search.told_of_failures()
    found = settled(plan, search.arms, search.facts, search.seeds)
    for line in history.store(found):
        say(line)
    return found


def at_once(executor: Executor, search: dict[str, Any]) -> int:
    """How many trials are open at the same time.

    What learns from trials that have ended, the sampler or the pruner, is not asked for all of them
    before the first one has: so there as many as run together, and UNKNOWN where nobody can say.
    """
    if (search.get("sampler") or "tpe") == "random" and (search.get("pruner") or "none") == "none":
        return executor.places
    return min(executor.places, executor.parallel or UNKNOWN)


class _Search:
    def __init__(
        self, plan: SweepPlan, executor: Executor, say: Callable[[str], None], compose: Compose, judge: CheckCache
    ) -> None:
        self.plan, self.executor, self.say = plan, executor, say
        self.asked: dict[str, Any] = plan.question["search"]
        self.places = at_once(executor, self.asked)
        seeds = plan.question["seeds"]
        self.seeds: list[int] = list(range(seeds)) if isinstance(seeds, int) else list(seeds)
        self.owner = f"search-{os.getpid()}-{secrets.token_hex(4)}"
        self.flying: dict[str, tuple[Trials, int]] = {}  # by run
        self.later: dict[str, float] = {}  # runs that somebody else had a moment ago
        self.metric, self.direction = "", ""
        made = (template(plan, arm.name, compose, judge) for arm in plan.arms)
        templates = [found for found in made if found is not None]
        if templates:
            config = templates[0].variant.config
            allow = list(config.get("allow") or [])
            self.metric, self.direction = optuna_store.target(plan.question.get("metric"), config, allow)
        with optuna_store.alone(plan.folder):
            self.arms = [
                Trials.of(found, plan.folder, self.asked, self.metric, self.direction, self.seeds[0])
                for found in templates
            ]

    @contextmanager
    def owned(self) -> Iterator[None]:
        """Hold a lock that dies with this process: it tells others whose trials are left behind."""
        lock = RunLock(self.plan.folder / self.owner).acquire()
        try:
            yield
        finally:
            lock.path.unlink(missing_ok=True)
            lock.release()

    def again(self) -> None:
        """Open every failed trial again, once."""
        with optuna_store.alone(self.plan.folder):
            for arm in self.arms:
                for trial in arm.failed():
                    arm.again(trial, self.owner)

    @property
    def facts(self) -> dict[str, Any]:
        """What is to be known of the search beside its trials."""
        asked = {name: self.asked.get(name) for name in ("trials", "sampler", "pruner")}
        return asked | {"metric": self.metric, "direction": self.direction, "seed": self.seeds[0]}

    def told_of_failures(self) -> None:
        """Say which arms have failed trials, and what tries them again."""
        for arm in self.arms:
            if failed := len(arm.failed()):
                self.say(f"{arm.arm}: {failed} of {arm.budget} trials failed; --retry tries them again")

    def work(self, stopped: Callable[[], bool]) -> None:
        """Until no trial of any arm is left to make or to wait for, or until told to stop."""
        while not stopped():
            with optuna_store.alone(self.plan.folder):
                self._fill()
            if not self.flying and all(arm.ended() >= arm.budget for arm in self.arms):
                return
            if not self.flying:
                time.sleep(_PAUSE)
                continue
            for outcome in self.executor.poll(_PAUSE):
                if outcome.key in self.flying:
                    self._ended(*self.flying.pop(outcome.key), outcome)

    # -- what to start ----------------------------------------------------------------------------------

    def _fill(self) -> None:
        """Start what there is a place for: trials left behind first, then new ones, the arms in turn."""
        for arm in self.arms:
            for trial in arm.open():
                if self._mine(trial) and len(self.flying) < self.places:
                    self._start(arm, trial)
        while len(self.flying) < self.places:
            waiting = [arm for arm in self.arms if len(arm.all()) < arm.budget]
            if not waiting:
                return
            arm = min(waiting, key=lambda arm: len(arm.all()))
            self._start(arm, arm.ask())

    def _mine(self, trial: FrozenTrial) -> bool:
        owner = str(trial.user_attrs.get("owner"))
        return owner == self.owner or not held(self.plan.folder / owner)

    def _start(self, arm: Trials, trial: FrozenTrial) -> None:
        number, setting = trial.number, arm.setting(trial)
        config, choices, problems = arm.template.config(setting, self.seeds[0])
        key = None if problems else f"{run_name(config)}/s{self.seeds[0]}"
        arm.note(number, owner=self.owner, setting=setting, run=key)
        if key is None:
            arm.lost(number, f"refused: {'; '.join(problems)}")
            self._told(arm, number)
            return
        twin = arm.twin(trial, key)
        if twin is not None:
            if twin.state.is_finished():
                arm.copy(number, twin)
                self._told(arm, number)
            return
        if key in self.flying or held(Path(self.plan.outputs) / key) or self.later.get(key, 0.0) > time.monotonic():
            return
        self.flying[key] = (arm, number)
        self.executor.submit(
            Task(
                key,
                called(config, f"{arm.arm}#{number}/s{self.seeds[0]}"),
                choices,
                command=("blockyard", "sweep", self.plan.name),
                retry=bool({"kills", AGAIN} & set(trial.user_attrs)),
                trial={"storage": optuna_store.address(self.plan.folder), "study": arm.arm, "number": number},
            )
        )

    def _ended(self, arm: Trials, number: int, outcome: Outcome) -> None:
        """What an executor says of a run, told to the study; a run that another process has is waited for."""
        reason = outcome.reason or f"exit code {outcome.code}"
        kills = int(arm[number].user_attrs.get("kills", 0)) + 1
        if outcome.code == BUSY:
            self.later[outcome.key] = time.monotonic() + _PAUSE
            return
        if outcome.code == 0:
            summary = RunFolder.open(Path(self.plan.outputs) / outcome.key).summary()
            value = optuna_store.number_or_none(summary.get("metrics", {}).get(self.metric))
            if value is None:
                arm.lost(number, f"its {self.metric} is no number")
            else:
                arm.done(number, value)
        elif outcome.code != LEFT and kills < _KILLS and self._killed(outcome):
            arm.note(number, kills=kills)
            self.say(f"{arm.arm} trial {number}: {reason}; once more")
            return
        else:
            arm.lost(number, reason, pruned=outcome.code == LEFT)
        self._told(arm, number)

    def _killed(self, outcome: Outcome) -> bool:
        """Whether a run was cut off; of one that Ray or SLURM lost, its own status says so."""
        if outcome.code < 0 or outcome.code in (130, 143):
            return True
        return standing(Path(self.plan.outputs) / outcome.key).state == "interrupted"

    def _told(self, arm: Trials, number: int) -> None:
        trial = arm[number]
        words = " ".join(f"{key}={value}" for key, value in arm.setting(trial).items())
        value = f"{self.metric} {trial.values[0]:.4g}" if trial.state.name == "COMPLETE" else trial.state.name.lower()
        reason = "".join(f" ({text})" for text in [trial.user_attrs.get("reason")] if text)
        self.say(f"{arm.arm} trial {number}, {arm.ended()} of {arm.budget} ended: {words}: {value}{reason}")
