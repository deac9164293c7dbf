"""Trains a run in its folder and records how it ended.

running -> done (0)           the last step was taken, the best weights were tested
        -> failed (1)         an error; everything saved before stays
        -> interrupted        SIGTERM (143), Ctrl-C (130), another signal (128 + its number) or a callback (79); the
                              state was saved
        -> queued (2)         bad input found before the first step; the command removes a folder that is new, and a
                              cell of a sweep has failed
"""

from __future__ import annotations

import contextlib
import logging
import sys
import time
from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING

from blockyard.engine.attempt import Attempt, abandon, close, ending_after, record_ending
from blockyard.engine.ending import Ending, ending_of
from blockyard.engine.loggers import RunLog, run_loggers
from blockyard.engine.print_result import print_result
from blockyard.engine.system.interrupts import Interrupted, Interrupts
from blockyard.engine.system.silence import silence_libraries
from blockyard.engine.worker_rank import train_worker_rank
from blockyard.errors import UserError, printable
from blockyard.evaluate.extrapolation_files import write
from blockyard.objective._torchmetrics import import_torchmetrics
from blockyard.ops.kernel import attention_kernel
from blockyard.runs.predictions_file import TEST as TEST_PREDICTIONS
from blockyard.runs.predictions_file import write_predictions
from blockyard.runs.rank import rank_in
from blockyard.runs.rank_notes import clear_notes
from blockyard.runs.redact import redact_text
from blockyard.runs.start import discard

if TYPE_CHECKING:
    from blockyard.engine.callbacks.base import RunCallback
    from blockyard.runs.folder import RunFolder
    from blockyard.runs.status import Status

log = logging.getLogger("blockyard")


def train(folder: RunFolder, *, resume: bool = False, callbacks: Mapping[str, RunCallback] | None = None) -> int:
    """Train the frozen config in `folder` to its end and return the exit code.

    resume: continue from the newest valid checkpoint, or from the start where there is none
    callbacks: in the main process, besides those of the config, by name; they are not part of the run
    Raises UserError (exit code 2) for bad input that is found before the first step.
    """
    if rank_in(folder.config):
        return train_worker_rank(folder, resume)
    with Interrupts() as interrupts:
        return _run_main_rank(Attempt(folder, interrupts, resume, dict(callbacks or {})))


def fit(folder: RunFolder, resume: bool) -> int:
    """Train in a folder that this process has locked, release it, and print the result.

    Raises UserError for bad input that is found before the first step; a new folder is removed then.
    """
    if folder.message:
        sys.stderr.write(printable(f"{folder.message}\n"))
    with folder:
        try:
            code = train(folder, resume=resume)
        except UserError:
            discard(folder)
            raise
        if code == 0 and not rank_in(folder.config):
            print_result(folder)
    return code


def _run_main_rank(attempt: Attempt) -> int:
    began = time.monotonic()
    before = attempt.folder.status
    try:
        try:
            ending = _attempt(attempt, before)
        finally:
            attempt.interrupts.close()
    except Interrupted as stop:  # it came while another ending was put into words
        ending = ending_of(stop, attempt.step)
    record_ending(attempt, ending)
    log.info("%s after %.1f s", ending.state, time.monotonic() - began)
    return ending.code


def _attempt(attempt: Attempt, before: Status) -> Ending:
    """Train and test, and say how it ended. Raises UserError for bad input that is found before the first step."""
    folder = attempt.folder
    try:
        clear_notes(folder.path)
        attempt.resumed_step = (before.step or 0) if attempt.resume else 0
        folder.set_status("running", step=attempt.resumed_step)
        return _train_and_test(attempt)
    except UserError as error:
        if attempt.started:
            return ending_of(error, attempt.step)
        if before.state == "failed":  # unchanged: nothing was tried
            folder.set_status("failed", before.reason, step=before.step, exit_code=before.exit_code)
        else:
            folder.set_status("queued", str(error), exit_code=2)
        close(attempt, Ending("failed", 2))
        raise UserError(redact_text(str(error))) from None
    except BaseException as error:  # whatever ends a run is recorded
        return ending_after(error, attempt)


def _train_and_test(attempt: Attempt) -> Ending:
    import_torchmetrics(attempt.folder.config.get("allow") or ())  # before Lightning does
    from blockyard.engine.setup import prepare
    from blockyard.engine.summary import summarize
    from blockyard.engine.system.processes import clean_environment

    folder = attempt.folder
    silence_libraries()
    kernel = folder.config["trainer"].get("attention", "auto")
    with clean_environment(), _own_threads(), attention_kernel(kernel):
        run_log = RunLog(folder, *run_loggers(folder.config))
        job = attempt.job = prepare(
            folder, run_log.log, attempt.interrupts, resume=attempt.resume, callbacks=attempt.callbacks
        )
        job.abandon = partial(abandon, attempt)
        folder.metrics.truncate_after(job.start_step)
        attempt.run_log = run_log
        run_log.start()
        job.fit()
        summary = summarize(job)
    job.check_finished()
    for curve in summary.curves:
        write(folder.path, curve.plain(), summary.weights)
    if summary.predictions is not None:
        write_predictions(folder.path / TEST_PREDICTIONS, summary.predictions)
    folder.write_summary(summary.values)
    return Ending("done", 0, None, summary.values)


@contextlib.contextmanager
def _own_threads() -> Iterator[None]:
    """Restore the number of CPU threads that this process had before the run."""
    import torch

    before = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(before)
