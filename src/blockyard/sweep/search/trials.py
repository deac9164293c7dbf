"""The trials of one arm. Optuna's storage is the only record of them.

Besides Optuna's own fields, a trial has these attributes:

    owner     the name of a lock that tells whether its process is alive
    setting   the config values
    run       the folder of the first seed, below `outputs`
    values    by seed
    kills     of its process
    reason    why it failed or was not trained
    again     the number of the failed trial that it replaces, because a finished trial cannot be reopened
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blockyard.errors import UserError
from blockyard.runs.identity import identity
from blockyard.runs.lock import RunLock, held
from blockyard.sweep.cell import trial_store
from blockyard.sweep.cell.trial_store import SearchPurpose
from blockyard.sweep.cells import SEARCH_LOCK, Setting
from blockyard.sweep.plan.sweep_plan import TrialRecord
from blockyard.sweep.spec.keys import Search, space_of

if TYPE_CHECKING:
    from optuna import Study
    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial

    from blockyard.sweep.search.trial_config import ArmTemplate

AGAIN = "again"


@dataclass
class Trials:
    """The trials of an arm in its study. Create and finish trials only inside `runs.lock.exclusive`.

    search: of the sweep file
    budget: trials that count
    direction: "max" or "min"
    """

    arm: str
    study: Study
    template: ArmTemplate
    search: Search
    space: dict[str, BaseDistribution]
    budget: int
    direction: str

    @classmethod
    def open(
        cls, template: ArmTemplate, folder: Path, search: Search, metric: str, direction: str, seed: int
    ) -> Trials:
        """Open the study of an arm in a sweep's folder, or create it. Call it inside `runs.lock.exclusive`.

        metric: on validation, with its direction; seed: of all trials
        Raises UserError where Optuna rejects the space, or while another process searches for another purpose.
        """
        arm = template.variant.arm
        purpose: SearchPurpose = {
            "metric": metric,
            "pruner": search.get("pruner") or "none",
            "space": space_of(search, arm),
            "seed": seed,
            "identity": identity(template.variant.config),
        }
        try:
            space = trial_store.distributions(space_of(search, arm))
        except (ValueError, KeyError) as error:
            raise UserError(f"search.space: {error}") from error
        if "seeds" in search:  # a value of one seed does not compare with a mean over several
            purpose["seeds"] = search["seeds"]
        study = trial_store.open_study(folder, arm, purpose, direction)
        return cls(arm, study, template, search, space, int(search["trials"]), direction)

    # -- reading ----------------------------------------------------------------------------------------

    def __getitem__(self, number: int) -> FrozenTrial:
        return self.study.get_trials(deepcopy=False)[number]

    def counted(self) -> list[FrozenTrial]:
        """Return the trials that count, in the order of their settings, with the last attempt at each setting."""
        last: dict[int, FrozenTrial] = {}
        for trial in self.study.get_trials(deepcopy=False):
            if self._has_setting(trial):  # a retry takes the place of its trial
                last[trial.user_attrs.get(AGAIN, trial.number)] = trial
        return list(last.values())[: self.budget]

    def unfinished(self) -> list[FrozenTrial]:
        """Return the trials that have not ended."""
        return [trial for trial in self.counted() if not trial.state.is_finished()]

    def finished_count(self) -> int:
        """Return the number of trials that have ended."""
        return sum(trial.state.is_finished() for trial in self.counted())

    def failed(self) -> list[FrozenTrial]:
        """Return the trials that have failed. Pruned trials have not."""
        return [trial for trial in self.counted() if trial.state.name == "FAIL"]

    def setting(self, trial: FrozenTrial) -> Setting:
        """Return the config values that a trial tries."""
        return trial.user_attrs.get("setting") or trial_store.to_setting(trial.params, space_of(self.search, self.arm))

    def values(self, trial: FrozenTrial) -> dict[str, float]:
        """Return the value of each seed that has run to its end."""
        return dict(trial.user_attrs.get("values") or {})

    def duplicate_of(self, trial: FrozenTrial, run: str) -> FrozenTrial | None:
        """Return the first earlier trial of the same run, or None."""
        earlier = [other for other in self.counted() if other.number < trial.number]
        same_run = [other for other in earlier if other.user_attrs.get("run") == run]
        return min(same_run, key=lambda other: other.number, default=None)

    def best(self) -> FrozenTrial | None:
        """Return the best complete trial, the first of equal ones; None without one."""
        sign = 1.0 if self.direction == "min" else -1.0
        complete = [trial for trial in self.counted() if trial.state.name == "COMPLETE"]
        return min(complete, key=lambda trial: (sign * trial.values[0], trial.number), default=None)

    def record(self) -> list[TrialRecord]:
        """Return all trials as plain data."""
        records: list[TrialRecord] = []
        for trial in self.counted():
            curve = [value for _, value in sorted(trial.intermediate_values.items())]
            records.append(
                {
                    "number": trial.number,
                    "state": trial.state.name.lower(),
                    "setting": self.setting(trial),
                    "value": trial.values[0] if trial.state.name == "COMPLETE" else None,
                    "run": trial.user_attrs.get("run"),
                    "values": self.values(trial),
                    "reason": trial.user_attrs.get("reason"),
                    "curve": list(map(trial_store.finite_or_none, curve)),
                }
            )
        return records

    def _has_setting(self, trial: FrozenTrial) -> bool:
        """Return whether all values are there: Optuna stores a new trial first, and then its values one by one."""
        return trial.params.keys() >= self.space.keys()

    # -- writing ----------------------------------------------------------------------------------------

    def create(self) -> FrozenTrial:
        """Create the next trial. Its setting depends on its number."""
        from optuna.trial import TrialState

        trials = self.study.get_trials(deepcopy=False)
        # A process that died while its trial was created left half a setting. The trial is closed, and a complete one
        # created in its place, so that `random` still tries the same settings for every arm.
        for trial in trials:
            if not self._has_setting(trial) and not trial.state.is_finished():
                self.study.tell(trial.number, state=TrialState.FAIL)
        number = sum(self._has_setting(trial) and AGAIN not in trial.user_attrs for trial in trials)
        self.study.sampler = trial_store.make_sampler(self.search.get("sampler") or "tpe", number)
        return self[self.study.ask(fixed_distributions=self.space).number]

    def retry(self, trial: FrozenTrial, owner: str) -> None:
        """Create another attempt at the setting of a failed trial. The attempt replaces the trial."""
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

    def set_attributes(self, number: int, **attributes: Any) -> None:
        """Store attributes of a trial."""
        trial = self[number]
        for name, value in attributes.items():
            if name not in trial.user_attrs or trial.user_attrs[name] != value:
                # Through the storage, since Optuna's `Trial` would call the sampler again.
                self.study._storage.set_trial_user_attr(trial._trial_id, name, value)

    def complete(self, number: int, value: float) -> None:
        """Record the value of a run that was trained to its end."""
        from optuna.trial import TrialState

        self.study.tell(number, value, state=TrialState.COMPLETE, skip_if_finished=True)

    def fail(self, number: int, reason: str, *, pruned: bool = False) -> None:
        """Record that a run failed, was refused, or was pruned."""
        from optuna.trial import TrialState

        if not self[number].state.is_finished():
            self.set_attributes(number, reason=reason)
        state = TrialState.PRUNED if pruned else TrialState.FAIL
        self.study.tell(number, state=state, skip_if_finished=True)

    def copy_result(self, number: int, duplicate: FrozenTrial) -> None:
        """Record the result of an earlier trial with the same run. The trial counts, but is not trained twice."""
        reason = f"same setting as trial {duplicate.number}"
        if duplicate.state.name == "COMPLETE":
            self.set_attributes(number, reason=reason)
            self.complete(number, duplicate.values[0])
        else:
            detail = f"{reason}: {duplicate.user_attrs.get('reason')}"
            self.fail(number, detail, pruned=duplicate.state.name == "PRUNED")


class Owner:
    """The searching process, to which its trials belong by a lock in the sweep's folder that ends with the process.

    name: of the lock, which the trials have as attribute `owner`
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.name = f"{SEARCH_LOCK}-{os.getpid()}-{secrets.token_hex(4)}"

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the lock. Other processes take over trials whose lock is free."""
        lock = RunLock(self.folder / self.name).acquire()
        try:
            yield
        finally:
            lock.path.unlink(missing_ok=True)
            lock.release()

    def may_run(self, trial: FrozenTrial) -> bool:
        """Return whether a trial belongs to this process, or to a process that has ended."""
        owner = str(trial.user_attrs.get("owner"))
        return owner == self.name or not held(self.folder / owner)
