"""A trial of a search, in the process of its run: reports the validation curve and leaves where it is pruned.

A pruned run is not done: its state is saved, it is `interrupted`, and whoever trains the same config
later goes on with it to the end, bit by bit as if it had never been left.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, ClassVar

from blockyard.engine.callbacks.base import RunCallback, RunState
from blockyard.runs.folder import RunFolder
from blockyard.runs.metrics import FILE as METRICS
from blockyard.runs.metrics_table import read_metrics
from blockyard.sweep.executor.base import Task
from blockyard.sweep.search.optuna_store import QUESTION, make_pruner, make_sampler, storage

log = logging.getLogger("blockyard")

NAME = "trial"  # of the watcher and of what run.json says of it


def watchers(task: Task) -> dict[str, RunCallback]:
    """What `engine.fit.train` is given beside the config's callbacks where the task is a trial; else nothing.

    Called by who holds the run's lock: the trial is written into run.json.
    """
    if task.trial is None:
        return {}
    folder = RunFolder.open(Path(str(task.config["outputs"])) / task.key)
    folder.add_facts({NAME: {key: task.trial[key] for key in ("storage", "study", "number")}})
    return {NAME: Reporter(folder, task.trial)}


class Reporter(RunCallback):
    """Tells the study each evaluation, numbered from 1, and asks it whether to go on.

    A storage that does not answer is one warning: the run then goes to its end unpruned.
    """

    incidental: ClassVar[frozenset[str]] = frozenset({"*"})
    turn = 5  # after early stopping, before the checkpoint

    def __init__(self, folder: RunFolder, trial: dict[str, Any]) -> None:
        self._folder = folder
        self._where = trial
        self._trial: Any = None
        self._metric = ""
        self._pruner = ""
        self._count = 0

    def begin(self, live: RunState) -> None:
        """Find the trial; say again what a run that is taken up had found before."""
        self._safely(self._open)
        if self._trial is None:
            return
        for row in read_metrics(self._folder.path / METRICS):
            if self._metric in row and row["step"] <= live.step:
                self._safely(lambda value=row[self._metric]: self._report(value))

    def evaluated(self, live: RunState, values: dict[str, float]) -> None:
        """Report, and leave where the pruner says so; a run that ends here anyway is left to end."""
        if self._trial is None:
            return
        value = values[self._metric]
        self._safely(lambda: self._report(value))
        if live.step >= live.total or live.stop:
            return
        if self._safely(lambda: self._trial.should_prune()):
            live.leave = (
                f"pruned at step {live.step} by {self._pruner}: {self._metric} {value:.4g} in evaluation {self._count}"
            )

    def _open(self) -> None:
        import optuna

        study = optuna.load_study(study_name=self._where["study"], storage=storage(self._where["storage"]))
        asked = study.user_attrs[QUESTION]
        self._metric, self._pruner = asked["metric"], asked["pruner"]
        study.pruner, study.sampler = make_pruner(self._pruner), make_sampler("random", 0)
        frozen = study.get_trials(deepcopy=False)[self._where["number"]]
        # Elsewhere told already: only what `blockyard sweep` reads counts then.
        self._trial = None if frozen.state.is_finished() else optuna.trial.Trial(study, frozen._trial_id)

    def _report(self, value: float) -> None:
        self._count += 1
        if self._count not in self._trial.storage.get_trial(self._trial._trial_id).intermediate_values:
            self._trial.report(value, step=self._count)

    def _safely(self, call: Any) -> Any:
        try:
            return call()
        except Exception as error:  # whatever a database does, the run goes on
            self._trial = None
            why = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:200]}"
            log.warning("trial %s of %s is not pruned: %s", self._where["number"], self._where["study"], why)
            return None
