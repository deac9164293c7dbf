"""How long a run is, and on which devices."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from blockyard.config.build import Components
from blockyard.config.compose import compose
from blockyard.engine.context_parallel import model_problems
from blockyard.engine.trainer import TrainerPlan
from blockyard.errors import UserError
from blockyard.position.xpos import XPos
from tests.support.engine_runs import config, run
from tests.support.helpers import context

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


def test_half_precision_needs_a_gpu() -> None:
    """Lightning would train in bfloat16 in its place."""
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    with pytest.raises(UserError, match=r"trainer\.precision=16-mixed needs a GPU, and this machine has none"):
        TrainerPlan(precision="16-mixed", max_steps=1).device_type()


def test_half_precision_does_not_hold_long_keys_of_xpos() -> None:
    plan = TrainerPlan(precision="16-mixed", max_steps=1)
    short, long = (XPos(context(dim=32, grid=(tokens,), causal=True)) for tokens in (512, 8192))
    assert not [problem for problem in plan.model_problems(short) if "xpos" in problem]
    assert [problem for problem in plan.model_problems(long) if "use position.span=" in problem]


def test_parts_of_a_sequence_have_positions_of_one_kind() -> None:
    for rescale, problems in ((1.0, 0), (2.0, 1)):
        composed = compose(["experiment=gpt_code_small", f"position.rescale={rescale}"])
        assert not composed.issues, composed.issues
        model = Components(composed.config).meta_model()
        assert sum("other positions" in text for text in model_problems(model, 2)) == problems
