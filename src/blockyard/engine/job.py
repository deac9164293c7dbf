"""One run in this process: what `setup.prepare` built, and its training."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.utilities.exceptions import MisconfigurationException
from torch.utils.data import DataLoader

from blockyard.config import build
from blockyard.contracts import Batch, Splits
from blockyard.engine.callbacks.base import RunState
from blockyard.engine.callbacks.kernels import KernelRecord
from blockyard.engine.callbacks.loop import LoopCallback
from blockyard.engine.evaluator import Evaluator
from blockyard.engine.lightning.hooks import EpochBoundary
from blockyard.engine.lightning.metrics_bridge import MetricsBridge
from blockyard.engine.loader import Layout
from blockyard.engine.module import Learner
from blockyard.engine.system.interrupts import Interrupts, Paused
from blockyard.engine.system.processes import ALLOW, join_processes
from blockyard.engine.trainer import TrainerPlan
from blockyard.errors import UserError
from blockyard.runs.checkpoint import AtomicCheckpointIO
from blockyard.runs.folder import RunFolder


@dataclass
class Job:
    """The parts of a run in this process. `setup.prepare` builds it, `fit` trains, `summary.summarize` tests.

    checkpoint: to resume from, or None; start_step: the steps it has done
    dead_peer: how another process of the run ended, where one failed
    """

    folder: RunFolder
    components: build.Components
    options: TrainerPlan
    splits: Splits
    layout: Layout
    loader: DataLoader[Batch]
    loop: LoopCallback
    evaluator: Evaluator
    kernels: KernelRecord
    device: torch.device
    precision: dict[str, Any]
    checkpoint: Path | None
    start_step: int
    interrupts: Interrupts
    dead_peer: str | None = None

    @property
    def learner(self) -> Learner:
        """The LightningModule."""
        return self.loop.state.learner

    @property
    def state(self) -> RunState:
        """The run as callbacks see it."""
        return self.loop.state

    def fit(self) -> None:
        """Train to the end, or until interrupted. Afterwards this process is alone."""
        os.environ[ALLOW] = json.dumps(list(self.folder.config.get("allow") or []))
        trainer = None
        failed = True
        try:
            trainer = self._trainer()
            trainer.fit(self.learner, self.loader, ckpt_path=self.checkpoint)
            failed = False
        except (MisconfigurationException, ModuleNotFoundError) as error:
            # A callback that cannot work with this run, or not without another package.
            if self.state.step == self.state.start_step and self.loop.lightning_callbacks:
                raise UserError(f"a Lightning callback refuses: {error}") from error
            raise
        finally:
            if trainer is not None:
                self.dead_peer = join_processes(trainer, failed=failed)
        self.interrupts.check()
        if self.state.pause:
            raise Paused(self.state.pause)

    def _trainer(self) -> pl.Trainer:
        loop, state = self.loop, self.state
        callbacks: list[pl.Callback] = [loop]
        epochs, logger = -1, None
        if loop.lightning_callbacks:
            # Ours go around the others: epochs begin before them, and a step is logged and saved after them.
            callbacks = [EpochBoundary(state, loop.lightning_callbacks), *loop.lightning_callbacks, loop]
            epochs = -(-state.total // state.steps_per_epoch)
            logger = MetricsBridge(state, loop.log_metrics)
        return self.options.build(
            total=state.total,
            epochs=epochs,
            precision=self.precision["precision"],
            device_type=self.device.type,
            callbacks=callbacks,
            logger=logger,
            io=AtomicCheckpointIO(identity=self.folder.identity, seed=self.folder.seed),
            root=self.folder.path,
        )
