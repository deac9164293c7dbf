"""Trains a run in its folder and records how it ended.

running -> done (0)           the last step was taken, the best weights were tested
        -> failed (1)         an error; everything saved before stays
        -> interrupted        SIGTERM (143), Ctrl-C (130) or a callback (79); the state was saved
        -> queued (2)         bad input found before the first step
"""

from __future__ import annotations

import contextlib
import logging
import sys
import time
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from blockyard.atomic_files import read_json, write_text
from blockyard.engine.loggers import RunLog, run_logger
from blockyard.engine.rank_errors import clear_notes, first_note, write_note
from blockyard.engine.system.interrupts import Interrupted, Interrupts, Paused
from blockyard.engine.system.silence import silence_libraries
from blockyard.errors import UserError
from blockyard.evaluate.extrapolation_files import TEST, table, write
from blockyard.objective._torchmetrics import import_torchmetrics
from blockyard.runs.rank import rank_in
from blockyard.runs.redact import redact_text

if TYPE_CHECKING:
    from blockyard.engine.callbacks.base import RunCallback
    from blockyard.engine.job import Job
    from blockyard.runs.folder import RunFolder

log = logging.getLogger("blockyard")


@dataclass
class _Attempt:
    """One try at training a run: what exists of it when it ends, at whatever point."""

    folder: RunFolder
    interrupts: Interrupts
    resume: bool
    callbacks: Mapping[str, RunCallback]
    job: Job | None = None
    run_log: RunLog | None = None

    @property
    def step(self) -> int:
        """Steps done so far."""
        return self.job.state.step if self.job else 0

    @property
    def started(self) -> bool:
        """Whether a step was taken in this process."""
        return self.job is not None and self.job.state.step != self.job.state.start_step


@dataclass
class _Ending:
    state: Any
    code: int
    reason: str | None = None
    summary: dict[str, Any] = field(default_factory=dict)
    trace: str | None = None


def train(folder: RunFolder, *, resume: bool = False, callbacks: Mapping[str, RunCallback] | None = None) -> int:
    """Train the frozen config in `folder` to its end and return the exit code.

    resume: continue from the newest valid checkpoint, or from the start where there is none
    callbacks: in the main process, besides those of the config, by name; they are not part of the run
    Raises UserError (exit code 2) for bad input that is found before the first step.
    """
    if rank_in(folder.config):
        return _run_worker_rank(folder, resume)
    with Interrupts() as interrupts:
        return _run_main_rank(_Attempt(folder, interrupts, resume, dict(callbacks or {})))


def fit(folder: RunFolder, resume: bool) -> int:
    """Train in a folder that this process has locked, release it, and print the result."""
    if folder.message:
        sys.stderr.write(f"{folder.message}\n")
    with folder:
        code = train(folder, resume=resume)
        if code == 0 and not rank_in(folder.config):
            _print_result(folder)
    return code


def _run_main_rank(attempt: _Attempt) -> int:
    began = time.monotonic()
    folder, before = attempt.folder, attempt.folder.status
    try:
        clear_notes(folder)
        folder.set_status("running", step=before.step if attempt.resume else 0)
        ending = _train_and_test(attempt)
    except Paused as pause:
        ending = _Ending("interrupted", pause.exit_code, str(pause))
    except Interrupted as stop:
        ending = _Ending("interrupted", stop.exit_code, f"{stop} at step {attempt.step}")
    except KeyboardInterrupt:
        ending = _Ending("interrupted", 130, f"Ctrl-C at step {attempt.step}")
    except UserError as error:
        if not attempt.started:
            if before.state == "failed":  # unchanged: nothing was tried
                folder.set_status("failed", before.reason, step=before.step, exit_code=before.exit_code)
            else:
                folder.set_status("queued", str(error), exit_code=2)
            _close(attempt, _Ending("failed", 2))
            raise UserError(redact_text(str(error))) from None
        ending = _failure(attempt, error)
    except Exception as error:  # whatever ends a run is recorded
        ending = _failure(attempt, error)
    with _ignore_signals(attempt.interrupts):
        folder.set_status(ending.state, ending.reason, step=attempt.step, exit_code=ending.code)
        if ending.reason:
            log.warning("%s: %s", ending.state, ending.reason)
        if ending.trace:  # after the status: a full disk may have room for one of them only
            with contextlib.suppress(OSError):
                write_text(folder.path / "error.txt", ending.trace)
        _close(attempt, ending)
    log.info("%s after %.1f s", ending.state, time.monotonic() - began)
    return ending.code


def _train_and_test(attempt: _Attempt) -> _Ending:
    import_torchmetrics(attempt.folder.config.get("allow") or ())  # before Lightning does
    from blockyard.engine.setup import prepare
    from blockyard.engine.summary import summarize
    from blockyard.engine.system.processes import clean_environment

    folder = attempt.folder
    silence_libraries()
    with clean_environment(), _own_threads():
        run_log = RunLog(folder, run_logger(folder.config))
        job = attempt.job = prepare(
            folder, run_log.log, attempt.interrupts, resume=attempt.resume, callbacks=attempt.callbacks
        )
        folder.metrics.truncate_after(job.start_step)
        attempt.run_log = run_log
        run_log.start()
        job.fit()
        summary = summarize(job)
    for curve in summary.curves:
        write(folder.path, curve.plain(), summary.weights)
    folder.write_summary(summary.values)
    return _Ending("done", 0, None, summary.values)


@contextlib.contextmanager
def _own_threads() -> Iterator[None]:
    """Restore the number of CPU threads that this process had before the run."""
    import torch

    before = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _run_worker_rank(folder: RunFolder, resume: bool) -> int:
    """Train in a process that is not the main one; it writes nothing but the reason of a failure."""
    import_torchmetrics(folder.config.get("allow") or ())
    from blockyard.engine.setup import ignore_metrics, prepare
    from blockyard.engine.system.processes import abort_rank

    silence_libraries()
    with Interrupts() as interrupts:
        try:
            prepare(folder, ignore_metrics, interrupts, resume=resume).fit()
        except Interrupted as stop:
            return 0 if stop.signum or isinstance(stop, Paused) else 1  # the main process gives the exit code
        except Exception as error:
            rank = rank_in(folder.config)
            write_note(folder, rank, f"process {rank}: {_one_line(error)}")
            log.warning("process %s failed: %s", rank, _one_line(error))
            abort_rank()
            return 1
    return 0


def _failure(attempt: _Attempt, error: Exception) -> _Ending:
    reason = _one_line(error)
    dead_peer = attempt.job.dead_peer if attempt.job else None
    if dead_peer and isinstance(error, RuntimeError):
        # This process only noticed that the connection broke; the other one knows the cause.
        reason = str(first_note(attempt.folder) or dead_peer)
    if f"step {attempt.step}" not in reason and "at step" not in reason:
        reason += f" (after step {attempt.step})"
    return _Ending("failed", 1, reason, trace=redact_text("".join(traceback.format_exception(error))))


def _close(attempt: _Attempt, ending: _Ending) -> None:
    if attempt.run_log is None:
        return
    try:
        attempt.run_log.finish(ending.state, ending.summary)
    except OSError as error:
        log.warning("the metrics of %s could not be closed: %s", attempt.folder.path, error)


@contextlib.contextmanager
def _ignore_signals(interrupts: Interrupts) -> Iterator[None]:
    """Ignore further signals while the final status is written."""
    interrupts.waiting = True
    with contextlib.suppress(Interrupted, KeyboardInterrupt):
        yield
    interrupts.waiting = False


def _one_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {redact_text(lines[0])[:400] if lines else 'no message'}"


def _print_result(folder: RunFolder) -> None:
    """Print the metrics of a finished run, what it cost, and its folder."""
    summary = folder.summary()
    metrics = "  ".join(f"{name} {value:.4g}" for name, value in summary["metrics"].items() if "@" not in name)
    sys.stdout.write(f"done in {summary['seconds']:.1f} s, {summary['steps']} steps, weights of {summary['weights']}\n")
    if "refused" in summary:  # evaluated on longer sequences too
        sys.stdout.write(table(read_json(folder.path / TEST)))
    sys.stdout.write(f"{metrics}\n{folder.path}\n")
