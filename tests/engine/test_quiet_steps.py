"""Steps that are taken without Lightning's loop: the bits of a run that takes all its steps with it."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.testing import assert_close

from blockyard.engine.callbacks.loop import LoopCallback
from blockyard.engine.module import Learner
from blockyard.runs.checkpoint import read
from blockyard.runs.folder import RunFolder
from tests.support.engine_runs import killed_at, rows, run
from tests.support.every import every

STEPS = ("trainer.max_steps=22", "trainer.log_every=10", "trainer.eval_every=20", "token_mixer.dropout=0.1")
CLOCKS = ("seconds", "windows", "first", "memory")


@pytest.fixture
def by_lightning(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The steps after which Lightning called the hook of its loop."""
    steps: list[int] = []
    original = LoopCallback.on_train_batch_end

    def counted(self: LoopCallback, *arguments: Any) -> None:
        steps.append(self.state.step + 1)
        original(self, *arguments)

    monkeypatch.setattr(LoopCallback, "on_train_batch_end", counted)
    return steps


def whole(run_folder: RunFolder) -> dict[str, Any]:
    """All that the last checkpoint holds, counters of Lightning's included, by path; without what a clock measured."""
    flat: dict[str, Any] = {}

    def add(value: Any, path: str) -> None:
        if isinstance(value, dict | list | tuple):
            for key, each in value.items() if isinstance(value, dict) else enumerate(value):
                if key not in CLOCKS:
                    add(each, f"{path}/{key}")
        else:
            flat[path] = value

    add(read(run_folder.checkpoints / "last.ckpt"), "")
    return flat


def assert_same(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert one.keys() == other.keys()
    for path, value in one.items():
        if isinstance(value, torch.Tensor):
            assert_close(value, other[path], rtol=0, atol=0, msg=path)
        else:
            assert value == other[path], path


def both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *overrides: str) -> tuple[RunFolder, RunFolder]:
    """The run with quiet steps and the one without."""
    own = run(tmp_path / "own", *STEPS, *overrides)
    with monkeypatch.context() as without:
        without.setattr(LoopCallback, "quiet_steps", lambda _: 0)
        return own, run(tmp_path / "lightning", *STEPS, *overrides)


@pytest.mark.sampled(100)
@pytest.mark.parametrize(
    "overrides",
    [
        (),
        ("optimizer=muon", "trainer.gradient_clip=0.1"),
        ("optimizer=schedule_free", "trainer.gradient_clip=null"),
        ("channel_mixer=experts", "channel_mixer.bias_rate=0.01"),
        ("trainer.precision=bf16-mixed",),
        ("trainer.num_workers=1",),
    ],
    ids=["adamw", "muon", "schedule_free", "experts", "bf16", "workers"],
)
def test_every_bit_is_that_of_lightnings_loop(
    overrides: tuple[str, ...], by_lightning: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights, states of optimizers, counters of the trainer, metrics."""
    own, lightning = both(tmp_path, monkeypatch, *overrides)
    assert by_lightning == [1, 10, 11, 20, 21, 22, *range(1, 23)]
    assert_same(whole(own), whole(lightning))
    clocks = {"seconds"}
    kept = [[{k: v for k, v in row.items() if k not in clocks} for row in rows(each)] for each in (own, lightning)]
    assert kept[0] == kept[1]


def test_random_numbers_that_are_not_those_of_the_step_are_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted: the stream of dropout goes on from step to step."""
    original = LoopCallback.on_train_batch_start

    def once(self: LoopCallback, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
        if self.state.step in (0, 10):
            original(self, trainer, module, batch, batch_idx)

    with monkeypatch.context() as planted:
        planted.setattr(LoopCallback, "on_train_batch_start", once)
        own = run(tmp_path / "own", *STEPS)
    monkeypatch.setattr(LoopCallback, "quiet_steps", lambda _: 0)
    with pytest.raises(AssertionError):
        assert_same(whole(own), whole(run(tmp_path / "lightning", *STEPS)))


@pytest.mark.parametrize(
    "overrides",
    [("trainer.accumulate=2",), ("callbacks=ema",), ("trainer.log_every=1",), ("trainer.profile=true",)],
    ids=["micro_batches", "a_callback_at_each_step", "logged_each_step", "profiled"],
)
def test_lightning_takes_each_step_where_something_listens(
    overrides: tuple[str, ...], by_lightning: list[int], tmp_path: Path
) -> None:
    run(tmp_path, *STEPS, *overrides)
    assert {*by_lightning} == {*range(1, 23)}


def test_a_signal_saves_the_quiet_step_it_strikes_in(
    tmp_path: Path, by_lightning: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run goes on from there to the bits of one that no signal reached."""
    assert killed_at(14, tmp_path / "struck", *STEPS, signum=signal.SIGTERM) == 143
    saved = read(next((tmp_path / "struck").rglob("last.ckpt")))
    assert saved["global_step"] == 15
    struck = run(tmp_path / "struck", *STEPS)
    assert by_lightning[0] == 16, "resumed after the step in which the signal came"
    assert_same(whole(struck), whole(run(tmp_path / "whole", *STEPS)))


def test_an_error_names_the_quiet_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = Learner.loss_and_auxiliary

    def failing(self: Learner, *arguments: Any, **settings: Any) -> Any:
        if self.step.number == 14:
            raise ValueError("planted")
        return original(self, *arguments, **settings)

    monkeypatch.setattr(Learner, "loss_and_auxiliary", failing)
    reason = str(run(tmp_path, *STEPS, code=1).status.reason)
    assert every(part in reason for part in ("planted", "after step 14"))


def test_a_loss_that_is_not_finite_ends_the_run_in_its_quiet_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = Learner.loss_and_auxiliary

    def spoilt(self: Learner, *arguments: Any, **settings: Any) -> Any:
        loss, auxiliary = original(self, *arguments, **settings)
        return loss * torch.nan if self.step.number == 14 else loss, auxiliary

    monkeypatch.setattr(Learner, "loss_and_auxiliary", spoilt)
    assert "the loss is nan at step 15" in str(run(tmp_path, *STEPS, code=1).status.reason)
