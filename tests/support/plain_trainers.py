"""A Trainer of Lightning that trains as long as a run, and comparisons of weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch

from blockyard.engine.plain_trainer import TrainerModule
from tests.support.every import every

QUIET: dict[str, Any] = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}


def trainer(module: TrainerModule, folder: Path, **arguments: Any) -> pl.Trainer:
    """A Trainer that trains as long as a run, without what prints."""
    settings = {**module.trainer_arguments(), **QUIET, "enable_checkpointing": False, **arguments}
    return pl.Trainer(default_root_dir=folder, **settings)


def weights(module: pl.LightningModule) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in module.state_dict().items()}


def same(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    return left.keys() == right.keys() and every(value.equal(right[name]) for name, value in left.items())
