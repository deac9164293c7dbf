"""What a job of SLURM does when it is told to save or to end: it goes back into the queue, or leaves no result."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from blockyard.sweep.cells import Outcome, Task
from blockyard.sweep.executor import _slurm_queue
from blockyard.sweep.executor._slurm_queue import CellJob

TASK = Task("tiny/s0", {})
REQUEUED = 55


@pytest.fixture
def requeues(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The signals that submitit's handler, which requeues the job and exits, was called with."""
    calls: list[int] = []

    def requeue(signum: int, frame: object) -> None:
        calls.append(signum)
        raise SystemExit(REQUEUED)

    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR2)}
    signal.signal(signal.SIGUSR2, requeue)
    monkeypatch.setenv("SUBMITIT_EXECUTOR", "slurm")
    monkeypatch.delenv("SUBMITIT_PREEMPT_SIGNAL", raising=False)
    yield calls
    for number, handler in before.items():
        signal.signal(number, handler)


def run(monkeypatch: pytest.MonkeyPatch, execute: Callable[[Task], Outcome], state: str | None) -> Any:
    """The outcome of the job, or its exit code where it leaves none. state: of the job, according to SLURM."""
    monkeypatch.setattr(_slurm_queue, "execute", execute)
    monkeypatch.setattr(_slurm_queue, "own_state", lambda: state)
    try:
        return CellJob(None)(TASK)
    except SystemExit as ended:
        return ended.code


def before_the_run(signum: int) -> Callable[[Task], Outcome]:
    def execute(task: Task) -> Outcome:
        os.kill(os.getpid(), signum)
        raise AssertionError("it goes on")

    return execute


def in_the_run(signum: int) -> Callable[[Task], Outcome]:
    """As a run does: handle SIGTERM until the step ends, save, and put the handler back."""

    def execute(task: Task) -> Outcome:
        received: list[int] = []
        before = signal.signal(signal.SIGTERM, lambda number, frame: received.append(number))
        os.kill(os.getpid(), signum)
        signal.signal(signal.SIGTERM, before)
        assert received == [signal.SIGTERM]
        return Outcome(task.key, 143, "stopped by SIGTERM at step 3")

    return execute


@pytest.mark.parametrize("moment", [before_the_run, in_the_run])
@pytest.mark.parametrize(
    ("signum", "state", "ends"),
    [
        (signal.SIGUSR2, "RUNNING", REQUEUED),  # the end of the time limit is near
        (signal.SIGTERM, "RUNNING", REQUEUED),  # preempted, with time to save
        (signal.SIGTERM, "COMPLETING", 143),  # cancelled, requeued or out of time
        (signal.SIGTERM, "CANCELLED", 143),
        (signal.SIGTERM, None, 143),  # the controller does not answer
    ],
)
def test_a_job_goes_back_into_the_queue_or_leaves_no_result(
    requeues: list[int],
    monkeypatch: pytest.MonkeyPatch,
    moment: Callable[[int], Callable[[Task], Outcome]],
    signum: int,
    state: str | None,
    ends: int,
) -> None:
    assert run(monkeypatch, moment(signum), state) == ends
    assert requeues == ([signum] if ends == REQUEUED else [])


def test_a_job_that_slurm_no_longer_requeues_leaves_no_result(
    requeues: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def too_late(signum: int, frame: object) -> None:
        raise subprocess.CalledProcessError(1, ["scontrol", "requeue", "77"])

    signal.signal(signal.SIGUSR2, too_late)
    assert run(monkeypatch, in_the_run(signal.SIGUSR2), "COMPLETING") == 143


@pytest.mark.parametrize("code", [0, 1, 75])
def test_other_outcomes_are_results(requeues: list[int], monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    assert run(monkeypatch, lambda task: Outcome(task.key, code), "RUNNING") == Outcome(TASK.key, code)
    assert requeues == []
