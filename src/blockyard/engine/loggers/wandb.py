"""Weights & Biases: offline unless the user is logged in or asks otherwise.

The record carries the whole nested config, group, job type, name and tags; its id is in run.json
before the first step and the same on resume. Its files lie in the run folder, under `wandb/`; a
run that was recorded offline is sent later by `wandb sync RUN/wandb/offline-run-*`.

Neither the command line nor the console nor the code state is handed to W&B: secrets hide there,
and run.json has them redacted.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from blockyard.engine.loggers._wandb import Mode, logged_in, resolve, tear_down
from blockyard.engine.loggers._wandb_run import Place, close_run, conclude, define, directions, open_run
from blockyard.engine.loggers.base import RunLogger
from blockyard.errors import UserError
from blockyard.runs.folder import RunFolder


class Wandb(RunLogger):
    """Mirrors metrics to W&B, or to W&B files for later.

    Options:
        project: where the run is listed
        entity: the user or team; None is the account's own
        mode: auto is what WANDB_MODE says, else online where there is a login, else offline
        group: what runs are gathered under; None is the arm, the same for all its seeds
        job_type: the part a run plays in its group
        name: how the run is called; None is the config's name and the seed
        tags: added to the config's tags
        system_metrics: whether W&B samples the machine every 15 s
    """

    package = "wandb"

    def __init__(
        self,
        *,
        project: str = "blockyard",
        entity: str | None = None,
        mode: Literal["auto", "online", "offline", "disabled"] = "auto",
        group: str | None = None,
        job_type: str = "train",
        name: str | None = None,
        tags: list[str] | None = None,
        system_metrics: bool = False,
    ) -> None:
        # W&B's own error reports are posted at the end of the process, which waits for them.
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        self.project = project
        self.entity = entity
        self.asked = mode
        self.group = group
        self.job_type = job_type
        self.name = name
        self.tags = list(tags or ())
        self.system_metrics = system_metrics
        self._id: str | None = None
        self._run: Any = None

    @property
    def mode(self) -> Mode:
        """Where the record goes, as things stand."""
        return resolve(self.asked)

    def ready(self) -> None:
        """Raise UserError without the package, or where online is asked for without a login."""
        super().ready()
        if self.mode == "online" and not logged_in():
            raise UserError(
                "logger.mode=online (or WANDB_MODE=online) needs a login: run `wandb login`, or set WANDB_API_KEY; "
                "logger.mode=offline records in the run folder"
            )

    def prepare(self, folder: RunFolder) -> None:
        """Choose the id, or find it, and save it in run.json."""
        known = folder.facts().get("wandb") or {}
        # An agent of a W&B sweep waits for the run that it has named.
        asked = os.environ.get("WANDB_RUN_ID") if os.environ.get("WANDB_SWEEP_ID") else None
        self._id = asked or known.get("id") or secrets.token_hex(4)
        folder.add_facts({"wandb": {"id": self._id, "project": self.project, "entity": self.entity}})

    def start(self, folder: RunFolder, config: dict[str, Any]) -> None:
        """Open the record; where the network does not answer, offline, with one message."""
        mode = self.mode
        if mode == "disabled":
            return
        self._run = open_run(self._place(folder, config), config, mode)
        define(self._run, directions(config))

    def _place(self, folder: RunFolder, config: Mapping[str, Any]) -> Place:
        tags = dict.fromkeys([*(config.get("tags") or ()), *self.tags])
        arm = folder.path.parent.name
        return Place(
            folder=folder.path,
            id=self._id or secrets.token_hex(4),
            project=self.project,
            entity=self.entity,
            group=self.group or arm,
            job_type=self.job_type,
            name=self.name or f"{config.get('name') or arm}/{folder.path.name}",
            tags=list(tags),
            system_metrics=self.system_metrics,
        )

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """One row at this step."""
        if self._run is not None:
            self._run.log(dict(values), step=step)

    def finish(self, state: str, summary: Mapping[str, Any]) -> None:
        """Put the summary in, its metrics under their own names, and close the record, failed where the run is."""
        if self._run is None:
            return
        figures = {key: value for key, value in summary.items() if key != "metrics"}
        conclude(self._run, {**figures, **(summary.get("metrics") or {}), "state": state})
        run, self._run = self._run, None
        close_run(run, failed=state != "done")

    def pictures(self, folder: RunFolder, kind: str, pictures: Mapping[str, Path]) -> str | None:
        """Images in a record of their own, beside the run's in its group, with job type `inspect`.

        Rows that were sent to W&B once must not be sent again under the same id: that would replace them.
        """
        import wandb

        mode = self.mode
        if mode == "disabled":
            return None
        known = (folder.facts().get("wandb") or {}).get("id") or secrets.token_hex(4)
        own = self._place(folder, folder.config)
        place = replace(own, id=f"{known}-{kind}", job_type="inspect", name=f"{own.name}/{kind}")
        run = open_run(place, {"run": folder.name, "wandb_run": known, "kind": kind}, mode)
        run.log({name: wandb.Image(str(path)) for name, path in pictures.items()})
        close_run(run)
        return f"W&B: {place.name} in group {place.group} of project {place.project}"

    def abandon(self) -> None:
        """Kill W&B's helper and its hook at the end of the process, which would wait for it."""
        tear_down()
