"""One run in this process: what `setup.prepare` built, and its training."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.utilities.exceptions import MisconfigurationException

from blockyard.config import build
from blockyard.contracts import Splits
from blockyard.engine.callbacks.base import RunState
from blockyard.engine.callbacks.kernels import KernelRecord
from blockyard.engine.callbacks.loop import LoopCallback
from blockyard.engine.ending import Unfinished
from blockyard.engine.evaluator import Evaluator
from blockyard.engine.lightning.hooks import EpochBoundary, MetricsBridge, forbid_stop_iteration
from blockyard.engine.lightning.trainer import lightning_trainer
from blockyard.engine.loader import Layout, TrainingLoader
from blockyard.engine.module import Learner
from blockyard.engine.peers import Peers
from blockyard.engine.system.interrupts import Interrupts, Paused
from blockyard.engine.system.processes import ALLOW, RunLauncher, join_processes
from blockyard.engine.trainer import TrainerPlan
from blockyard.errors import UserError
from blockyard.runs.checkpoint_io import AtomicCheckpointIO
from blockyard.runs.folder import RunFolder


@dataclass
class Job:
    """The parts of a run in this process. `setup.prepare` builds it, `fit` trains, `summary.summarize` tests.

    checkpoint: to resume from, or None; start_step: the steps it has done
    endings: exit codes of other processes of the run that this one started and that failed, by rank
    abandon: called with such exit codes, in a thread, where this process does not notice; does not return
    trained: whether training ended by itself, rather than by an error
    """

    folder: RunFolder
    components: build.Components
    options: TrainerPlan
    splits: Splits
    layout: Layout
    loader: TrainingLoader
    loop: LoopCallback
    evaluator: Evaluator
    kernels: KernelRecord
    device: torch.device
    precision: dict[str, Any]
    checkpoint: Path | None
    start_step: int
    interrupts: Interrupts
    endings: dict[int, int] = field(default_factory=dict)
    abandon: Callable[[dict[int, int]], None] | None = None
    trained: bool = False

    @property
    def learner(self) -> Learner:
        """The LightningModule."""
        return self.loop.state.learner

    @property
    def state(self) -> RunState:
        """The run as callbacks see it."""
        return self.loop.state

    @property
    def peers(self) -> Peers:
        """The other processes of the run."""
        return Peers(self.folder.path, self.layout.rank, self.layout.world, self.options.timeout, self.endings)

    def fit(self) -> None:
        """Train to the end, or until interrupted. Afterwards this process is alone.

        Raises Interrupted or Paused where the run was left before its end, Unfinished where nothing says why.
        """
        os.environ[ALLOW] = json.dumps(list(self.folder.config.get("allow") or []))
        trainer = None
        try:
            trainer = self._trainer()
            if isinstance(trainer.strategy.launcher, RunLauncher):
                trainer.strategy.launcher.abandon = self.abandon
            trainer.fit(self.learner, self.loader, ckpt_path=self.checkpoint)
            self.trained = True
        except (MisconfigurationException, ModuleNotFoundError) as error:
            # A callback that cannot work with this run, or not without another package.
            if self.state.step == self.state.start_step and self.loop.callbacks.lightning:
                raise UserError(f"a Lightning callback refuses: {error}") from error
            raise
        except (RuntimeError, OSError, EOFError) as error:
            if stopped := self.loader.stopped():
                raise TimeoutError(stopped) from error
            raise
        finally:
            if trainer is not None:
                self.endings |= join_processes(trainer, failed=not self.trained)
            self.loader.close()
        self.check_finished()

    def check_finished(self) -> None:
        """Return if the run is over; the only place that decides it, in every process of a run.

        Raises Interrupted after a signal that reached any of the processes, Paused where a callback left the run, and
        Unfinished where steps are missing and nothing says why.
        """
        state = self.state
        self.interrupts.check()
        if state.pause:
            raise Paused(state.pause)
        if not state.finished:
            raise Unfinished(f"training ended after step {state.step} of {state.total}, and nothing says why")

    def _trainer(self) -> pl.Trainer:
        loop, state = self.loop, self.state
        callbacks: list[pl.Callback] = [loop]
        epochs, logger = -1, None
        if lightning := loop.callbacks.lightning:
            # Ours go around the others: epochs begin before them, and a step is logged and saved after them.
            callbacks = [EpochBoundary(state, lightning), *lightning, loop]
            epochs = -(-state.total // state.steps_per_epoch)
            logger = MetricsBridge(state, loop.actions.log_metrics)
        trainer = lightning_trainer(
            self.options,
            total=state.total,
            epochs=epochs,
            precision=self.precision["precision"],
            device_type=self.device.type,
            callbacks=callbacks,
            logger=logger,
            io=AtomicCheckpointIO(identity=self.folder.identity, seed=self.folder.seed),
            root=self.folder.path,
        )
        # Lightning's handlers let one process talk to the others in the middle of a step, which hangs or breaks the
        # connection, and save and requeue a SLURM job by themselves; `Interrupts` handles the signals.
        trainer._signal_connector.register_signal_handlers = _do_nothing  # type: ignore[method-assign]
        forbid_stop_iteration(trainer)
        trainer.fit_loop.run = partial(self._run_loop, trainer, trainer.fit_loop.run)  # type: ignore[method-assign]
        return trainer

    def _run_loop(self, trainer: pl.Trainer, run: Callable[[], None]) -> None:
        """Lightning's loop, and what it leaves out where a resumed run has no step left."""
        run()
        self.loop.evaluate_end(trainer, self.learner)


def _do_nothing() -> None:
    pass
