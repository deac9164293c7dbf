"""Weights & Biases: offline unless the user is logged in or sets a mode.

The record carries the config with the names of what was chosen (`choices.position`), group, job type, name and tags;
its id is in run.json before the first step and the same on resume. Its files are in the run folder, under `wandb/`;
`wandb sync RUN/wandb/offline-run-*` uploads a run that was recorded offline.

W&B gets neither the command line nor the console nor the state of the code, because they may hold secrets; run.json
has them redacted.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from blockyard.contracts import Text
from blockyard.engine.loggers._wandb import Mode, logged_in, resolve, tear_down
from blockyard.engine.loggers._wandb_run import RunSettings, close_run, conclude, define, directions, open_run
from blockyard.engine.loggers.base import RunLogger
from blockyard.errors import UserError
from blockyard.runs.folder import RunFolder

# Of the summary: what is in the metrics, in the curves, or says how they are read.
_NOISE = ("metrics", "directions", "monitor", "kernels", "final", "refused", "classes")


class Wandb(RunLogger):
    """Mirrors metrics to W&B, or to W&B files for later.

    Options:
        project: that lists the run
        entity: user or team; null is the account's own
        mode: auto follows WANDB_MODE, else is online where there is a login, else offline
        group: groups runs; null is the arm, the same for all its seeds
        job_type: of the run in its group
        name: of the run; null is the config's name and the seed
        tags: added to the config's tags
        system_metrics: whether W&B samples the machine every 15 s
    """

    package = "wandb"

    def __init__(
        self,
        *,
        project: Text = "blockyard",
        entity: Text | None = None,
        mode: Literal["auto", "online", "offline", "disabled"] = "auto",
        group: Text | None = None,
        job_type: Text = "train",
        name: Text | None = None,
        tags: list[str] | None = None,
        system_metrics: bool = False,
    ) -> None:
        # W&B uploads its own error reports at the end of the process, which would wait for them.
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        self.project = project
        self.entity = entity
        self.configured_mode = mode
        self.group = group
        self.job_type = job_type
        self.name = name
        self.tags = list(tags or ())
        self.system_metrics = system_metrics
        self._id: str | None = None
        self._run: Any = None

    @property
    def mode(self) -> Mode:
        """The mode with `auto` resolved in the current environment."""
        return resolve(self.configured_mode)

    def ready(self) -> None:
        """Raise UserError without the package, or for mode=online without a login."""
        super().ready()
        if self.mode == "online" and not logged_in():
            raise UserError(
                "logger.mode=online (or WANDB_MODE=online) needs a login: run `wandb login`, or set WANDB_API_KEY; "
                "logger.mode=offline records in the run folder"
            )

    def prepare(self, folder: RunFolder) -> None:
        """Choose the id, or take that of the earlier attempt, and save it in run.json."""
        recorded = folder.facts().get("wandb") or {}
        # An agent of a W&B sweep waits for the run whose id it has chosen.
        required = os.environ.get("WANDB_RUN_ID") if os.environ.get("WANDB_SWEEP_ID") else None
        self._id = required or recorded.get("id") or secrets.token_hex(4)
        folder.add_facts({"wandb": {"id": self._id, "project": self.project, "entity": self.entity}})

    def start(self, folder: RunFolder, config: dict[str, Any]) -> None:
        """Open the record; offline, with one message, where the server does not answer."""
        mode = self.mode
        if mode == "disabled":
            return
        self._run = open_run(self._settings(folder), config, mode)
        define(self._run, directions(folder.config))

    def _settings(self, folder: RunFolder) -> RunSettings:
        tags = dict.fromkeys([*(folder.shown.get("tags") or ()), *self.tags])
        arm = folder.path.parent.name
        return RunSettings(
            folder=folder.path,
            id=self._id or secrets.token_hex(4),
            project=self.project,
            entity=self.entity,
            group=self.group or arm,
            job_type=self.job_type,
            name=self.name or f"{folder.shown.get('name') or arm}/{folder.path.name}",
            tags=list(tags),
            system_metrics=self.system_metrics,
        )

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Log one row at this step."""
        if self._run is not None:
            self._run.log(dict(values), step=step)

    def finish(self, state: str, summary: Mapping[str, Any]) -> None:
        """Write the summary, its metrics under their own names, and close the record as finished or failed."""
        if self._run is None:
            return
        values = {key: value for key, value in summary.items() if key not in _NOISE and value is not None}
        conclude(self._run, {**values, **(summary.get("metrics") or {}), "state": state})
        run, self._run = self._run, None
        close_run(run, failed=state != "done")

    def pictures(self, folder: RunFolder, kind: str, pictures: Mapping[str, Path]) -> str | None:
        """Log images in a separate W&B run, in the same group, with job type `inspect`.

        Logging under the run's id again would replace the rows that W&B has.
        """
        import wandb

        mode = self.mode
        if mode == "disabled":
            return None
        run_id = (folder.facts().get("wandb") or {}).get("id") or secrets.token_hex(4)
        own = self._settings(folder)
        settings = replace(own, id=f"{run_id}-{kind}", job_type="inspect", name=f"{own.name}/{kind}")
        run = open_run(settings, {"run": folder.name, "wandb_run": run_id, "kind": kind}, mode)
        run.log({name: wandb.Image(str(path)) for name, path in pictures.items()})
        close_run(run)
        return f"W&B: {settings.name} in group {settings.group} of project {settings.project}"

    def abandon(self) -> None:
        """Kill W&B's helper and its exit hook, for which the end of the process would wait."""
        tear_down()
