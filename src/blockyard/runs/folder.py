"""A run is a folder: outputs/<name>-<hash>/s<seed>/, owned by one process at a time.

    config.yaml     the complete config, frozen; secrets are written as <redacted>
    run.json        command, versions, code state, machine, choices, ids, later resumes
    status.json     queued | running | done | failed | interrupted, and why
    metrics.csv     one row per step
    summary.json    final and best metrics, costs
    tokenizer.json  what the tokenizer learned
    checkpoints/    last.ckpt, previous.ckpt, best.ckpt
    wandb/          the logger's own files

`create_run` answers the same command twice in one of these ways: the first starts; a second
one at the same time is refused and told the process; after a kill it goes on where the run stood
(`resumes` is True); after a failure it is refused with the ways out; after the end it raises
`AlreadyDone`. With `force` the old folder is moved aside, to `.replaced-s<seed>-<time>`, not removed.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from blockyard.atomic_files import TEMPORARY, read_json, read_yaml, write_json
from blockyard.errors import UserError
from blockyard.runs.identity import identity
from blockyard.runs.lock import RunLock
from blockyard.runs.metrics import FILE as METRICS
from blockyard.runs.metrics import MetricsWriter
from blockyard.runs.redact import redact, redact_text
from blockyard.runs.status import State, Status, now, read_status, write_status

log = logging.getLogger("blockyard")

CONFIG, RUN, SUMMARY, TOKENIZER, CHECKPOINTS = (
    "config.yaml",
    "run.json",
    "summary.json",
    "tokenizer.json",
    "checkpoints",
)


class AlreadyDone(UserError):  # noqa: N818 - news, not an error
    """The run asked for is done; nothing was started. For the user this is news, not an error: exit code 0."""

    def __init__(self, folder: RunFolder) -> None:
        super().__init__(f"{folder.path} is done already; force=true starts it anew (the old run is kept aside)")
        self.folder = folder


class FailedBefore(UserError):  # noqa: N818 - it names a state
    """The run asked for has failed before; nothing was started. reason: what it failed of, where recorded."""

    def __init__(self, path: Path, reason: str | None) -> None:
        super().__init__(
            f"{path} has failed before ({reason or 'no reason recorded'}); "
            f"resume={path} goes on from its last checkpoint, force=true starts anew"
        )
        self.reason = reason


class RunFolder:
    """One run on the disk. Made by `create`, `open` or `blockyard.runs.resume.resume`."""

    def __init__(self, path: Path, config: dict[str, Any], lock: RunLock | None = None) -> None:
        self.path = path
        self.config = config
        self.resumes = False  # whether there is something to go on from
        self.message: str | None = None  # what a user should be told about how it starts
        self.foreign = False  # whether the config's own word is all there is for the packages it allows
        self._lock = lock
        self._metrics: MetricsWriter | None = None

    @classmethod
    def open(cls, path: str | os.PathLike[str], lock: RunLock | None = None) -> RunFolder:
        """An existing run, to be read unless its lock is given. Raises UserError where there is none."""
        path = Path(path).expanduser().absolute()
        if not (path / CONFIG).is_file():
            raise UserError(f"{path} is no run: it has no {CONFIG}")
        try:
            found = cls(path, read_yaml(path / CONFIG), lock)
        except (ValueError, OSError) as error:
            raise UserError(f"{path} cannot be read: {error}; force=true starts anew") from error
        found.foreign = True
        return found

    # -- what is in it ---------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The arm's folder name and the seed, as the run is listed: `<name>-<hash>/s<seed>`."""
        return f"{self.path.parent.name}/{self.path.name}"

    @property
    def identity(self) -> str:
        """The hash of the semantic config as recorded at the start."""
        recorded = self.facts().get("identity")
        # Working it out imports what the config allows; a folder may come from anywhere.
        return str(recorded or identity(self.config | {"allow": []} if self.foreign else self.config))

    @property
    def seed(self) -> int:
        """The replicate."""
        return int(self.config.get("seed", 0))

    @property
    def checkpoints(self) -> Path:
        """Where checkpoints lie."""
        return self.path / CHECKPOINTS

    @property
    def metrics(self) -> MetricsWriter:
        """The table of metrics, opened when first used."""
        if self._metrics is None:
            self._metrics = MetricsWriter(self.path / METRICS)
        return self._metrics

    def facts(self) -> dict[str, Any]:
        """What run.json holds; empty where it is missing or damaged."""
        try:
            facts = read_json(self.path / RUN)
        except (OSError, ValueError):
            return {}
        return facts if isinstance(facts, dict) else {}

    def add_facts(self, facts: Mapping[str, Any]) -> None:
        """Put more into run.json: ids, hashes of data, the precision chosen."""
        self.write_json(RUN, self.facts() | dict(facts))

    def write_json(self, name: str, value: Any) -> None:
        """A JSON file of this run, replaced whole. Raises OSError."""
        if Path(name).name != name or name.startswith(TEMPORARY):
            raise ValueError(f"{name!r} is no plain file name")
        write_json(self.path / name, value)

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """summary.json: final and best metrics and what they cost."""
        self.write_json(SUMMARY, dict(summary))

    def summary(self) -> dict[str, Any]:
        """What `write_summary` wrote; empty where there is none yet. Raises UserError where it is damaged."""
        if not (self.path / SUMMARY).is_file():
            return {}
        try:
            summary = read_json(self.path / SUMMARY)
        except (OSError, ValueError) as error:
            raise UserError(f"{self.path / SUMMARY} is damaged ({error}); remove it, or bring it back") from error
        if not isinstance(summary, dict):
            raise UserError(f"{self.path / SUMMARY} is damaged (it holds no mapping); remove it, or bring it back")
        return summary

    # -- how it stands ---------------------------------------------------------------------------

    @property
    def status(self) -> Status:
        """How the run stands now, killed processes seen as such."""
        return read_status(self.path)

    @property
    def finished(self) -> bool:
        """Whether it is done."""
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
        """Record how the run stands. A full disk is logged and otherwise ignored: status must not stop a run."""
        old = self.status
        fresh = state in ("queued", "running")
        status = replace(
            old,
            state=state,
            reason=redact_text(reason) if reason else None,
            step=old.step if step is None else int(step),
            exit_code=exit_code,
            started=now() if state == "running" else old.started,
            ended=None if fresh else now(),
            updated=now(),
            facts=redact(old.facts | facts),
        )
        try:
            write_status(self.path, status)
        except OSError as error:
            log.warning("the status of %s cannot be written: %s", self.path, error.strerror)

    def lock(self) -> RunFolder:
        """Take the right to write. Raises UserError naming the process that has it."""
        if self._lock is None or not self._lock.owned:
            self._lock = RunLock(self.path).acquire()
        return self

    def release(self) -> None:
        """Close the table and give the lock back; the end of the process does the latter too."""
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
