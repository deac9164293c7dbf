"""The callback of a search's trial: reports the validation curve to Optuna and stops the run where it is pruned.

A pruned run is not done: it is saved and `interrupted`. Training the same config later resumes it, and the
result is bitwise equal to that of a run that was never pruned.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, ClassVar

from blockyard.engine.callbacks.base import RunCallback, RunState
from blockyard.runs.folder import RunFolder
from blockyard.runs.metrics import FILE as METRICS
from blockyard.runs.metrics import read_metrics
from blockyard.sweep.cell.trial_store import QUESTION, make_pruner, make_sampler, storage
from blockyard.sweep.cells import Task, TrialAddress

log = logging.getLogger("blockyard")

NAME = "trial"  # of the callback and of the facts in run.json


def trial_callbacks(task: Task) -> dict[str, RunCallback]:
    """The callbacks that `engine.run.train` gets besides those of the config; none where the task is not a trial.

    Writes the trial to run.json, so the caller must hold the run's lock.
    """
    if task.trial is None:
        return {}
    folder = RunFolder.open(Path(str(task.config["outputs"])) / task.key)
    folder.add_facts({NAME: {key: task.trial[key] for key in ("storage", "study", "number")}})
    if not task.trial.get("prunes", True):  # a later seed of a setting whose first one ran to its end
        return {}
    return {NAME: TrialReporter(folder, task.trial)}


class TrialReporter(RunCallback):
    """Reports each evaluation to the study, numbered from 1, and stops the run where the pruner decides so.

    If the storage fails, one warning is logged and the run continues to its end without pruning.
    """

    incidental: ClassVar[frozenset[str]] = frozenset({"*"})
    priority = 5  # after early stopping, before the checkpoint

    def __init__(self, folder: RunFolder, trial: TrialAddress) -> None:
        self._folder = folder
        self._address = trial
        self._trial: Any = None
        self._metric = ""
        self._pruner = ""
        self._count = 0

    def on_run_start(self, state: RunState) -> None:
        """Open the trial, and report the evaluations that a resumed run made before."""
        self._guarded(self._open)
        if self._trial is None:
            return
        for row in read_metrics(self._folder.path / METRICS):
            if self._metric in row and row["step"] <= state.step:
                self._guarded(lambda value=row[self._metric]: self._report(value))

    def on_evaluate(self, state: RunState, values: dict[str, float]) -> None:
        """Report the value, and stop where the pruner decides so, unless the run ends here anyway."""
        if self._trial is None:
            return
        value = values[self._metric]
        self._guarded(lambda: self._report(value))
        if state.step >= state.total or state.stop:
            return
        if self._guarded(lambda: self._trial.should_prune()):
            state.pause = (
                f"pruned at step {state.step} by {self._pruner}: {self._metric} {value:.4g} in evaluation {self._count}"
            )

    def _open(self) -> None:
        import optuna

        study = optuna.load_study(study_name=self._address["study"], storage=storage(self._address["storage"]))
        purpose = study.user_attrs[QUESTION]
        self._metric, self._pruner = purpose["metric"], purpose["pruner"]
        study.pruner, study.sampler = make_pruner(self._pruner), make_sampler("random", 0)
        frozen = study.get_trials(deepcopy=False)[self._address["number"]]
        # A finished trial has its result already.
        self._trial = None if frozen.state.is_finished() else optuna.trial.Trial(study, frozen._trial_id)

    def _report(self, value: float) -> None:
        self._count += 1
        if self._count not in self._trial.storage.get_trial(self._trial._trial_id).intermediate_values:
            self._trial.report(value, step=self._count)

    def _guarded(self, call: Any) -> Any:
        try:
            return call()
        except Exception as error:  # a broken database must not stop the run
            self._trial = None
            reason = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:200]}"
            log.warning("trial %s of %s is not pruned: %s", self._address["number"], self._address["study"], reason)
            return None
