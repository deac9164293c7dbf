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
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from blockyard.config.instantiate import instantiate
from blockyard.config.tree import Node
from blockyard.contracts import Count, CountOrZero, Text, any_split
from blockyard.contracts.inherited_options import with_options_of
from blockyard.engine.loggers._grouped import GroupedLogger
from blockyard.engine.loggers._wandb import (
    FINISH_SECONDS,
    Mode,
    RunSettings,
    close_run,
    conclude,
    define,
    logged_in,
    open_run,
    resolve,
    tear_down,
)
from blockyard.engine.loggers._wandb_artifacts import log_weights, sample_table
from blockyard.engine.loggers.base import shown_name, shown_tags, summarized
from blockyard.errors import UserError
from blockyard.runs.folder import RunFolder

if TYPE_CHECKING:
    from blockyard.engine.loggers.base import Histograms
    from blockyard.engine.loggers.shown_samples import ShownSample


class Wandb(GroupedLogger):
    """Mirrors metrics to W&B, or to W&B files for later.

    Options:

        entity: user or team; null is the account's own
        mode: auto follows WANDB_MODE, else is online where there is a login, else offline

        job_type: of the run in its group

        tags: added to the config's tags
        system_metrics: whether W&B samples the machine every 15 s
        artifacts: what a finished run leaves at W&B: the best weights, or all, the last ones too; with the config, and
            with the data's fingerprint as what they came from. A sweep then adds its plan, comparison and page
        predictions: test samples in a table with their pictures, texts and sounds, and what was predicted
        watch: gradients adds a histogram for each parameter wherever metrics are logged
        upload_seconds: that the end of a run waits for artifacts; what is not sent then, `wandb sync` sends
    """

    package = "wandb"

    @with_options_of(GroupedLogger)
    def __init__(
        self,
        *,
        entity: Text | None = None,
        mode: Literal["auto", "online", "offline", "disabled"] = "auto",
        job_type: Text = "train",
        tags: list[str] | None = None,
        system_metrics: bool = False,
        artifacts: Literal["none", "best", "all"] = "none",
        predictions: CountOrZero = 0,
        watch: Literal["none", "gradients"] = "none",
        upload_seconds: Count = 300,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        # W&B uploads its own error reports at the end of the process, which would wait for them.
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")

        self.entity = entity
        self.configured_mode = mode

        self.job_type = job_type

        self.tags = list(tags or ())
        self.system_metrics = system_metrics
        self.artifacts = artifacts
        self.test_samples = predictions
        self.watches_gradients = watch == "gradients"
        self.finish_seconds = 0.0 if artifacts == "none" else float(upload_seconds)
        self._folder: RunFolder | None = None
        self._id: str | None = None
        self._run: Any = None

    @property
    def mode(self) -> Mode:
        """Return the mode with `auto` resolved in the current environment."""
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
        recorded = folder.facts().get("wandb", {})
        # An agent of a W&B sweep waits for the run whose id it has chosen.
        required = None
        if os.environ.get("WANDB_SWEEP_ID"):
            required = os.environ.get("WANDB_RUN_ID")
        self._id = required or recorded.get("id") or secrets.token_hex(4)
        folder.add_facts({"wandb": {"id": self._id, "project": self.project, "entity": self.entity}})

    def start(self, folder: RunFolder, config: Node) -> None:
        """Open the record; offline, with one message, where the server does not answer."""
        mode = self.mode
        if mode == "disabled":
            return
        self._folder = folder
        self._run = open_run(self._settings(folder), config, mode)
        define(self._run, directions(folder.config))

    def _settings(self, folder: RunFolder) -> RunSettings:
        arm = folder.path.parent.name
        return RunSettings(
            folder=folder.path,
            id=self._id or secrets.token_hex(4),
            project=self.project,
            entity=self.entity,
            group=self.group or arm,
            job_type=self.job_type,
            name=self.name or shown_name(folder),
            tags=shown_tags(folder, self.tags),
            system_metrics=self.system_metrics,
            finish_seconds=max(FINISH_SECONDS, self.finish_seconds),
        )

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Log one row at this step."""
        if self._run is not None:
            self._run.log(dict(values), step=step)

    def gradients(self, step: int, histograms: Histograms) -> None:
        """Log a histogram for each parameter, in the row of this step."""
        import wandb

        if self._run is not None:
            row = {}
            for name, histogram in histograms.items():
                row[f"gradients/{name}"] = wandb.Histogram(np_histogram=histogram)
            self._run.log(row, step=step)

    def samples(self, shown: Sequence[ShownSample]) -> None:
        """Log a table with a row for each sample, in the row of the last step."""
        if self._run is not None and self._folder is not None:
            table = sample_table(shown, self._folder.path / "wandb" / "sounds")
            self._run.log({"test/predictions": table}, step=self._run.step)

    def finish(self, state: str, summary: Mapping[str, Any]) -> None:
        """Write the summary, its metrics under their own names, and close the record as finished or failed."""
        if self._run is None:
            return
        conclude(self._run, {**summarized(summary), **(summary.get("metrics") or {}), "state": state})
        if self.artifacts != "none" and state == "done" and self._folder is not None:
            which = ("last", "best") if self.artifacts == "all" else ("best",)
            log_weights(self._run, self._folder, which)
        run = self._run
        self._run = None
        close_run(run, failed=state != "done")

    def pictures(self, folder: RunFolder, kind: str, pictures: Mapping[str, Path]) -> str | None:
        """Log images in a separate W&B run, in the same group, with job type `inspect`.

        Logging under the run's id again would replace the rows that W&B has.
        """
        import wandb

        mode = self.mode
        if mode == "disabled":
            return None
        run_id = folder.facts().get("wandb", {}).get("id") or secrets.token_hex(4)
        training = self._settings(folder)
        settings = replace(training, id=f"{run_id}-{kind}", job_type="inspect", name=f"{training.name}/{kind}")
        run = open_run(settings, {"run": folder.name, "wandb_run": run_id, "kind": kind}, mode)
        run.log({name: wandb.Image(str(path)) for name, path in pictures.items()})
        close_run(run)
        return f"W&B: {settings.name} in group {settings.group} of project {settings.project}"

    def abandon(self) -> None:
        """Kill W&B's helper and its exit hook, or the end of the process would wait for them."""
        tear_down()


def directions(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the better direction, "min" or "max", for each metric of a config's objective."""
    node = config.get("objective")
    if not isinstance(node, Mapping) or "_target_" not in node:
        return {}
    objective = instantiate(dict(node), list(config.get("allow") or []))
    # Over a split that has every attribute: a metric that the real one lacks is never logged.
    names = objective.directions(any_split())
    splits = {f"{part}/{name}": direction for part in ("val", "test") for name, direction in names.items()}
    return {"train/loss": "min", **splits}
