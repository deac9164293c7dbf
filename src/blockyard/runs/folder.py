"""A run is a folder, outputs/<name>-<hash>/s<seed>/, that one process at a time may write to.

    config.yaml     the complete, frozen config; secrets are written as <redacted>
    run.json        command, versions, git state, machine, choices, ids, resumes
    status.json     queued | running | done | failed | interrupted, and the reason
    metrics.csv     one row per step
    summary.json    final and best metrics, cost
    tokenizer.json  the fitted state of the tokenizer; source_tokenizer.json of that of the source, if it has its own
    checkpoints/    last.ckpt, previous.ckpt, best.ckpt
    wandb/          the logger's own files

Called again for the same config and seed, `create_run` refuses while another process holds the run, resumes after a
kill (`resumes` is True), refuses after a failure and names the options, and raises `AlreadyDoneError` after the end.
With `force` the old folder is moved to `.replaced-s<seed>-<time>`, not removed.
"""

from __future__ import annotations

import contextlib
import copy
import logging
import math
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from blockyard.atomic_files import TEMPORARY, open_member, read_json, read_yaml, write_json
from blockyard.config.tree import Node
from blockyard.config.untrusted.local_path import local_path
from blockyard.errors import UserError, printable
from blockyard.runs.identity import identity
from blockyard.runs.lock import RunLock
from blockyard.runs.metrics import FILE as METRICS
from blockyard.runs.metrics import MetricsWriter
from blockyard.runs.redact import redact, redact_text
from blockyard.runs.status import State, Status, now, read_status, write_status
from blockyard.terminal import notebook_table

log = logging.getLogger("blockyard")

PATHS = ("path", "root", "splits")  # options of data that say where its files lie
CONFIG, RUN, SUMMARY, TOKENIZER, SOURCE_TOKENIZER, CHECKPOINTS = (
    "config.yaml",
    "run.json",
    "summary.json",
    "tokenizer.json",
    "source_tokenizer.json",
    "checkpoints",
)
TOKENIZER_FILES = {"tokenizer": TOKENIZER, "source_tokenizer": SOURCE_TOKENIZER}  # by the names of their nodes
# The entries of run.json and summary.json that are mappings, wherever one of them is read.
MAPPINGS = frozenset(
    {"choices", "data", "git", "host", "init", "mlflow", "own_code", "precision", "start", "threads", "versions"}
    | {"baselines", "directions", "metrics", "wandb"}
)


class RunFolder:
    """A run on disk, from `create_run`, `RunFolder.open` or `blockyard.runs.resume.reopen`."""

    def __init__(self, path: Path, config: Node, lock: RunLock | None = None) -> None:
        self.path = path
        self.config = config
        self.resumes = False  # whether there is a state to resume from
        self.created = False  # whether this process has created the folder
        self.replaced: Path | None = None  # the old run that a forced new one has moved aside
        self.message: str | None = None  # shown to the user at the start
        self.first_line: str | None = None  # shown once the run is known to be sound, before its first step
        self.foreign = False  # whether only the folder's own config vouches for the packages it allows
        self.moved: dict[str, Any] = {}  # where the data of a config lie now, see `with_data`
        self._lock = lock
        self._metrics: MetricsWriter | None = None

    @classmethod
    def open(cls, path: str | os.PathLike[str], lock: RunLock | None = None) -> RunFolder:
        """Open an existing run, read-only unless `lock` is given. Raises UserError if there is none."""
        path = local_path(path).absolute()
        if not (path / CONFIG).is_file():
            raise UserError(f"{path} is not a run folder: it has no {CONFIG}")
        try:
            run = cls(path, read_yaml(path / CONFIG), lock)
        except (ValueError, OSError) as error:
            raise UserError(f"{path} cannot be read: {error}; force=true starts again") from error
        run.foreign = True
        return run

    def with_data(self, paths: Mapping[str, Any]) -> RunFolder:
        """Return the run, for reading, with its data in other places: `{"root": "/data"}`. Its config on disk stays.

        Raises UserError for an option that is no path of its data.
        """
        allowed = [f"data.{key}" for key in PATHS if key in (self.config.get("data") or {})]
        for key in paths:
            if f"data.{key}" not in allowed:
                hint = f"it has {', '.join(allowed)}" if allowed else "its data come with blockyard"
                raise UserError(f"data.{key}: the data of {self.name} have no such path; {hint}")
        other = copy.copy(self)
        other.moved = {**self.moved, **paths}
        return other

    def __fspath__(self) -> str:
        return str(self.path)

    def __repr__(self) -> str:
        return f"<run {self.path}: {self.status.state}>"

    def _repr_html_(self) -> str:
        """Return the state, the choices and the final metrics, for a notebook."""
        status = self.status
        choices = []
        for family, choice in (self.facts().get("choices") or {}).items():
            if choice is not None:
                choices.append(f"{family}={choice}")
        rows = []
        notes = [status.reason, " ".join(choices)]
        try:
            metrics = self.summary().get("metrics") or {}
        except UserError as error:
            metrics = {}
            notes.append(str(error))
        for name, value in metrics.items():
            rows.append([name, f"{value:.5g}"])
        return notebook_table(f"{self.name}: {status.state}", ["metric", "value"], rows, notes)

    # -- content ---------------------------------------------------------------------------------

    @property
    def shown(self) -> Node:
        """Return the config without secrets, for loggers, pages and messages. `config` itself only builds the run."""
        return dict(redact(self.config))

    @property
    def name(self) -> str:
        """`<name>-<hash>/s<seed>`, as runs are listed."""
        return f"{self.path.parent.name}/{self.path.name}"

    @property
    def identity(self) -> str:
        """Return the hash of the semantic config, as recorded at the start."""
        recorded = self.facts().get("identity")
        if recorded:
            return str(recorded)
        if self.foreign:
            # Computing it imports the packages that the config allows; a folder may come from a stranger.
            return identity(self.config | {"allow": []})
        return identity(self.config)

    @property
    def seed(self) -> int:
        """Return the seed; it numbers the replicates of an arm."""
        return int(self.config.get("seed", 0))

    @property
    def checkpoints(self) -> Path:
        """Return the folder of checkpoints."""
        return self.path / CHECKPOINTS

    @property
    def metrics(self) -> MetricsWriter:
        """Return the table of metrics, opened when first used."""
        if self._metrics is None:
            self._metrics = MetricsWriter(self.path / METRICS)
        return self._metrics

    def facts(self) -> dict[str, Any]:
        """The content of run.json; empty if it is missing or damaged."""
        return read_facts(self.path / RUN)

    def add_facts(self, facts: Mapping[str, Any]) -> None:
        """Add entries to run.json: ids, hashes of data, the precision in use."""
        self.write_json(RUN, self.facts() | dict(facts))

    def write_json(self, name: str, value: Any) -> None:
        """Replace a JSON mapping of this run atomically, with a checksum. Raises OSError."""
        # Temporary files are removed when a run is taken over.
        if Path(name).name != name or name.startswith(TEMPORARY):
            raise ValueError(f"{name!r} is not a plain file name")
        write_json(self.path / name, value, checked=True)

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Write summary.json: final and best metrics, cost. Raises OSError, also for unwritten rows of metrics."""
        # A summary says that the run is complete, so that its metrics have to be on the disk before.
        if self._metrics is not None:
            self._metrics.sync()
        self.write_json(SUMMARY, dict(summary))

    def summary(self) -> dict[str, Any]:
        """The content of summary.json; empty if there is none yet. Raises UserError if it is damaged."""
        return read_summary(self.path / SUMMARY)

    def check_members(self) -> None:
        """Raise UserError for a file that `open_member` refuses, before anything of this run is copied for others."""
        for name in (CONFIG, RUN, SUMMARY, TOKENIZER, SOURCE_TOKENIZER):
            with contextlib.suppress(FileNotFoundError):
                os.close(open_member(self.path / name))

    # -- status ----------------------------------------------------------------------------------

    @property
    def status(self) -> Status:
        """Return the current status; a run with a killed process reads as interrupted."""
        return read_status(self.path)

    @property
    def finished(self) -> bool:
        """Return whether the run is done."""
        return self.status.finished

    def set_status(
        self,
        state: State,
        reason: str | None = None,
        *,
        step: int | None = None,
        exit_code: int | None = None,
        **facts: Any,
    ) -> None:
        """Record the status. A full disk is logged only: the status file must not stop a run."""
        old = self.status
        active = state in ("queued", "running")
        status = replace(
            old,
            state=state,
            reason=printable(redact_text(reason)) if reason else None,
            step=old.step if step is None else int(step),
            exit_code=exit_code,
            started=now() if state == "running" else old.started,
            ended=None if active else now(),
            updated=now(),
            facts=redact(old.facts | facts),
        )
        try:
            write_status(self.path, status)
        except OSError as error:
            log.warning("cannot write the status of %s: %s", self.path, error.strerror)

    def lock(self) -> RunFolder:
        """Acquire the right to write. Raises UserError naming the process that holds it."""
        if self._lock is None or not self._lock.owned:
            self._lock = RunLock(self.path).acquire()
        return self

    def release(self) -> None:
        """Close the metrics table and release the lock; the end of the process releases it too."""
        if self._metrics is not None:
            with contextlib.suppress(OSError):
                self._metrics.close()
            self._metrics = None
        if self._lock is not None:
            self._lock.release()

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(self, *error: object) -> None:
        self.release()


def read_facts(path: Path) -> dict[str, Any]:
    """Return the content of a run.json, as `read_mapping` does; empty if the file is missing or damaged."""
    try:
        return read_mapping(path)
    except (OSError, ValueError):
        return {}


def read_summary(path: Path) -> dict[str, Any]:
    """Return the content of a summary.json, as `read_mapping` does; empty if there is no file.

    Raises UserError if it is damaged.
    """
    try:
        summary = read_mapping(path)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise UserError(f"{path} is damaged ({error}); restore it, or remove it") from error
    if "metrics" in summary:  # JSON has no NaN
        summary["metrics"] = {name: math.nan if value is None else value for name, value in summary["metrics"].items()}
    return summary


def read_mapping(path: Path) -> dict[str, Any]:
    """Read the mapping in run.json or summary.json.

    The kinds of its entries are checked here, once: an entry of `MAPPINGS` that holds anything else counts as missing.

    Raises FileNotFoundError without a file, OSError or ValueError if it cannot be read or is damaged.
    """
    content = read_json(path)
    if not isinstance(content, dict):
        raise ValueError(f"{path} is damaged: expected a mapping")
    return {name: value for name, value in content.items() if name not in MAPPINGS or isinstance(value, dict)}
