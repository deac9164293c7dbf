"""One cell of a sweep, in the process that runs it.

A cell is a run like any other: the same folder, lock, status and checkpoints as `blockyard train`
makes, so whichever of them comes first does the work. What the run says goes to log.txt in its folder.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blockyard.engine.run import train
from blockyard.errors import UserError
from blockyard.runs.checkpoint import newest_good
from blockyard.runs.folder import AlreadyDone, FailedBefore, RunFolder
from blockyard.runs.identity import identity, run_name
from blockyard.runs.lock import InUse
from blockyard.runs.start import create_run
from blockyard.runs.status import read_status
from blockyard.sweep.executor.base import BUSY, Outcome, Task
from blockyard.sweep.search.pruning import watchers

if TYPE_CHECKING:
    from blockyard.engine.callbacks.base import RunCallback
    from blockyard.runs.folder import RunFolder

LOG = "log.txt"
_PLAIN = {"FORCE_COLOR": None, "TTY_COMPATIBLE": None, "TTY_INTERACTIVE": None, "NO_COLOR": "1", "COLUMNS": "160"}


def execute(task: Task) -> Outcome:
    """Train the task's run, or go on with it, or find it done. Never raises for what a run does.

    A run that has failed before stays failed unless `task.retry`: then it goes on from its last good
    checkpoint, which loses nothing and is the same as a new start where the cause is gone; without a
    checkpoint, or where none can be read, it starts anew.
    """
    try:
        with _folder(task) as folder, logged(folder.path / LOG):
            code = _train(task, folder)
            return Outcome(task.key, code, None if code == 0 else folder.status.reason)
    except AlreadyDone:
        return Outcome(task.key, 0)
    except InUse as busy:
        return Outcome(task.key, BUSY, str(busy))
    except FailedBefore as failed:
        return Outcome(task.key, 1, failed.reason or "it has failed before")
    except UserError as error:
        return Outcome(task.key, 2, str(error))
    except KeyboardInterrupt:
        return Outcome(task.key, 130, "Ctrl-C before it began")
    except Exception as error:  # of what surrounds a run, such as a full disk; the run's own are in its status
        return Outcome(task.key, 1, f"{type(error).__name__}: {error}")


def given_up(task: Task, reason: str, *, failed: bool) -> None:
    """Write down how a run ended whose process died without a word. Who has the run now knows better.

    failed: whether it is for `retry` only; else the same command goes on with it
    """
    with contextlib.suppress(UserError, OSError):
        path = _path(task)
        with RunFolder.open(path).lock() as folder:
            status = read_status(path, alive=False)
            killed = status.state == "interrupted" and status.ended is None  # read so from `running`
            if killed or status.state == "queued":
                folder.set_status("failed" if failed else "interrupted", reason)


@contextlib.contextmanager
def logged(path: Path) -> Iterator[None]:
    """Append what this process and its children say to a file, without bars and colours."""
    _flush()
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
    except OSError:
        handle = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
    kept = {number: os.dup(number) for number in (1, 2)}
    before = {name: os.environ.get(name) for name in _PLAIN}
    _environment(_PLAIN)
    for number in kept:
        os.dup2(handle, number)
    os.close(handle)
    try:
        # Who runs this may have put other objects in their place.
        with (
            os.fdopen(os.dup(1), "w", buffering=1, errors="replace") as stream,
            contextlib.redirect_stdout(stream),
            contextlib.redirect_stderr(stream),
            _logging(stream),
        ):
            yield
    finally:
        for number, old in kept.items():
            os.dup2(old, number)
            os.close(old)
        _environment(before)


def _folder(task: Task) -> RunFolder:
    expected = f"{run_name(task.config)}/s{task.config.get('seed', 0)}"
    if expected != task.key:
        raise UserError(
            f"{task.key} is {expected} for this version of blockyard: the plan is another version's; "
            "run the sweep's command again"
        )
    config = dict(task.config)
    if task.retry and _worn_out(task):
        config["force"] = True
    return create_run(config, command=task.command or None, choices=task.choices, retry_failed=task.retry)


def _worn_out(task: Task) -> bool:
    """Whether a run has failed and left checkpoints of which none can be read."""
    path = _path(task)
    if not path.is_dir() or read_status(path).state != "failed":
        return False
    newest = newest_good(path / "checkpoints", identity=identity(task.config), seed=int(task.config.get("seed", 0)))
    return newest.path is None and bool(newest.refused)


def _path(task: Task) -> Path:
    return Path(str(task.config.get("outputs") or "outputs")).expanduser().absolute() / task.key


def _train(task: Task, folder: RunFolder) -> int:
    if folder.message:
        sys.stderr.write(f"{folder.message}\n")
    if task.trial is None:
        return train(folder, resume=folder.resumes)
    return train(folder, resume=folder.resumes, watchers=_watchers(task))


def _watchers(task: Task) -> Mapping[str, RunCallback]:
    """Where a search looks on: the watchers of a trial, which report its values and may end it early."""
    return watchers(task)


@contextlib.contextmanager
def _logging(stream: Any) -> Iterator[None]:
    """Handlers that hold on to the terminal speak into the file meanwhile."""
    handlers = [h for h in logging.getLogger().handlers if type(h) is logging.StreamHandler]
    before = [handler.setStream(stream) for handler in handlers]
    try:
        yield
    finally:
        for handler, old in zip(handlers, before, strict=True):
            handler.setStream(old or sys.stderr)


def _environment(values: Mapping[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
