"""A run is a folder: outputs/<name>-<hash>/s<seed>/, owned by one process at a time.

    config.yaml     the complete config, frozen; secrets are written as <redacted>
    run.json        command, versions, code state, machine, choices, ids, later resumes
    status.json     queued | running | done | failed | interrupted, and why
    metrics.csv     one row per step
    summary.json    final and best metrics, costs
    tokenizer.json  what the tokenizer learned
    checkpoints/    last.ckpt, previous.ckpt, best.ckpt
    wandb/          the logger's own files

`RunFolder.create` answers the same command twice in one of these ways: the first starts; a second
one at the same time is refused and told the process; after a kill it goes on where the run stood
(`resumes` is True); after a failure it is refused with the ways out; after the end it raises
`AlreadyDone`. With `force` the old folder is moved aside, to `.replaced-s<seed>-<time>`, not removed.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from blockyard.errors import UserError
from blockyard.runs.files import TEMPORARY, read_json, read_yaml, sweep, write_json, write_yaml
from blockyard.runs.identity import identity, run_name
from blockyard.runs.lock import RunLock, held
from blockyard.runs.metrics import FILE as METRICS
from blockyard.runs.metrics import MetricsWriter
from blockyard.runs.provenance import provenance
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
_RANKS = ("RANK", "SLURM_PROCID", "LOCAL_RANK")
_RANK_PATIENCE = 60.0


class AlreadyDone(UserError):  # noqa: N818 - news, not an error
    """The run asked for is done; nothing was started. For the user this is news, not an error: exit code 0."""

    def __init__(self, folder: RunFolder) -> None:
        super().__init__(f"{folder.path} is done already; force=true starts it anew (the old run is kept aside)")
        self.folder = folder


class RunFolder:
    """One run on the disk. Made by `create`, `open` or `blockyard.runs.resume.resume`."""

    def __init__(self, path: Path, config: dict[str, Any], lock: RunLock | None = None) -> None:
        self.path = path
        self.config = config
        self.resumes = False  # whether there is something to go on from
        self.message: str | None = None  # what a user should be told about how it starts
        self._lock = lock
        self._metrics: MetricsWriter | None = None

    @classmethod
    def create(
        cls,
        config: dict[str, Any],
        *,
        command: Sequence[str] | None = None,
        choices: Mapping[str, str] | None = None,
    ) -> RunFolder:
        """The folder of this config and seed, locked by this process, new or to be resumed.

        config is complete and plain; command defaults to this process's; choices name the YAML of
        each family. Raises AlreadyDone, or UserError where the run is in use, has failed before,
        or its folder cannot be written.
        """
        seed = config.get("seed", 0)
        if isinstance(seed, bool) or not isinstance(seed, int):
            raise UserError(f"seed={seed!r} is not a whole number")
        path = Path(str(config.get("outputs") or "outputs")).expanduser().absolute() / run_name(config) / f"s{seed}"
        rank = _rank()
        if rank:
            return cls._join(path, config)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"cannot make {path.parent}: {error.strerror}; choose outputs=FOLDER") from error
        lock = RunLock(path).acquire()
        try:
            return cls._start(path, config, command, choices, lock)
        except OSError as error:
            lock.release()
            raise UserError(f"cannot write {path}: {error.strerror or error}; choose outputs=FOLDER") from error
        except BaseException:
            lock.release()
            raise

    @classmethod
    def _start(
        cls,
        path: Path,
        config: dict[str, Any],
        command: Sequence[str] | None,
        choices: Mapping[str, str] | None,
        lock: RunLock,
    ) -> RunFolder:
        message = None
        if (path / CONFIG).exists():
            if not config.get("force"):
                old = cls.open(path)
                old._lock = lock
                old.take_up(config, command)
                return old
            message = f"the old run is kept as {_set_aside(path)}"
        (path / CHECKPOINTS).mkdir(parents=True, exist_ok=True)
        sweep(path), sweep(path / CHECKPOINTS)
        found: list[str] = []
        frozen = redact(config, found=found)
        frozen.pop("force", None)
        run = cls(path, config, lock)
        run.message = message
        # The config comes last: a folder without one is no run yet, and the next start begins again.
        facts = provenance(command)
        run.write_json(RUN, facts | {"identity": identity(config), "choices": dict(choices or {}), "resumes": []})
        write_status(path, Status("queued", updated=now()))
        write_yaml(path / CONFIG, frozen)
        for key in found:
            log.warning("%s looks like a secret: it is used, but not written; better give it in the environment", key)
        return run

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> RunFolder:
        """An existing run, to be read; nothing is locked. Raises UserError where there is none."""
        path = Path(path).expanduser().absolute()
        if not (path / CONFIG).is_file():
            raise UserError(f"{path} is no run: it has no {CONFIG}")
        try:
            return cls(path, read_yaml(path / CONFIG))
        except (ValueError, OSError) as error:
            raise UserError(f"{path} cannot be read: {error}") from error

    @classmethod
    def _join(cls, path: Path, config: dict[str, Any]) -> RunFolder:
        # Started by torchrun or srun: every rank runs the whole command, rank zero makes the folder.
        deadline = time.monotonic() + _RANK_PATIENCE
        while not ((path / CONFIG).is_file() and held(path)):
            if time.monotonic() > deadline:
                raise UserError(f"rank 0 did not make {path} within {_RANK_PATIENCE:.0f} s")
            time.sleep(0.1)
        return cls(path, config)

    def take_up(self, config: dict[str, Any], command: Sequence[str] | None, *, failed_too: bool = False) -> None:
        """Go on with this existing, locked run under `config`, whose semantic part must be the frozen one.

        What may change (loggers, devices, workers) is frozen anew, and what it was goes to run.json.
        Raises AlreadyDone, or UserError for a failed run unless `failed_too`.
        """
        status = read_status(self.path, alive=False)  # the lock is ours
        if status.finished:
            raise AlreadyDone(self)
        if status.state == "failed" and not failed_too:
            raise UserError(
                f"{self.path} has failed before ({status.reason or 'no reason recorded'}); "
                f"resume={self.path} goes on from its last checkpoint, force=true starts anew"
            )
        swept = sweep(self.path) + sweep(self.path / CHECKPOINTS)
        old, frozen = self.config, redact(config)
        frozen.pop("force", None)
        changed = {key: old.get(key) for key in {*old, *frozen} if old.get(key) != frozen.get(key)}
        self.config = config
        self.resumes = status.state != "queued" or any((self.path / CHECKPOINTS).glob("*.ckpt"))
        if self.resumes:
            self.message = f"going on with {self.path}, which was {status}"
        facts = self.facts()
        entry = provenance(command) | {"was": str(status), "before": changed, "swept": swept}
        facts["resumes"] = [*facts.get("resumes", []), entry]
        self.write_json(RUN, facts)
        if changed:
            write_yaml(self.path / CONFIG, frozen)

    # -- what is in it ---------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The arm's folder name and the seed, as the run is listed: `<name>-<hash>/s<seed>`."""
        return f"{self.path.parent.name}/{self.path.name}"

    @property
    def identity(self) -> str:
        """The hash of the semantic config as recorded at the start."""
        return str(self.facts().get("identity") or identity(self.config))

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
        """What `write_summary` wrote; empty where there is none yet."""
        return read_json(self.path / SUMMARY) if (self.path / SUMMARY).is_file() else {}

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


def _set_aside(path: Path) -> Path:
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S")
    for count in range(1000):
        aside = path.parent / f".replaced-{path.name}-{stamp}{f'-{count}' if count else ''}"
        if not aside.exists():
            os.rename(path, aside)
            return aside
    raise UserError(f"no free name to keep {path} under")


def _rank() -> int:
    for name in _RANKS:
        if os.environ.get(name, "").isdigit():
            return int(os.environ[name])
    return 0
