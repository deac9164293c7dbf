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
import math
import os
import re
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from blockyard.atomic_files import read_json, write_text
from blockyard.engine.baselines import announced, record_baselines
from blockyard.engine.faults.ending import Ending, ending_of
from blockyard.engine.faults.interrupts import Interrupted, Interrupts
from blockyard.engine.faults.peers import ConnectionLostError, PeerLostError
from blockyard.engine.faults.worker_rank import fit_worker_rank
from blockyard.engine.loggers import RunLog, run_loggers
from blockyard.errors import UserError, printable
from blockyard.evaluate.length_extrapolation import TEST, table, write
from blockyard.evaluate.span_types import of_type, table_of_types
from blockyard.evaluate.written import write_texts
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
    from blockyard.engine.job import Job
    from blockyard.runs.folder import RunFolder
    from blockyard.runs.status import Status

log = logging.getLogger("blockyard")


def train(folder: RunFolder, *, resume: bool = False, callbacks: Mapping[str, RunCallback] | None = None) -> int:
    """Train the frozen config in `folder` to its end and return the exit code.

    resume: continue from the newest valid checkpoint, or from the start where there is none
    callbacks: in the main process, besides the config's, by name; they are not part of the run
    Raises UserError (exit code 2) for bad input that is found before the first step.
    """
    if rank_in(folder.config):
        return _train_worker_rank(folder, resume)
    with Interrupts() as interrupts:
        return _run_main_rank(Attempt(folder, interrupts, resume, dict(callbacks or {})))


def train_and_print(folder: RunFolder, resume: bool) -> int:
    """Train in a folder that this process has locked, release it, and print the result.

    Raises UserError for bad input that is found before the first step; a new folder is removed then.
    """
    if folder.message:
        _show(folder.message)
    with folder:
        try:
            code = train(folder, resume=resume)
        except UserError:
            discard(folder)
            raise
        if code == 0 and not rank_in(folder.config):
            print_result(folder)
    return code


def _show(text: str) -> None:
    """Print a line on standard error. A run goes on without the reader of its messages."""
    with contextlib.suppress(BrokenPipeError):
        sys.stderr.write(printable(f"{text}\n"))


def _train_and_test(attempt: Attempt) -> Ending:
    folder = attempt.folder
    with _prepared_process(folder):
        from blockyard.engine.setup import prepare
        from blockyard.engine.summary import summarize

        run_log = RunLog(folder, *run_loggers(folder.config))
        callbacks = {**attempt.callbacks, **run_log.callbacks()}
        job = attempt.job = prepare(folder, run_log.log, attempt.interrupts, resume=attempt.resume, callbacks=callbacks)
        job.abandon = partial(abandon, attempt)
        if folder.first_line is not None:
            _show(folder.first_line)
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
        run_log.show(job.components, job.splits.test, summary.predictions)
    if summary.written is not None:
        write_texts(folder.path / "written-test.jsonl", summary.written, summary.weights, summary.step)
    folder.write_summary(summary.values | announced(job))
    return Ending("done", 0, None, summary.values)


def _train_worker_rank(folder: RunFolder, resume: bool) -> int:
    """Train in a process that is not the main one; it writes nothing but a note of its failure."""
    with _prepared_process(folder):
        from blockyard.engine.setup import ignore_metrics, prepare

        def prepare_rank(interrupts: Interrupts) -> Job:
            return prepare(folder, ignore_metrics, interrupts, resume=resume)

        return fit_worker_rank(folder.path, rank_in(folder.config), prepare_rank)


@contextlib.contextmanager
def _prepared_process(folder: RunFolder) -> Iterator[None]:
    """Set up libraries and the attention kernel for a run; restore kernel, environment and CPU threads afterwards."""
    import_torchmetrics(folder.config.get("allow") or ())  # before Lightning does
    import torch

    from blockyard.engine.lightning.patches import silence_libraries
    from blockyard.engine.lightning.processes import clean_environment

    silence_libraries()
    threads = torch.get_num_threads()
    try:
        with clean_environment(), attention_kernel(folder.config["trainer"].get("attention", "auto")):
            yield
    finally:
        torch.set_num_threads(threads)


@dataclass
class Attempt:
    """One try at training a run: the parts of it that exist when it ends, at whatever point.

    resumed_step: steps that the run had done before, for an end that comes before the checkpoint is read
    """

    folder: RunFolder
    interrupts: Interrupts
    resume: bool
    callbacks: Mapping[str, RunCallback]
    job: Job | None = None
    run_log: RunLog | None = None
    resumed_step: int = 0

    @property
    def step(self) -> int:
        """Steps done so far."""
        if self.job:
            return self.job.state.step
        return self.resumed_step

    @property
    def started(self) -> bool:
        """Return whether a step was taken in this process."""
        return self.job is not None and self.job.state.step != self.job.state.start_step


def _run_main_rank(attempt: Attempt) -> int:
    began = time.monotonic()
    before = attempt.folder.status
    try:
        try:
            ending = _attempt(attempt, before)
        finally:
            # The status and the reason are written next, and no signal may cut that short.
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
        cause = attempt.interrupts.behind(error)
        if attempt.started or cause is not error:
            return ending_of(cause, attempt.step)
        if before.state == "failed":  # unchanged: nothing was tried
            folder.set_status("failed", before.reason, step=before.step, exit_code=before.exit_code)
        else:
            folder.set_status("queued", str(error), exit_code=2)
        close(attempt, Ending("failed", 2))
        raise UserError(redact_text(str(error))) from None
    except BaseException as error:  # whatever ends a run is recorded
        return ending_after(attempt.interrupts.behind(error), attempt)


def ending_after(error: BaseException, attempt: Attempt) -> Ending:
    """The ending for an error; where it is only about another process, that of the other process."""
    attempt.interrupts.waiting = True  # signals are recorded while the others tell what happened
    cause = attempt.job.peers.explain(error) if attempt.job else error
    if isinstance(cause, PeerLostError) and attempt.interrupts.signum is not None:
        # Whoever ends a run from outside signals all of its processes, and another one was faster.
        cause = Interrupted(attempt.interrupts.signum)
    ending = ending_of(cause, attempt.step)
    if cause is not error and ending.trace:
        ending.trace = ending_of(error, attempt.step).trace
    return ending


def record_ending(attempt: Attempt, ending: Ending) -> None:
    """Write how the run ended, and close everything that it had opened."""
    folder = attempt.folder
    folder.set_status(ending.state, ending.reason, step=attempt.step, exit_code=ending.code)
    if ending.reason:
        log.warning("%s: %s", ending.state, printable(ending.reason))
    if ending.trace:  # after the status: a full disk may have room for one of them only
        with contextlib.suppress(OSError):
            write_text(folder.path / "error.txt", ending.trace)
    if ending.state == "done":
        assert attempt.job is not None
        ending.summary = record_baselines(folder, attempt.job, attempt.interrupts, ending.summary)
    close(attempt, ending)


def abandon(attempt: Attempt, endings: dict[int, int]) -> None:
    """In a thread, where another process failed and this one does not notice: record that and end this process."""
    assert attempt.job is not None
    attempt.job.endings |= endings
    ending = ending_of(attempt.job.peers.explain(ConnectionLostError()), attempt.step)
    attempt.interrupts.close()
    record_ending(attempt, ending)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    # The main thread may wait for the other process in a call that no exception reaches.
    os._exit(ending.code)


def close(attempt: Attempt, ending: Ending) -> None:
    """Close the loggers of an attempt, if it had opened them."""
    if attempt.run_log is None:
        return
    try:
        attempt.run_log.finish(ending.state, ending.summary)
    except OSError as error:
        log.warning("the metrics of %s could not be closed: %s", attempt.folder.path, error)


def print_result(folder: RunFolder) -> None:
    """Print the metrics of a finished run, its cost, and its folder."""
    summary = folder.summary()
    metrics = []
    slices = []
    for name, value in summary["metrics"].items():
        if "@" not in name:
            metrics.append(f"{name} {value:.4g}")
        elif name.startswith("test/") and not re.search(r"@\d+x$", name) and not of_type(name):
            # Longer sequences and types of spans have tables of their own.
            slices.append(f"{name} {value:.4g}")
    sys.stdout.write(
        f"done in {summary['seconds']:.1f} s, {summary['steps']} steps ({summary['ended_by']}), "
        f"weights of {summary['weights']}\n"
    )
    if "refused" in summary:  # evaluated on longer sequences too
        sys.stdout.write(table(read_json(folder.path / TEST)))
    sys.stdout.write("  ".join(metrics) + "\n")
    if slices:
        sys.stdout.write("  ".join(slices) + "\n")
    baselines = summary.get("baselines", {})
    tested = {name.removeprefix("test/"): v for name, v in summary["metrics"].items() if name.startswith("test/")}
    sys.stdout.write(table_of_types(tested, baselines))
    for name, values in baselines.items():
        columns = []
        for metric, value in values.items():
            if not of_type(metric):
                columns.append(f"test/{metric} {math.nan if value is None else value:.4g}")
        line = f"baseline {name}: {'  '.join(columns)}"
        note = summary.get("baseline_notes", {}).get(name)
        if note:
            line += f" ({note})"
        sys.stdout.write(f"{line}\n")
    for name, reason in summary.get("baselines_missing", {}).items():
        sys.stdout.write(f"baseline {name}: no value ({printable(str(reason))})\n")
    sys.stdout.write(f"{printable(str(folder.path))}\n")
