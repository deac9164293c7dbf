"""MLflow: a SQLite database and artifacts in `mlflow/` of the outputs folder, without a server.

`mlflow ui --backend-store-uri sqlite:///outputs/mlflow/mlflow.db` shows all runs; it is part of the package `mlflow`,
and this logger needs `mlflow-skinny` alone. The run's id is in run.json before the first step and a tag of the record,
by which a resumed run finds it.

The client is called without its fluent functions: they would record the user, the command line and the state of the
code; its telemetry is off unless MLFLOW_DISABLE_TELEMETRY says otherwise. MLFLOW_TRACKING_URI is not read: no option of
this logger opens a connection.
"""

from __future__ import annotations

import os
import re
import secrets
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blockyard.atomic_files import database_reason
from blockyard.config.tree import Node
from blockyard.contracts import Text
from blockyard.contracts.inherited_options import with_options_of
from blockyard.engine.loggers._grouped import GroupedLogger
from blockyard.engine.loggers.base import flatten, recorded_metrics, shown_name, shown_tags, summarized
from blockyard.errors import UserError
from blockyard.runs.folder import RunFolder
from blockyard.runs.lock import exclusive

if TYPE_CHECKING:
    from mlflow import MlflowClient

DATABASE, ARTIFACTS = "mlflow.db", "artifacts"
_FACT, _TAG = "mlflow", "blockyard.id"
_STATUS = {"done": "FINISHED", "failed": "FAILED"}
_STOPPED = "KILLED"  # any other end
# Limits of MLflow, in characters.
_KEY = 250
_VALUE = 6000
_ROWS = 1000  # that wait for a write at most
_WRITE_SECONDS = 1.0  # between two writes of rows; a transaction costs about 10 ms


class MLflow(GroupedLogger):
    """Mirrors metrics to MLflow's database; the config is flattened into parameters.

    Options:
        project: the experiment that lists the run
        path: folder of the database and the artifacts; null is mlflow in the outputs folder
        group: a tag to group runs by; null is the arm, the same for all its seeds

        tags: added to the config's tags
    """

    package = "mlflow"
    extra = "mlflow"
    finish_seconds = 20.0  # the import and a new database take some 10 s of a busy machine

    @with_options_of(GroupedLogger)
    def __init__(self, *, path: Text | None = None, tags: list[str] | None = None, **options: Any) -> None:
        super().__init__(**options)
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "CRITICAL")  # errors are raised too, and said once by `Feed`

        self.path = path

        self.tags = list(tags or ())
        self._id: str | None = None
        self._resumed: int | None = None  # the step that a run goes on after
        self._client: Any = None
        self._run = ""  # MLflow's id
        self._last: dict[str, int] = {}  # metric -> the last step of which MLflow has, or will have, a value
        self._rows: list[Any] = []  # of MLflow's `Metric`, not yet written
        self._written = 0.0

    def prepare(self, folder: RunFolder) -> None:
        """Choose the id, or take that of the earlier attempt, and save it in run.json."""
        self._id = _recorded(folder) or secrets.token_hex(4)
        folder.add_facts({_FACT: {"id": self._id, "project": self.project}})
        self._resumed = folder.metrics.last_step if folder.resumes else None

    def start(self, folder: RunFolder, config: Node) -> None:
        """Open the record, or continue it with the rows that an earlier attempt did not write."""
        client, record, self._run = self._record(folder, self._id or secrets.token_hex(4))
        self._client = client
        logged: Mapping[str, str] = {}
        if record is not None:
            client.update_run(self._run, status="RUNNING")
            logged = record.data.params
            for name in record.data.metrics:
                history = client.get_metric_history(self._run, name)
                self._last[name] = max((metric.step for metric in history), default=-1)
        self._write_config(config, logged)
        if self._resumed is not None:
            for step, values in recorded_metrics(folder):
                if step <= self._resumed:
                    self.log(step, values)

    def _open(self, folder: RunFolder) -> tuple[MlflowClient, str]:
        """Return a client of the database and the id of the experiment; each is created where there is none."""
        root = folder.path.parents[1] / "mlflow"
        if self.path is not None:
            root = Path(os.path.abspath(os.path.expanduser(self.path)))
        if reason := database_reason(root / DATABASE):
            raise UserError(f"logger.path: {root / DATABASE} is not opened, since {reason}; move it away")
        from mlflow import MlflowClient

        with exclusive(root):  # two cells of a sweep that create tables or an experiment at the same moment fail
            client = MlflowClient(tracking_uri=f"sqlite:///{root / DATABASE}")
            experiment = client.get_experiment_by_name(self.project)
            if experiment is not None:
                return client, str(experiment.experiment_id)
            return client, client.create_experiment(self.project, artifact_location=(root / ARTIFACTS).as_uri())

    def _record(self, folder: RunFolder, own: str) -> tuple[MlflowClient, Any, str]:
        """Return a client, the record with our id, or None for a new one, and MLflow's id of it."""
        client, experiment = self._open(folder)
        for record in client.search_runs([experiment], f"tags.`{_TAG}` = '{own}'", max_results=1):
            return client, record, record.info.run_id
        tags = {
            _TAG: own,
            "run": folder.name,
            "group": self.group or folder.path.parent.name,
            "tags": ", ".join(shown_tags(folder, self.tags)),
        }
        tags = {key: value[:_VALUE] for key, value in tags.items()}
        run = client.create_run(experiment, run_name=self.name or shown_name(folder), tags=tags)
        return client, None, run.info.run_id

    def _write_config(self, config: Node, logged: Mapping[str, str]) -> None:
        """Write each option as a parameter; if a resumed run changed it, as a tag: MLflow keeps parameters for ever."""
        from mlflow.entities import Param, RunTag

        options = {_key(name): str(value)[:_VALUE] for name, value in flatten(config).items()}
        new = [Param(name, value) for name, value in options.items() if name not in logged]
        changed = [RunTag(name, value) for name, value in options.items() if logged.get(name, value) != value]
        self._client.log_batch(self._run, params=new, tags=changed)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Record the metrics of a step that the record has not yet; rows of one second are written together."""
        from mlflow.entities import Metric

        now = time.time_ns() // 1_000_000
        for name, value in values.items():
            metric = _key(name)
            if step > self._last.get(metric, -1):
                self._last[metric] = step
                self._rows.append(Metric(metric, value, now, step))
        if len(self._rows) >= _ROWS or time.monotonic() - self._written > _WRITE_SECONDS:
            self._write_rows()

    def _write_rows(self) -> None:
        self._client.log_batch(self._run, metrics=self._rows)
        self._rows = []
        self._written = time.monotonic()

    def finish(self, state: str, summary: Mapping[str, Any]) -> None:
        """Write the summary at the last step, and close the record as finished, failed or killed.

        A metric of the best weights that has a curve, such as `val/loss`, is `best/val/loss`; numbers of the summary
        are metrics below `summary/`, the rest are tags.
        """
        from mlflow.entities import RunTag

        step = max(self._last.values(), default=0)
        curves = {name for name in self._last if not name.startswith(("best/", "summary/"))}
        numbers: dict[str, float] = {}
        for name, value in (summary.get("metrics") or {}).items():
            has_curve = _key(name) in curves
            if value is not None:
                numbers[f"best/{name}" if has_curve else name] = value
        tags = {"state": state}
        for name, value in flatten(summarized(summary)).items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                numbers["summary/" + name.replace(".", "/")] = value
            elif value is not None:
                tags[f"summary.{name}"] = str(value)
        self.log(step, numbers)
        self._write_rows()
        self._client.log_batch(self._run, tags=[RunTag(_key(name), value[:_VALUE]) for name, value in tags.items()])
        self._client.set_terminated(self._run, _STATUS.get(state, _STOPPED))

    def pictures(self, folder: RunFolder, kind: str, pictures: Mapping[str, Path]) -> str | None:
        """Copy images to the artifacts of the run's own record, or of a new one where it has none."""
        client, _, run = self._record(folder, _recorded(folder) or secrets.token_hex(4))
        for name, path in pictures.items():
            client.log_artifact(run, str(path), _key(name).rpartition("/")[0] or None)
        return f"MLflow: {len(pictures)} pictures in run {client.get_run(run).info.run_name} of {self.project}"


def _recorded(folder: RunFolder) -> str | None:
    """Return the id that run.json has, or None."""
    run_id = folder.facts().get(_FACT, {}).get("id")
    # The id goes into a query, and a file that someone else wrote may hold anything.
    if isinstance(run_id, str) and re.fullmatch(r"\w{1,64}", run_id):
        return run_id
    return None


def _key(name: str) -> str:
    """Return a name as MLflow admits it: letters, digits, and some of the other characters."""
    return re.sub(r"[^\w./: -]", "_", name)[:_KEY]
