"""Train a run in its folder, whatever happens, and say truly how it ended.

running -> done (0)           the last step was made, the best weights were tested
        -> failed (1)         an error; everything saved before stays
        -> interrupted        SIGTERM (143) or Ctrl-C (130); the state was saved
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
from blockyard.engine.loggers import RunLog
from blockyard.engine.system.interrupts import Interrupted, Interrupts, Left
from blockyard.engine.system.silence import silence_libraries
from blockyard.errors import UserError
from blockyard.evaluate.extrapolation_files import TEST, table
from blockyard.runs.checkpoint import verify
from blockyard.runs.rank import rank_in
from blockyard.runs.redact import redact_text

if TYPE_CHECKING:
    from blockyard.engine.callbacks.base import RunCallback
    from blockyard.engine.job import Job
    from blockyard.engine.loggers import RunLog
    from blockyard.runs.folder import RunFolder

log = logging.getLogger("blockyard")


@dataclass
class _Ending:
    state: Any
    code: int
    reason: str | None = None
    summary: dict[str, Any] = field(default_factory=dict)
    trace: str | None = None


def train(folder: RunFolder, *, resume: bool = False, watchers: Mapping[str, RunCallback] | None = None) -> int:
    """Run the frozen config in `folder` to its end and return the exit code.

    resume: go on from the newest checkpoint that can be trusted, or from the start where there is none
    watchers: in the main process, beside those of the config, by name; they are no part of the run
    Raises UserError (exit code 2) for bad input that is only seen now, before the first step.
    """
    if rank_in(folder.config):
        return _beside(folder, resume)
    with Interrupts() as interrupts:
        return _main(folder, interrupts, resume, dict(watchers or {}))


def _main(folder: RunFolder, interrupts: Interrupts, resume: bool, watchers: dict[str, RunCallback]) -> int:
    record: list[RunLog] = []
    jobs: list[Job] = []
    began = time.monotonic()
    before = folder.status
    try:
        _forget_notes(folder)
        folder.set_status("running", step=_step_of(folder) if resume else 0)
        ending = _work(folder, interrupts, resume, watchers, record, jobs)
    except Left as left:
        ending = _Ending("interrupted", left.exit_code, str(left))
    except Interrupted as stop:
        ending = _Ending("interrupted", stop.exit_code, f"{stop} at step {_step(jobs)}")
    except KeyboardInterrupt:
        ending = _Ending("interrupted", 130, f"Ctrl-C at step {_step(jobs)}")
    except UserError as error:
        if _step(jobs) == _start(jobs):
            if before.state == "failed":  # it still is: nothing was tried
                folder.set_status("failed", before.reason, step=before.step, exit_code=before.exit_code)
            else:
                folder.set_status("queued", str(error), exit_code=2)
            _close(folder, record, _Ending("failed", 2))
            raise UserError(redact_text(str(error))) from None
        ending = _failure(folder, error, jobs)
    except Exception as error:  # whatever ends a run is written down, then said
        ending = _failure(folder, error, jobs)
    with _deaf(interrupts):
        step = _step(jobs)
        folder.set_status(ending.state, ending.reason, step=step, exit_code=ending.code)
        if ending.reason:
            log.warning("%s: %s", ending.state, ending.reason)
        if ending.trace:  # after the status: on a full disk there may be room for one of them only
            with contextlib.suppress(OSError):
                write_text(folder.path / "error.txt", ending.trace)
        _close(folder, record, ending)
    log.info("%s after %.1f s", ending.state, time.monotonic() - began)
    return ending.code


def _work(
    folder: RunFolder,
    interrupts: Interrupts,
    resume: bool,
    watchers: dict[str, RunCallback],
    record: list[RunLog],
    jobs: list[Job],
) -> _Ending:
    from blockyard.config import build
    from blockyard.engine.setup import prepare
    from blockyard.engine.system.processes import clean_environment

    silence_libraries()
    with clean_environment(), _own_threads():
        mirror = RunLog(folder, build.Components(folder.config).node("logger"))
        job = prepare(folder, mirror.log, interrupts, resume=resume, watchers=watchers)
        jobs.append(job)
        folder.metrics.truncate_after(_saved_step(job))
        record.append(mirror)
        mirror.start()
        job.fit()
        summary = job.summary()
    folder.write_summary(summary)
    return _Ending("done", 0, None, summary)


@contextlib.contextmanager
def _own_threads() -> Iterator[None]:
    import torch

    before = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _beside(folder: RunFolder, resume: bool) -> int:
    """Train in a process that is not the main one: nothing is written but the reason of a failure."""
    from blockyard.engine.setup import prepare, unheard
    from blockyard.engine.system.processes import leave

    silence_libraries()
    with Interrupts() as interrupts:
        try:
            prepare(folder, unheard, interrupts, resume=resume).fit()
        except Interrupted as stop:
            return 0 if stop.signum or isinstance(stop, Left) else 1  # the main process gives the exit code
        except Exception as error:
            rank = rank_in(folder.config)
            _note(folder, rank, f"process {rank}: {_words(error)}")
            log.warning("process %s ended: %s", rank, _words(error))
            leave()
            return 1
    return 0


def _failure(folder: RunFolder, error: Exception, jobs: list[Job]) -> _Ending:
    reason = _words(error)
    told = _noted(folder)
    fellow = jobs[0].fellow if jobs else None
    if fellow and isinstance(error, RuntimeError):
        # What this process noticed is only that the other one is gone.
        reason = str(told or fellow)
    if f"step {_step(jobs)}" not in reason and "at step" not in reason:
        reason += f" (after step {_step(jobs)})"
    return _Ending("failed", 1, reason, trace=redact_text("".join(traceback.format_exception(error))))


# A file for each process: the run's own state is for the main one to write.
_NOTE = "error-process-{}.txt"


def _note(folder: RunFolder, rank: int, reason: str) -> None:
    with contextlib.suppress(OSError):
        write_text(folder.path / _NOTE.format(rank), reason)


def _noted(folder: RunFolder) -> str | None:
    with contextlib.suppress(OSError):
        return next((path.read_text() for path in sorted(folder.path.glob(_NOTE.format("*")))), None)
    return None


def _forget_notes(folder: RunFolder) -> None:
    for path in folder.path.glob(_NOTE.format("*")):
        with contextlib.suppress(OSError):
            path.unlink()


def _close(folder: RunFolder, record: list[RunLog], ending: _Ending) -> None:
    for mirror in record:
        try:
            mirror.finish(ending.state, ending.summary)
        except OSError as error:
            log.warning("the metrics of %s could not be closed: %s", folder.path, error)


@contextlib.contextmanager
def _deaf(interrupts: Interrupts) -> Any:
    """The last words are not cut off by the second signal of an impatient sender."""
    interrupts.waiting = True
    with contextlib.suppress(Interrupted, KeyboardInterrupt):
        yield
    interrupts.waiting = False


def _words(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {redact_text(lines[0])[:400] if lines else 'no message'}"


def _step(jobs: list[Job]) -> int:
    return jobs[0].live.step if jobs else 0


def _start(jobs: list[Job]) -> int:
    return jobs[0].live.start_step if jobs else 0


def _step_of(folder: RunFolder) -> int | None:
    return folder.status.step


def _saved_step(job: Job) -> int:
    return 0 if job.checkpoint is None else verify(job.checkpoint).step


def fit(folder: RunFolder, resume: bool) -> int:
    """Train in a run folder that is this process's, and give it back."""
    if folder.message:
        sys.stderr.write(f"{folder.message}\n")
    with folder:
        code = train(folder, resume=resume)
        if code == 0 and not rank_in(folder.config):
            _tell(folder)
    return code


def _tell(folder: RunFolder) -> None:
    """The figures of a finished run, what it cost, and where it lies."""
    summary = folder.summary()
    metrics = "  ".join(f"{name} {value:.4g}" for name, value in summary["metrics"].items() if "@" not in name)
    sys.stdout.write(f"done in {summary['seconds']:.1f} s, {summary['steps']} steps, weights of {summary['weights']}\n")
    if "refused" in summary:  # judged at longer rows too
        sys.stdout.write(table(read_json(folder.path / TEST)))
    sys.stdout.write(f"{metrics}\n{folder.path}\n")
