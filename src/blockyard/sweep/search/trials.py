"""The trials of one arm: what was tried, by whom, and what came of it. Optuna's record is the only memory.

Beside Optuna's own, a trial carries: owner (whose lock says whether it is alive), setting, run (the
folder under `outputs`), kills (of its process), reason, and `again` (the number of the failed trial
that it takes the place of: what has ended cannot be opened again).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blockyard.errors import UserError
from blockyard.runs.identity import identity
from blockyard.sweep.search import optuna_store
from blockyard.sweep.search.trial_config import Template

if TYPE_CHECKING:
    from optuna import Study
    from optuna.trial import FrozenTrial


AGAIN = "again"


@dataclass
class Trials:
    """An arm's study and what all its trials share. Asking and telling is for who is `alone`.

    search: the sweep file's; budget: trials that count; direction: "max" or "min"
    """

    arm: str
    study: Study
    template: Template
    search: dict[str, Any]
    space: dict[str, Any]
    budget: int
    direction: str

    @classmethod
    def of(
        cls, template: Template, folder: Path, search: dict[str, Any], metric: str, direction: str, seed: int
    ) -> Trials:
        """The study of an arm in a sweep's folder, made where there is none. Call it inside `studies.alone`.

        metric: of validation, with its direction; seed: of all trials
        Raises UserError where the space does not fit Optuna, or while another process searches otherwise.
        """
        asked = {
            "metric": metric,
            "pruner": search.get("pruner") or "none",
            "space": search["space"],
            "seed": seed,
            "identity": identity(template.variant.config),
        }
        try:
            space = optuna_store.distributions(search["space"])
        except (ValueError, KeyError) as error:
            raise UserError(f"search.space: {error}") from error
        arm = template.variant.arm
        study = optuna_store.study_of(folder, arm, asked, direction)
        return cls(arm, study, template, search, space, int(search["trials"]), direction)

    def all(self) -> list[FrozenTrial]:
        """Those that count, in the order of their settings; where one was tried again, the last attempt."""
        last: dict[int, FrozenTrial] = {}
        for trial in self.study.get_trials(deepcopy=False):
            if self._drawn(trial):
                last[trial.user_attrs.get(AGAIN, trial.number)] = trial
        return list(last.values())[: self.budget]

    def _drawn(self, trial: FrozenTrial) -> bool:
        """Whether its setting is whole: Optuna writes a trial first, and then its values one by one."""
        return trial.params.keys() >= self.space.keys()

    def open(self) -> list[FrozenTrial]:
        """Those that have not ended."""
        return [trial for trial in self.all() if not trial.state.is_finished()]

    def ended(self) -> int:
        """How many have ended."""
        return sum(trial.state.is_finished() for trial in self.all())

    def failed(self) -> list[FrozenTrial]:
        """Those that have failed; a pruned one has not."""
        return [trial for trial in self.all() if trial.state.name == "FAIL"]

    def again(self, trial: FrozenTrial, owner: str) -> None:
        """Open another attempt at a failed trial's setting, in its place."""
        from optuna.trial import TrialState, create_trial

        first = trial.user_attrs.get(AGAIN, trial.number)
        self.study.add_trial(
            create_trial(
                state=TrialState.RUNNING,
                params=trial.params,
                distributions=trial.distributions,
                user_attrs={AGAIN: first, "owner": owner},
            )
        )

    def ask(self) -> FrozenTrial:
        """A new trial, with the setting that its place in the row has.

        Whoever died while a trial was drawn left half a setting: it is closed, and drawn anew as a whole,
        so that what `random` tries stays the same for every arm.
        """
        from optuna.trial import TrialState

        trials = self.study.get_trials(deepcopy=False)
        for half in trials:
            if not self._drawn(half) and not half.state.is_finished():
                self.study.tell(half.number, state=TrialState.FAIL)
        number = sum(self._drawn(trial) and AGAIN not in trial.user_attrs for trial in trials)
        self.study.sampler = optuna_store.make_sampler(self.search.get("sampler") or "tpe", number)
        return self[self.study.ask(fixed_distributions=self.space).number]

    def __getitem__(self, number: int) -> FrozenTrial:
        return self.study.get_trials(deepcopy=False)[number]

    def note(self, number: int, **facts: Any) -> None:
        """Write down facts of a trial."""
        trial = self[number]
        for name, value in facts.items():
            if name not in trial.user_attrs or trial.user_attrs[name] != value:
                # Optuna's `Trial` would ask the sampler anew.
                self.study._storage.set_trial_user_attr(trial._trial_id, name, value)

    def setting(self, trial: FrozenTrial) -> dict[str, Any]:
        """The values that a trial tries."""
        return trial.user_attrs.get("setting") or optuna_store.setting_of(trial.params, self.search["space"])

    def twin(self, trial: FrozenTrial, run: str) -> FrozenTrial | None:
        """An earlier trial of the same run."""
        same = (t for t in self.all() if t.number < trial.number and t.user_attrs.get("run") == run)
        return min(same, key=lambda t: t.number, default=None)

    def done(self, number: int, value: float) -> None:
        """The run was made to its end."""
        from optuna.trial import TrialState

        self.study.tell(number, value, state=TrialState.COMPLETE, skip_if_finished=True)

    def lost(self, number: int, reason: str, *, pruned: bool = False) -> None:
        """The run failed, was refused, or was pruned."""
        from optuna.trial import TrialState

        if not self[number].state.is_finished():
            self.note(number, reason=reason)
        state = TrialState.PRUNED if pruned else TrialState.FAIL
        self.study.tell(number, state=state, skip_if_finished=True)

    def copy(self, number: int, twin: FrozenTrial) -> None:
        """The same setting again gives the same run again: it counts, and is not made twice."""
        reason = f"the setting of trial {twin.number}"
        if twin.state.name == "COMPLETE":
            self.note(number, reason=reason)
            self.done(number, twin.values[0])
        else:
            why = f"{reason}: {twin.user_attrs.get('reason')}"
            self.lost(number, why, pruned=twin.state.name == "PRUNED")

    def best(self) -> FrozenTrial | None:
        """The best one that was run to its end; of equals the first."""
        sign = 1.0 if self.direction == "min" else -1.0
        complete = [trial for trial in self.all() if trial.state.name == "COMPLETE"]
        return min(complete, key=lambda trial: (sign * trial.values[0], trial.number), default=None)

    def record(self) -> list[dict[str, Any]]:
        """All trials as plain data."""
        return [
            {
                "number": trial.number,
                "state": trial.state.name.lower(),
                "setting": self.setting(trial),
                "value": trial.values[0] if trial.state.name == "COMPLETE" else None,
                "run": trial.user_attrs.get("run"),
                "reason": trial.user_attrs.get("reason"),
                "curve": [optuna_store.number_or_none(value) for _, value in sorted(trial.intermediate_values.items())],
            }
            for trial in self.all()
        ]
