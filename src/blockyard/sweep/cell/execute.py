"""Runs one cell of a sweep in the process that an executor started for it.

A cell is a run like any other: it has the same folder, lock, status and checkpoints as a run of
`blockyard train`, so whichever of the two comes first does the work. Output goes to log.txt in the
run's folder.

The run of a search's trial reports its validation curve to Optuna and stops where it is pruned. A pruned run is not
done: it is saved and `interrupted`. Training the same config later resumes it, and the result is bitwise equal to the
result of a run that was never pruned.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from blockyard.engine.callbacks.base import RunCallback, RunState
from blockyard.engine.run import train
from blockyard.engine.stacked.runs import StackedMember, StackedRuns
from blockyard.errors import UserError, printable
from blockyard.runs.checkpoint import newest_good
from blockyard.runs.folder import RunFolder
from blockyard.runs.identity import identity, run_name
from blockyard.runs.lock import InUseError
from blockyard.runs.metrics import FILE as METRICS
from blockyard.runs.metrics import read_metrics
from blockyard.runs.not_started import AlreadyDoneError, FailedBeforeError
from blockyard.runs.start import create_run
from blockyard.runs.status import read_status
from blockyard.sweep.cell.trial_store import QUESTION, make_pruner, make_sampler, storage
from blockyard.sweep.cells import BUSY, Outcome, Task, TrialAddress

log = logging.getLogger("blockyard")

LOG = "log.txt"
TRIAL = "trial"  # name of the callback of a trial, and of its facts in run.json
STACKED = "stacked"  # name of the callback of runs that take their steps together, and of their facts in run.json
_PLAIN = {"FORCE_COLOR": None, "TTY_COMPATIBLE": None, "TTY_INTERACTIVE": None, "NO_COLOR": "1", "COLUMNS": "160"}


def execute_together(tasks: Sequence[Task], report: Callable[[Outcome], object]) -> None:
    """Execute several tasks in this process. Their runs take their training steps together as far as they can.

    report: called with each outcome, in the thread of its run
    """
    runs = StackedRuns()

    def execute_and_report(task: Task) -> None:
        report(execute(task, runs))

    with _environment(_PLAIN):
        runs.run([partial(execute_and_report, task) for task in tasks])


def execute(task: Task, together: StackedRuns | None = None, alone: str | None = None) -> Outcome:
    """Train or resume the task's run, or find it done. No error of a run is raised.

    A run that failed before stays failed unless `task.retry`. A retry resumes from the last good checkpoint. It loses
    nothing, and equals a new start once the cause is fixed. It starts from scratch if the run has no readable
    checkpoint.

    together: the runs of other threads of this process, with which this run takes its training steps
    alone: why there are none, where there could be
    """
    try:
        with _folder(task) as folder, log_to_file(folder.path / LOG):
            try:
                code = _train(task, folder, together, alone)
            except UserError as error:  # bad input that was found before the first step
                sys.stderr.write(printable(f"failed: {error}\n"))
                folder.set_status("failed", str(error), exit_code=2)
                return Outcome(task.key, 2, str(error))
            return Outcome(task.key, code, None if code == 0 else folder.status.reason)
    except AlreadyDoneError:
        return Outcome(task.key, 0)
    except InUseError as busy:
        return Outcome(task.key, BUSY, str(busy))
    except FailedBeforeError as failed:
        return Outcome(task.key, 1, failed.reason or "the run failed before")
    except UserError as error:
        return Outcome(task.key, 2, str(error))
    except KeyboardInterrupt:
        return Outcome(task.key, 130, "Ctrl-C before the run began")
    except Exception as error:  # around a run, such as a full disk; the run's own errors are in its status
        return Outcome(task.key, 1, f"{type(error).__name__}: {error}")


def record_lost(task: Task, reason: str, *, failed: bool) -> None:
    """Write the end of a run to its status after its process died without a report.

    Does nothing while another process holds the run.

    failed: whether only `retry` starts the run again; otherwise the same command resumes it
    """
    with contextlib.suppress(UserError, OSError):
        path = _path(task)
        with RunFolder.open(path).lock() as folder:
            status = read_status(path, alive=False)
            killed = status.state == "interrupted" and status.ended is None  # the status file says `running`
            if killed or status.state == "queued":
                folder.set_status("failed" if failed else "interrupted", reason)


def is_done(task: Task) -> bool:
    """Return whether the run is done, also after the death of its process."""
    return read_status(_path(task), alive=False).finished


def record_failure(task: Task, reason: str) -> None:
    """Mark a run that was stopped before its end as failed, unless another process holds it."""
    with contextlib.suppress(UserError, OSError):
        path = _path(task)
        with RunFolder.open(path).lock() as folder:
            if read_status(path, alive=False).state in ("interrupted", "queued"):
                folder.set_status("failed", reason, exit_code=1)


@contextlib.contextmanager
def log_to_file(path: Path) -> Iterator[None]:
    """Append the output of this process and its children to a file, without progress bars and colours."""
    for terminal in (sys.stdout, sys.stderr):  # else their buffers would end in the file
        with contextlib.suppress(OSError, ValueError):
            terminal.flush()
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
    except OSError:
        handle = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
    # The file descriptors, and not sys.stdout alone, so that libraries in C and child processes write there too.
    duplicates = {number: os.dup(number) for number in (1, 2)}
    for number in duplicates:
        os.dup2(handle, number)
    os.close(handle)
    try:
        buffer = io.BufferedWriter(_LogFile(os.dup(1), "w"))
        # The caller may have replaced sys.stdout and sys.stderr by other objects.
        with (
            io.TextIOWrapper(buffer, encoding="utf-8", errors="replace", line_buffering=True) as stream,
            contextlib.redirect_stdout(stream),
            contextlib.redirect_stderr(stream),
            _redirect_logging(stream),
            _environment(_PLAIN),
        ):
            yield
    finally:
        for number, duplicate in duplicates.items():
            os.dup2(duplicate, number)
            os.close(duplicate)


class _LogFile(io.FileIO):
    """A log on a disk that may be full: lines that do not fit are lost, and the run goes on."""

    def write(self, data: Any) -> int:
        """Write data, or drop it where the disk refuses it."""
        try:
            return super().write(data)
        except OSError:
            return len(data)


def _folder(task: Task) -> RunFolder:
    expected = f"{run_name(task.config)}/s{task.config.get('seed', 0)}"
    if expected != task.key:
        raise UserError(
            f"{task.key} would be {expected} in this version of blockyard: another version made the plan; "
            "run the sweep's command again"
        )
    config = dict(task.config)
    if task.retry and _checkpoints_unreadable(task):
        config["force"] = True
    return create_run(config, command=task.command or None, choices=task.choices, retry_failed=task.retry)


def _checkpoints_unreadable(task: Task) -> bool:
    """Return whether a run has failed and none of its checkpoints can be read."""
    path = _path(task)
    if not path.is_dir() or read_status(path).state != "failed":
        return False
    newest = newest_good(path / "checkpoints", identity=identity(task.config), seed=int(task.config.get("seed", 0)))
    return newest.path is None and bool(newest.refused)


def _path(task: Task) -> Path:
    return Path(os.path.expanduser(str(task.config.get("outputs") or "outputs"))).absolute() / task.key


def _train(task: Task, folder: RunFolder, together: StackedRuns | None, alone: str | None) -> int:
    if folder.message:
        sys.stderr.write(f"{folder.message}\n")
    if alone is not None:
        folder.add_facts({STACKED: {"reason": alone}})
    callbacks = trial_callbacks(task)
    if together is None:
        return train(folder, resume=folder.resumes, callbacks=callbacks)
    member = StackedMember(together)
    try:
        return train(folder, resume=folder.resumes, callbacks={**callbacks, STACKED: member})
    finally:
        folder.add_facts({STACKED: member.plain()})


@contextlib.contextmanager
def _redirect_logging(stream: Any) -> Iterator[None]:
    """Let log handlers that write to the terminal write to the stream instead."""
    # Handlers of a derived class, such as those of files, write elsewhere.
    handlers = [handler for handler in logging.getLogger().handlers if type(handler) is logging.StreamHandler]
    before = [_set_stream(handler, stream) for handler in handlers]
    try:
        yield
    finally:
        for handler, old in zip(handlers, before, strict=True):
            _set_stream(handler, old or sys.stderr)


def _set_stream(handler: logging.StreamHandler[Any], stream: Any) -> Any:
    """Set the stream of a handler and return the former one.

    `StreamHandler.setStream` flushes the former stream, and fails if that is closed.
    """
    before = handler.stream
    if before is not None and getattr(before, "closed", False):
        handler.acquire()
        try:
            handler.stream = stream
        finally:
            handler.release()
    else:
        handler.setStream(stream)
    return before


@contextlib.contextmanager
def _environment(values: Mapping[str, str | None]) -> Iterator[None]:
    """Set variables of the environment inside this context. A value of None unsets the variable."""
    before = {name: os.environ.get(name) for name in values}
    _set_environment(values)
    try:
        yield
    finally:
        _set_environment(before)


def _set_environment(values: Mapping[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def trial_callbacks(task: Task) -> dict[str, RunCallback]:
    """Return the callbacks of a trial, which `engine.run.train` gets with the config's; none for other tasks.

    Writes the trial to run.json, so the caller must hold the run's lock.
    """
    if task.trial is None:
        return {}
    folder = RunFolder.open(Path(str(task.config["outputs"])) / task.key)
    folder.add_facts({TRIAL: {key: task.trial[key] for key in ("storage", "study", "number")}})
    if not task.trial.get("prunes", True):  # a later seed: the setting ran to its end on the first one
        return {}
    return {TRIAL: TrialReporter(folder, task.trial)}


class TrialReporter(RunCallback):
    """Reports each evaluation to the study, numbered from 1, and stops the run where the pruner decides so.

    If the storage fails, one warning is logged and the run continues to its end without pruning.
    """

    incidental: ClassVar[frozenset[str]] = frozenset({"*"})
    priority = 5  # after early stopping, before the checkpoint

    def __init__(self, folder: RunFolder, trial: TrialAddress) -> None:
        self._folder = folder
        self._address = trial
        self._trial: Any = None
        self._metric = ""
        self._pruner = ""
        self._count = 0

    def on_run_start(self, state: RunState) -> None:
        """Open the trial, and report the evaluations that a resumed run made before."""
        self._guarded(self._open)
        if self._trial is None:
            return
        for row in read_metrics(self._folder.path / METRICS):
            if self._metric in row and row["step"] <= state.step:
                self._guarded(lambda value=row[self._metric]: self._report(value))

    def on_evaluate(self, state: RunState, values: dict[str, float]) -> None:
        """Report the value, and stop where the pruner decides so, unless the run ends here anyway."""
        value = values.get(self._metric)  # None for a metric that is measured at the end alone, such as val/loss@4x
        if self._trial is None or value is None:
            return
        self._guarded(lambda: self._report(value))
        if state.finished:
            return
        if self._guarded(lambda: self._trial.should_prune()):
            state.pause = (
                f"pruned at step {state.step} by {self._pruner}: {self._metric} {value:.4g} in evaluation {self._count}"
            )

    def _open(self) -> None:
        import optuna

        study = optuna.load_study(study_name=self._address["study"], storage=storage(self._address["storage"]))
        purpose = study.user_attrs[QUESTION]
        self._metric = purpose["metric"]
        self._pruner = purpose["pruner"]
        study.pruner = make_pruner(self._pruner)
        study.sampler = make_sampler("random", 0)  # any that reads no trials: none is suggested here
        frozen = study.get_trials(deepcopy=False)[self._address["number"]]
        # A finished trial has its result already.
        self._trial = None if frozen.state.is_finished() else optuna.trial.Trial(study, frozen._trial_id)

    def _report(self, value: float) -> None:
        self._count += 1
        # A resumed run reports evaluations again, and Optuna warns about a second value for a step.
        if self._count not in self._trial.storage.get_trial(self._trial._trial_id).intermediate_values:
            self._trial.report(value, step=self._count)

    def _guarded(self, call: Any) -> Any:
        try:
            return call()
        except Exception as error:  # a broken database must not stop the run
            self._trial = None
            first_line = str(error).partition("\n")[0][:200]
            reason = f"{type(error).__name__}: {first_line}"
            log.warning("trial %s of %s is not pruned: %s", self._address["number"], self._address["study"], reason)
            return None
