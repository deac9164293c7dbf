"""LightningCLI builds the module and the data module from overrides, and fits what a Trainer of one's own fits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch

import blockyard
from blockyard.engine.plain_trainer import TrainerModule
from blockyard.engine.plain_trainer_data import TrainerData
from tests.support.tiny import TEXT

pytest.importorskip("jsonargparse")

OVERRIDES = [*TEXT, "tokenizer=char"]
QUIET: dict[str, Any] = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
SHORT: dict[str, Any] = {**QUIET, "max_steps": 3, "limit_val_batches": 1, "enable_checkpointing": False}


# As docs/ecosystem.md writes them.
def model(overrides: list[str]) -> TrainerModule:
    return blockyard.lightning(*overrides)[0]


def data(overrides: list[str]) -> TrainerData:
    return blockyard.lightning(*overrides)[1]


def command_line(options: dict[str, Any]) -> list[str]:
    return [f"--trainer.{key}={json.dumps(value)}" for key, value in options.items()]


@pytest.mark.sampled(100)
@pytest.mark.parametrize("by_file", [False, True], ids=["arguments", "config"])
def test_the_command_line_of_lightning_fits_the_same_weights(by_file: bool, tmp_path: Path) -> None:
    """The module and the data module are of two calls, and each learns the same characters."""
    from pytorch_lightning.cli import LightningCLI

    if by_file:
        file = tmp_path / "config.yaml"
        both = {"overrides": OVERRIDES}
        file.write_text(json.dumps({"trainer": SHORT, "model": both, "data": both}))
        args = ["fit", f"--config={file}"]
    else:
        text = json.dumps(OVERRIDES)
        args = ["fit", f"--model.overrides={text}", f"--data.overrides={text}", *command_line(SHORT)]
    cli = LightningCLI(model, data, args=args, save_config_callback=None, seed_everything_default=False)
    assert cli.trainer.global_step == 3
    module, datamodule = blockyard.lightning(*OVERRIDES)
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    pl.Trainer(**SHORT).fit(module, datamodule=datamodule)
    fitted = module.state_dict()
    for name, tensor in cli.model.state_dict().items():
        assert torch.equal(tensor, fitted[name]), name
    assert any(not torch.equal(before[name], tensor) for name, tensor in fitted.items())
