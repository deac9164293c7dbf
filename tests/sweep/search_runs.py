"""A small plan with a search, and an executor that trains nothing."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna

from blockyard.atomic_files import write_json, write_yaml
from blockyard.engine.faults.interrupts import PAUSED
from blockyard.runs.identity import run_name
from blockyard.runs.status import Status, write_status
from blockyard.sweep.cell import trial_store
from blockyard.sweep.cells import Arm, Outcome, Task
from blockyard.sweep.executor.base import Executor
from blockyard.sweep.plan.sweep_plan import SweepPlan
from tests.support.tiny import TINY, configured, plan_of

RATES = {"optimizer.lr": {"low": 1e-4, "high": 1e-1, "log": True}}
ARMS = (Arm("pre", ("block=pre_norm",)), Arm("post", ("block=post_norm",)))


def plan(
    outputs: Path,
    *,
    trials: int = 6,
    space: dict[str, Any] | None = None,
    arms: tuple[Arm, ...] = ARMS,
    base: tuple[str, ...] = TINY,
    sampler: str = "tpe",
    pruner: str = "none",
    metric: str | None = None,
    seeds: Any = 2,
) -> SweepPlan:
    """A plan as the planner makes it from a sweep file with `search:`."""
    question = {
        "base": list(base),
        "seeds": list(range(seeds)) if isinstance(seeds, int) else list(seeds),
        "metric": metric,
        "search": {"trials": trials, "sampler": sampler, "pruner": pruner, "space": space or RATES},
    }
    configs = {arm.name: configured(*base, *arm.overrides) for arm in arms}
    return plan_of("hunt", outputs, arms, configs, {}, question=question)


def peak(config: dict[str, Any]) -> float:
    """A score that is best at a learning rate of 0.01, and differs between the arms."""
    off = abs(math.log10(config["optimizer"]["lr"] / 0.01))
    return 0.9 - 0.1 * off - (0.05 if "PostNorm" in config["block"]["_target_"] else 0.0)


class Fake(Executor):
    """Ends tasks in the order of submission, each with a run folder as a real run leaves it.

    score: config -> validation accuracy, or an exit code below 1000 with a reason
    """

    def __init__(self, score: Callable[[dict[str, Any]], Any] = peak, capacity: int = 2) -> None:
        self.score, self._capacity = score, capacity
        self.tasks: list[Task] = []
        self.waiting: list[Task] = []

    def __enter__(self) -> Fake:
        return self

    def __exit__(self, *error: object) -> None:
        self.waiting.clear()

    @property
    def capacity(self) -> int:
        return self._capacity

    def submit(self, task: Task) -> None:
        assert len(self.waiting) < self._capacity
        assert task.key not in {other.key for other in self.waiting}
        self.tasks.append(task)
        self.waiting.append(task)

    def poll(self, seconds: float) -> list[Outcome]:
        return [self.end(self.waiting.pop(0))] if self.waiting else []

    def end(self, task: Task) -> Outcome:
        """End one run."""
        value = self.score(task.config)
        if isinstance(value, tuple):
            return Outcome(task.key, *value)
        path = Path(task.config["outputs"]) / task.key
        assert task.key == f"{run_name(task.config)}/s{task.config['seed']}"
        write_json(
            path / "summary.json", {"metrics": {"val/accuracy": value, "test/accuracy": 0.0, "val/loss": -value}}
        )
        write_status(path, Status("done", exit_code=0))
        write_yaml(path / "config.yaml", task.config)
        return Outcome(task.key, 0)


PRUNED = (PAUSED, "pruned at step 8 by median: val/accuracy 0.1 in evaluation 1")


def trials(sweep_plan: SweepPlan, arm: str) -> list[Any]:
    """The trials of an arm, as the study of the plan's folder holds them."""
    return optuna.load_study(
        study_name=arm, storage=trial_store.storage(trial_store.storage_url(sweep_plan.folder))
    ).get_trials()


def states(sweep_plan: SweepPlan, arm: str) -> list[str]:
    """Their states, in their order."""
    return [trial.state.name for trial in trials(sweep_plan, arm)]
