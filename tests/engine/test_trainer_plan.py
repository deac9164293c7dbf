"""How long a run is, and on which devices."""

from __future__ import annotations

from pathlib import Path

import pytest

from blockyard.engine.trainer import TrainerPlan
from blockyard.errors import UserError
from tests.support.engine_runs import config, run

STILL = ("token_mixer.dropout=0.0", "data.shift=0", "trainer.max_steps=12")


def test_a_trainer_without_an_end_is_refused() -> None:
    with pytest.raises(ValueError, match=r"trainer.max_steps and trainer.max_epochs are both null"):
        TrainerPlan(max_epochs=None)


def test_more_gpus_than_there_are_is_for_the_user() -> None:
    with pytest.raises(UserError, match=r"trainer.accelerator=gpu: this machine has \d+ GPUs"):
        TrainerPlan(accelerator="gpu", devices=999).device_type()


def test_the_shorter_of_steps_and_epochs_counts(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert TrainerPlan(max_steps=30, max_epochs=2).total_steps(20) == 30
    assert TrainerPlan(max_steps=50, max_epochs=2).total_steps(20) == 40
    assert TrainerPlan(max_steps=50, max_epochs=None).total_steps(20) == 50
    assert TrainerPlan(max_epochs=2).total_steps(20) == 40
    assert run(tmp_path, *STILL, "trainer.limit_train=5", "trainer.max_epochs=1").status.step == 5
    assert "trainer.max_epochs=1 ends this run after 5 steps" in caplog.text


@pytest.mark.parametrize("choice", ["fast", "overfit", "profiler"])
def test_a_debug_setting_makes_all_its_steps(tmp_path: Path, choice: str) -> None:
    trainer = config(tmp_path, f"debug={choice}", "trainer.max_steps=null", "trainer.max_epochs=1")[0]["trainer"]
    assert trainer["max_epochs"] == 1
    from blockyard.config.compose import compose

    assert compose([f"debug={choice}"]).config["trainer"]["max_epochs"] is None
