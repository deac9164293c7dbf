"""Follows submitted jobs of SLURM: which have ended, and with which outcome."""

from __future__ import annotations

import logging
import os
import pickle
import time
from collections import Counter
from pathlib import Path
from typing import Any

from blockyard.sweep.executor._outcomes import LOST, lost_outcome
from blockyard.sweep.executor._slurm_pickles import read_pickle
from blockyard.sweep.executor._slurm_queue import ENDED, GONE, Queue
from blockyard.sweep.executor.base import Outcome, Task

log = logging.getLogger("blockyard")

CUT_OFF = frozenset({"TIMEOUT", "PREEMPTED", "NODE_FAIL", "BOOT_FAIL"})  # the same cell can go on in a new job
_RESULT_WAIT = 15.0  # seconds in which a result of an ended job may still become visible on a shared file system


class JobFollower:
    """Tells how jobs end: by the result that a job leaves, or by what the queue says of one that leaves none.

    requeues: how often a run whose job was cut off goes back into the queue
    """

    def __init__(self, queue: Queue, requeues: int) -> None:
        self.queue = queue
        self._requeues = requeues
        self._cut_off: Counter[str] = Counter()  # how often the job of a run was
        self._ended: dict[str, tuple[str, float]] = {}  # job id -> its state and when it was first seen

    def ended(self, job: Any, files: set[str]) -> str | None:
        """The state of a job that has ended, or None. files: the names in the folder of submitit's files."""
        if all(path.name in files for path in _results(job)):
            return "COMPLETED"
        state = self.queue.state(job.job_id)
        if state not in ENDED:
            self._ended.pop(job.job_id, None)
            return None
        state, since = self._ended.setdefault(job.job_id, (state, time.monotonic()))
        return state if time.monotonic() - since >= _RESULT_WAIT else None

    def requeues(self, task: Task, job: Any, state: str) -> bool:
        """Whether the task of an ended job is submitted again, because the job was cut off."""
        if state not in CUT_OFF or self._cut_off[task.key] >= self._requeues:
            return False
        self._cut_off[task.key] += 1
        log.warning("job %s ended as %s and is submitted again", job.job_id, state)
        return True

    def outcome(self, task: Task, job: Any, state: str) -> Outcome:
        """The outcome of an ended job; the run's status keeps the reason where the job has left no result."""
        ended = "left the queue" if state == GONE else f"ended as {state}"
        try:
            results = [read_pickle(path) for path in _results(job)]
        except OSError:
            reason = f"job {job.job_id} {ended} without a result"
        except pickle.UnpicklingError as error:
            reason = f"job {job.job_id} {ended} without a result: {error}"
        else:
            pairs = [each for each in results if isinstance(each, tuple) and len(each) == 2]
            traces = [str(value).strip() for kind, value in pairs if kind == "error"]
            if pairs and not traces and isinstance(pairs[0][1], Outcome):
                return pairs[0][1]
            last = traces[0].splitlines()[-1][:200] if traces and traces[0] else "its result is no outcome of a cell"
            reason = f"job {job.job_id}: {last}"
        return lost_outcome(task, LOST, f"{reason}; see {job.paths.stderr}", failed=False)


def names_in(folder: Path) -> set[str]:
    """The names in a folder; reading it lets a shared file system show new ones."""
    try:
        return set(os.listdir(folder))
    except OSError:
        return set()


def _results(job: Any) -> list[Path]:
    return [job.task(number).paths.result_pickle for number in range(job.num_tasks)]
