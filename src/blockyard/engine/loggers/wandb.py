"""Weights & Biases: offline unless the user is logged in or sets a mode.

The record carries the config with the names of what was chosen (`choices.position`), group, job type, name and tags;
its id is in run.json before the first step and the same on resume. Its files are in the run folder, under `wandb/`;
`wandb sync RUN/wandb/offline-run-*` uploads a run that was recorded offline.

W&B gets neither the command line nor the console nor the state of the code, because they may hold secrets; run.json
has them redacted.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from blockyard.config.instantiate import instantiate
from blockyard.config.tree import Node
from blockyard.contracts import Count, CountOrZero, Text, any_split
from blockyard.engine.loggers._wandb import Mode, base_url, connection, kill, logged_in, resolve, tear_down, unreachable
from blockyard.engine.loggers._wandb_artifacts import log_weights, sample_table
from blockyard.engine.loggers.base import RunLogger, summarized
from blockyard.errors import UserError
from blockyard.runs.folder import RunFolder

if TYPE_CHECKING:
    from blockyard.engine.loggers.base import Histograms
    from blockyard.engine.loggers.shown_samples import ShownSample

# Opens and closes W&B runs that cannot hang, prompt for nothing, and get neither command line nor code.

log = logging.getLogger("blockyard")

INIT_SECONDS = 6.0
FINISH_SECONDS = 6.0
TEARDOWN_SECONDS = 2.0


@dataclass(frozen=True)
class RunSettings:
    """Where a W&B run goes and what it is called.

    folder: of its files; finish_seconds: that its end waits for what is still to be sent
    """

    folder: Path
    id: str
    project: str
    entity: str | None
    group: str
    job_type: str
    name: str
    tags: Sequence[str] = ()
    system_metrics: bool = False
    finish_seconds: float = FINISH_SECONDS


def open_run(settings: RunSettings, config: Mapping[str, Any], mode: Mode) -> Any:
    """Open the run; offline, with one message, if online is requested and the server does not answer."""
    (settings.folder / "wandb").mkdir(parents=True, exist_ok=True)
    if mode != "online":
        return _init(settings, config, "offline")
    reason = unreachable(base_url())
    if reason is None:
        try:
            return _init(settings, config, "online")
        except Exception as error:  # W&B's own errors, and those of what it is built on
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
            tear_down()
    try:
        run = _init(settings, config, "offline")
    except Exception as error:  # an address that W&B's settings refuse serves no offline run either
        raise ConnectionError(f"W&B cannot be reached ({reason}), and records nothing offline") from error
    log.warning(
        "W&B cannot be reached (%s); %s is recorded offline, in %s/wandb", reason, settings.name, settings.folder
    )
    return run


def close_run(run: Any, *, failed: bool = False) -> None:
    """Close the run and end W&B's helper, for which the end of the process would otherwise wait."""
    import wandb

    run.finish(exit_code=1 if failed else 0)
    helper = connection()
    closing = threading.Thread(target=wandb.teardown, name="wandb-teardown", daemon=True)
    closing.start()
    closing.join(TEARDOWN_SECONDS)
    if closing.is_alive():
        kill(helper)


def bounded(call: Callable[[], None], seconds: float) -> str | None:
    """Run `call` in a thread and wait at most `seconds`: None where it returned, else how it failed."""
    failure = [f"it did not finish within {seconds:.0f} s"]

    def guarded() -> None:
        try:
            call()
            failure.clear()
        except (Exception, SystemExit) as error:  # whatever W&B raises, its caller continues
            lines = str(error).strip().splitlines()
            failure[:] = [f"{type(error).__name__}: {lines[0] if lines else ''}"]

    thread = threading.Thread(target=guarded, name="wandb-bounded", daemon=True)
    thread.start()
    thread.join(seconds)
    return next(iter(failure), None)


def directions(config: Mapping[str, Any]) -> dict[str, str]:
    """Whether lower ("min") or higher ("max") is better, for each metric of a config's objective."""
    node = config.get("objective")
    if not isinstance(node, Mapping) or "_target_" not in node:
        return {}
    objective = instantiate(dict(node), list(config.get("allow") or []))
    # Over a split that has every attribute: a metric that the real one lacks is never logged.
    names = objective.directions(any_split())
    splits = {f"{part}/{name}": direction for part in ("val", "test") for name, direction in names.items()}
    return {"train/loss": "min", **splits}


def define(run: Any, directions: Mapping[str, str]) -> None:
    """Tell W&B whether lower or higher is better: its summary then keeps the best."""
    for name, direction in directions.items():
        run.define_metric(name, summary=direction)


def conclude(run: Any, values: Mapping[str, Any]) -> None:
    """Put final values into the summary, in place of those that W&B kept of the curve."""
    # W&B buffers the last row, and would write its values over these.
    run.log({}, commit=True)
    for name, value in values.items():
        run.summary[name] = value


def _init(settings: RunSettings, config: Mapping[str, Any], mode: Mode) -> Any:
    import wandb

    options: dict[str, Any] = {
        "init_timeout": INIT_SECONDS,
        "finish_timeout": settings.finish_seconds,
        "console": "off",
        "silent": True,
        "disable_git": True,
        "disable_code": True,
        "save_code": False,
        "program": "blockyard",
        "x_disable_meta": True,  # it would hold the command line
        "x_disable_stats": not settings.system_metrics,
        "x_save_requirements": False,
    }
    supported = type(wandb.Settings()).model_fields
    return wandb.init(
        project=settings.project,
        entity=settings.entity,
        id=settings.id,
        resume="allow" if mode == "online" else None,
        mode=mode,
        dir=str(settings.folder),
        config=json.loads(json.dumps(config, default=str)),
        group=settings.group,
        job_type=settings.job_type,
        name=settings.name,
        tags=[str(tag)[:64] for tag in settings.tags] or None,
        settings=wandb.Settings(**{key: value for key, value in options.items() if key in supported}),
        # Another run of this process, such as one whose steps are taken together with this one's, stays as it is.
        reinit="create_new" if wandb.run is not None else None,
    )


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
        artifacts: what a finished run leaves at W&B: the best weights, or all, the last ones too; with the config, and
            with the data's fingerprint as what they came from. A sweep then adds its plan, comparison and page
        predictions: test samples in a table with their pictures, texts and sounds, and what was predicted
        watch: gradients adds a histogram for each parameter wherever metrics are logged
        upload_seconds: that the end of a run waits for artifacts; what is not sent then, `wandb sync` sends
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
        artifacts: Literal["none", "best", "all"] = "none",
        predictions: CountOrZero = 0,
        watch: Literal["none", "gradients"] = "none",
        upload_seconds: Count = 300,
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
        self.artifacts = artifacts
        self.test_samples = predictions
        self.watches_gradients = watch == "gradients"
        self.finish_seconds = 0.0 if artifacts == "none" else float(upload_seconds)
        self._folder: RunFolder | None = None
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

    def start(self, folder: RunFolder, config: Node) -> None:
        """Open the record; offline, with one message, where the server does not answer."""
        mode = self.mode
        if mode == "disabled":
            return
        self._folder = folder
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
            counted = {f"gradients/{name}": wandb.Histogram(np_histogram=each) for name, each in histograms.items()}
            self._run.log(counted, step=step)

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
            log_weights(self._run, self._folder, ("last", "best") if self.artifacts == "all" else ("best",))
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
