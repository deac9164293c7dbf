"""MLflow: a SQLite database and artifacts in `mlflow/` of the outputs folder, without a server.

`mlflow ui --backend-store-uri sqlite:///outputs/mlflow/mlflow.db` shows all runs; it is part of the package `mlflow`,
and this logger needs `mlflow-skinny` alone. The run's id is in run.json before the first step and a tag of the record,
by which a resumed run finds it.

The client is called without its fluent functions, which would record the user, the command line and the state of the
code; its telemetry is off unless MLFLOW_DISABLE_TELEMETRY says otherwise. MLFLOW_TRACKING_URI is not read: no option of
this logger opens a connection.
"""

from __future__ import annotations

import os
import re
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blockyard.atomic_files import database_reason
from blockyard.config.tree import Node
from blockyard.contracts import Text
from blockyard.engine.loggers.base import RunLogger, flatten, summarized
from blockyard.errors import UserError
from blockyard.runs.folder import METRICS, RunFolder
from blockyard.runs.lock import exclusive
from blockyard.runs.metrics import read_metrics

if TYPE_CHECKING:
    from mlflow import MlflowClient

DATABASE, ARTIFACTS = "mlflow.db", "artifacts"
_FACT, _TAG = "mlflow", "blockyard.id"
_STATUS = {"done": "FINISHED", "failed": "FAILED"}
_STOPPED = "KILLED"  # any other end
# Limits of MLflow, in entries of a call and in characters.
_BATCH, _METRICS = 100, 1000
_KEY, _VALUE = 250, 6000
_WRITE_SECONDS = 1.0  # between two writes of rows; a transaction costs about 10 ms


class MLflow(RunLogger):
    """Mirrors metrics to MLflow's database; the config is flattened into parameters.

    Options:
        project: the experiment that lists the run
        path: folder of the database and the artifacts; null is mlflow in the outputs folder
        group: a tag to group runs by; null is the arm, the same for all its seeds
        name: of the run; null is the config's name and the seed
        tags: added to the config's tags
    """

    package = "mlflow"
    extra = "mlflow"
    finish_seconds = 20.0  # the import and a new database take some 10 s of a busy machine

    def __init__(
        self,
        *,
        project: Text = "blockyard",
        path: Text | None = None,
        group: Text | None = None,
        name: Text | None = None,
        tags: list[str] | None = None,
    ) -> None:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "CRITICAL")  # errors are raised too, and said once by `Feed`
        self.project = project
        self.path = path
        self.group = group
        self.name = name
        self.tags = list(tags or ())
        self._id: str | None = None
        self._resumed: int | None = None  # the step that a run goes on after
        self._client: Any = None
        self._run = ""  # MLflow's id
        self._last: dict[str, int] = {}  # metric -> the last step of which MLflow has, or will have, a value
        self._rows: list[tuple[str, float, int, int]] = []  # metric, value, ms, step; not yet written
        self._written = 0.0

    def prepare(self, folder: RunFolder) -> None:
        """Choose the id, or take that of the earlier attempt, and save it in run.json."""
        self._id = _recorded(folder) or secrets.token_hex(4)
        folder.add_facts({_FACT: {"id": self._id, "project": self.project}})
        self._resumed = folder.metrics.last_step if folder.resumes else None

    def start(self, folder: RunFolder, config: Node) -> None:
        """Open the record, or continue it with the rows that an earlier attempt did not write."""
        client = self._client = self._open(folder)
        record, self._run = self._record(client, folder, self._id or secrets.token_hex(4))
        if record is not None:
            client.update_run(self._run, status="RUNNING")
            self._last = {name: _last_step(client, self._run, name) for name in record.data.metrics}
        self._write_config(config, {} if record is None else record.data.params)
        if self._resumed is not None:
            for row in read_metrics(folder.path / METRICS):
                if row["step"] <= self._resumed:
                    self.log(int(row["step"]), {name: value for name, value in row.items() if name != "step"})

    def _open(self, folder: RunFolder) -> MlflowClient:
        root = _root(folder, self.path)
        if reason := database_reason(root / DATABASE):
            raise UserError(f"logger.path: {root / DATABASE} is not opened, since {reason}; move it away")
        from mlflow import MlflowClient

        with exclusive(root):  # two cells of a sweep that create its tables at the same moment fail
            return MlflowClient(tracking_uri=f"sqlite:///{root / DATABASE}")

    def _record(self, client: MlflowClient, folder: RunFolder, own: str) -> tuple[Any, str]:
        """The record with this id of ours, or None for a new one, and MLflow's id of it."""
        experiment = _experiment(client, self.project, _root(folder, self.path) / ARTIFACTS)
        for record in client.search_runs([experiment], f"tags.`{_TAG}` = '{own}'", max_results=1):
            return record, record.info.run_id
        tags = {
            _TAG: own,
            "run": folder.name,
            "group": self.group or folder.path.parent.name,
            "tags": ", ".join(dict.fromkeys(map(str, [*(folder.shown.get("tags") or ()), *self.tags]))),
        }
        name = self.name or f"{folder.shown.get('name') or folder.path.parent.name}/{folder.path.name}"
        run = client.create_run(experiment, run_name=name, tags={key: value[:_VALUE] for key, value in tags.items()})
        return None, run.info.run_id

    def _write_config(self, config: Node, logged: Mapping[str, str]) -> None:
        """Write each option as a parameter, which MLflow keeps for ever; one that a resumed run changes as a tag."""
        from mlflow.entities import Param, RunTag

        options = {_key(name): str(value)[:_VALUE] for name, value in flatten(config).items()}
        new = [Param(name, value) for name, value in options.items() if name not in logged]
        changed = [RunTag(name, value) for name, value in options.items() if logged.get(name, value) != value]
        for some in _batches(new, _BATCH):
            self._client.log_batch(self._run, params=some)
        for some in _batches(changed, _BATCH):
            self._client.log_batch(self._run, tags=some)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Record the metrics of a step that the record has not yet; rows of one second are written together."""
        now = time.time_ns() // 1_000_000
        for name, value in values.items():
            metric = _key(name)
            if step > self._last.get(metric, -1):
                self._last[metric] = step
                self._rows.append((metric, value, now, step))
        if len(self._rows) >= _METRICS or time.monotonic() - self._written > _WRITE_SECONDS:
            self._write_rows()

    def _write_rows(self) -> None:
        from mlflow.entities import Metric

        for some in _batches(self._rows, _METRICS):
            self._client.log_batch(self._run, metrics=[Metric(*row) for row in some])
        self._rows = []
        self._written = time.monotonic()

    def finish(self, state: str, summary: Mapping[str, Any]) -> None:
        """Write the summary at the last step, and close the record as finished, failed or killed.

        A metric of the best weights that has a curve, such as `val/loss`, is `best/val/loss`; numbers of the summary
        are metrics below `summary/`, the rest are tags.
        """
        from mlflow.entities import RunTag

        step = max(self._last.values(), default=0)
        curves = {name for name, last in self._last.items() if not name.startswith(("best/", "summary/"))}
        final = {name: value for name, value in (summary.get("metrics") or {}).items() if value is not None}
        numbers = {(f"best/{name}" if _key(name) in curves else name): value for name, value in final.items()}
        tags = {"state": state}
        for name, value in flatten(summarized(summary)).items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                numbers["summary/" + name.replace(".", "/")] = value
            elif value is not None:
                tags[f"summary.{name}"] = str(value)
        self.log(step, numbers)
        self._write_rows()
        for some in _batches([RunTag(_key(name), value[:_VALUE]) for name, value in tags.items()], _BATCH):
            self._client.log_batch(self._run, tags=some)
        self._client.set_terminated(self._run, _STATUS.get(state, _STOPPED))

    def pictures(self, folder: RunFolder, kind: str, pictures: Mapping[str, Path]) -> str | None:
        """Copy images to the artifacts of the run's own record, or of a new one where it has none."""
        client = self._open(folder)
        _, run = self._record(client, folder, _recorded(folder) or secrets.token_hex(4))
        for name, path in pictures.items():
            client.log_artifact(run, str(path), _key(name).rpartition("/")[0] or None)
        return f"MLflow: {len(pictures)} pictures in run {client.get_run(run).info.run_name} of {self.project}"


def _root(folder: RunFolder, path: str | None) -> Path:
    """The folder of the database, absolute."""
    return folder.path.parents[1] / "mlflow" if path is None else Path(os.path.abspath(os.path.expanduser(path)))


def _recorded(folder: RunFolder) -> str | None:
    """The id that run.json has; a file that someone else wrote may hold anything."""
    fact = folder.facts().get(_FACT)
    own = fact.get("id") if isinstance(fact, dict) else None
    return own if isinstance(own, str) and re.fullmatch(r"\w{1,64}", own) else None


def _experiment(client: MlflowClient, name: str, artifacts: Path) -> str:
    """The id of an experiment, which is created where there is none; another process may do so at the same moment."""
    from mlflow.exceptions import MlflowException

    for _ in range(2):
        experiment = client.get_experiment_by_name(name)
        if experiment is not None:
            return str(experiment.experiment_id)
        try:
            return str(client.create_experiment(name, artifact_location=artifacts.as_uri()))
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise
    raise RuntimeError(f"the experiment {name} is deleted")


def _last_step(client: MlflowClient, run: str, name: str) -> int:
    return max((metric.step for metric in client.get_metric_history(run, name)), default=-1)


def _batches(entries: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    """The entries in groups of at most `size`, which is what MLflow takes in one call."""
    return (entries[start : start + size] for start in range(0, len(entries), size))


def _key(name: str) -> str:
    """A name as MLflow admits it: letters, digits, and some of the other characters."""
    return re.sub(r"[^\w./: -]", "_", name)[:_KEY]
