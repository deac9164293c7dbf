"""Runs that end after so many seconds of training, or so many training FLOPs."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from blockyard.engine.callbacks import stopwatch
from blockyard.engine.callbacks.loop import LoopActions, LoopCallback
from blockyard.engine.run import train
from blockyard.engine.trainer import UNLIMITED, TrainerPlan
from blockyard.errors import UserError
from blockyard.runs.identity import identity
from blockyard.runs.metrics import read_metrics
from tests.support.engine_runs import assert_same_bits, config, folder, run, signal_after
from tests.support.fork import forked

TIMED = (
    *("trainer.max_steps=null", "trainer.max_epochs=null", "trainer.max_seconds=10", "trainer.eval_every=4"),
    *("schedule=cosine", "schedule.warmup=0", "trainer.log_every=1"),
)
NO_LIMITS = ("trainer.max_steps=null", "trainer.max_epochs=null")


class Clock:
    """A clock that moves by so many seconds in each step, and much more in an evaluation."""

    def __init__(self, seconds_of_step: Callable[[int], float] = lambda step: 1.0) -> None:
        self.now = 100.0
        self.seconds_of_step = seconds_of_step

    def install(self, patch: pytest.MonkeyPatch) -> None:
        start_batch, evaluate = LoopCallback.on_train_batch_start, LoopActions.evaluate

        def timed_step(loop: LoopCallback, *arguments: Any) -> None:
            start_batch(loop, *arguments)
            self.now += self.seconds_of_step(loop.state.step)

        def timed_evaluation(actions: LoopActions, *arguments: Any) -> None:
            self.now += 1_000
            evaluate(actions, *arguments)

        patch.setattr(stopwatch, "time", SimpleNamespace(perf_counter=lambda: self.now, time=time.time))
        patch.setattr(LoopCallback, "on_train_batch_start", timed_step)
        patch.setattr(LoopActions, "evaluate", timed_evaluation)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    clock.install(monkeypatch)
    return clock


def stopped_at(step: int, outputs: Path, signum: int) -> int:
    """Train by such a clock in a fork, which gets a signal in this step."""

    def work() -> int:
        Clock().install(pytest.MonkeyPatch())
        signal_after(step, signum)
        run_folder = folder(outputs, *TIMED)
        return train(run_folder, resume=run_folder.resumes)

    return forked(work)


@pytest.mark.parametrize("log_every", [1, 100])  # with 100, most steps are taken without Lightning's loop
def test_a_run_ends_after_its_seconds_of_training(tmp_path: Path, clock: Clock, log_every: int) -> None:
    run_folder = run(tmp_path, *TIMED, f"trainer.log_every={log_every}")
    summary = run_folder.summary()
    assert (summary["steps"], summary["seconds"]) == (10, 10.0)
    assert (summary["ended_by"], summary["stopped"]) == ("trainer.max_seconds=10", None)
    evaluated = [row["step"] for row in read_metrics(run_folder.path / "metrics.csv") if "val/loss" in row]
    assert evaluated == [4, 8, 10]


def test_lightning_callbacks_see_the_end_by_time(tmp_path: Path, clock: Clock) -> None:
    """The last weights are evaluated after them, and what they log late belongs to the last step."""
    target = "callbacks.rates._target_=pytorch_lightning.callbacks.LearningRateMonitor"
    run_folder = run(tmp_path, *TIMED, target)
    assert run_folder.summary()["ended_by"] == "trainer.max_seconds=10"
    recorded = read_metrics(run_folder.path / "metrics.csv")
    assert recorded[-1]["step"] == 10
    assert "val/loss" in recorded[-1]


def test_the_limit_that_is_reached_first_ends_a_run(tmp_path: Path, clock: Clock) -> None:
    run_folder = run(tmp_path, *TIMED, "trainer.max_steps=7")
    assert run_folder.summary()["steps"] == 7
    assert run_folder.summary()["ended_by"] == "trainer.max_steps=7"


def test_the_learning_rate_follows_the_share_of_the_seconds(tmp_path: Path, clock: Clock) -> None:
    """Cosine of the time: the pace halves after 4 seconds, and the rate falls as much a second as before."""
    clock.seconds_of_step = lambda step: 0.1 if step < 40 else 0.2
    run_folder = run(tmp_path, *TIMED, "callbacks=default", "optimizer.lr=1.0")
    began = [*(step / 10 for step in range(40)), *(4 + step / 5 for step in range(30))]  # seconds before each step
    rates = [row["lr"] for row in read_metrics(run_folder.path / "metrics.csv")]
    # The number of steps is estimated as a whole number, here of 70 to 100.
    assert rates == pytest.approx([0.5 * (1 + math.cos(math.pi * seconds / 10)) for seconds in began], abs=0.02)


def test_a_killed_run_counts_the_seconds_that_it_has_used(tmp_path: Path, clock: Clock) -> None:
    whole = run(tmp_path / "whole", *TIMED)
    assert stopped_at(6, tmp_path / "killed", signal.SIGKILL) == -signal.SIGKILL
    resumed = run(tmp_path / "killed", *TIMED)
    assert resumed.summary()["seconds"] == 10.0
    assert_same_bits(resumed, whole)


def test_a_signal_in_the_last_step_changes_nothing(tmp_path: Path, clock: Clock) -> None:
    whole = run(tmp_path / "whole", *TIMED)
    assert stopped_at(9, tmp_path / "stopped", signal.SIGTERM) == 143
    resumed = run(tmp_path / "stopped", *TIMED)
    assert resumed.summary()["ended_by"] == "trainer.max_seconds=10"
    assert_same_bits(resumed, whole)


def test_a_run_takes_the_whole_steps_that_its_flops_pay_for(tmp_path: Path) -> None:
    limits = (*NO_LIMITS, "trainer.eval_every=4")
    short = run(tmp_path, *limits, "trainer.max_steps=2").summary()
    step_flops = short["flops_per_sample"]["training"] * short["samples"] // 2
    run_folder = run(tmp_path, *limits, f"trainer.max_flops={5.99 * step_flops}")
    summary = run_folder.summary()
    assert summary["steps"] == 5
    assert summary["ended_by"].startswith("trainer.max_flops=")
    assert run_folder.facts()["budget"] == {"steps": 5, "step_flops": step_flops}
    with pytest.raises(UserError, match=rf"is less than a step of .* FLOPs; use {step_flops} or more"):
        run(tmp_path, *limits, f"trainer.max_flops={0.99 * step_flops}")


def test_new_limits_leave_the_identity_of_a_run() -> None:
    plain = config(Path("outputs"))[0]
    older = {**plain, "trainer": {k: v for k, v in plain["trainer"].items() if k not in ("max_seconds", "max_flops")}}
    assert identity(older) == identity(plain)
    assert identity({**plain, "trainer": {**plain["trainer"], "max_seconds": 60}}) != identity(plain)


def test_time_alone_may_end_a_run() -> None:
    assert TrainerPlan(max_epochs=None, max_seconds=60).total_steps(20) == UNLIMITED
    assert TrainerPlan(max_epochs=2, max_seconds=60).total_steps(20) == 40
    assert TrainerPlan(max_epochs=2, max_flops=1e6).step_limits(20, 300_000) == {"max_epochs": 40, "max_flops": 3}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_seconds": 5, "devices": 2}, "ends a run of one process, and this one has 2"),
        ({"max_seconds": 5, "first_batch": 2, "batch_warmup": 0.1}, r"trainer\.batch_warmup=0\.1 is a share of the"),
        ({"max_flops": 1e9, "first_batch": 2, "batch_warmup": 5}, "counts steps of one size"),
    ],
)
def test_options_that_need_a_number_of_steps_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TrainerPlan(**options)
