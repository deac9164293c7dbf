"""One run in this process: the parts that `setup.prepare` built, and its training."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pytorch_lightning as pl
import torch
from pytorch_lightning.loggers.logger import Logger
from pytorch_lightning.strategies import DDPStrategy, ModelParallelStrategy
from pytorch_lightning.utilities.exceptions import MisconfigurationException

from blockyard.config import build
from blockyard.contracts import Splits
from blockyard.engine.callbacks.base import RunState
from blockyard.engine.callbacks.lightning_hooks import EpochBoundary, MetricsBridge
from blockyard.engine.callbacks.loop import LoopCallback
from blockyard.engine.evaluator import Evaluator
from blockyard.engine.faults.ending import UnfinishedError
from blockyard.engine.faults.interrupts import Interrupts, Paused
from blockyard.engine.faults.peers import Peers
from blockyard.engine.kernel_record import KernelRecord
from blockyard.engine.lightning.patches import patch_trainer, run_after_loop
from blockyard.engine.lightning.processes import ALLOW, ChildProcesses
from blockyard.engine.loader import Layout, TrainingLoader
from blockyard.engine.module import Learner
from blockyard.engine.setup_model import PrecisionRecord
from blockyard.engine.step_budget import StepBudget
from blockyard.engine.trainer import TrainerPlan
from blockyard.errors import UserError
from blockyard.runs.checkpoint_io import AtomicCheckpointIO
from blockyard.runs.folder import RunFolder

_PRECISIONS: dict[str, Literal["32-true", "bf16-mixed", "16-mixed"]] = {
    "32": "32-true",
    "bf16-mixed": "bf16-mixed",
    "16-mixed": "16-mixed",
}


@dataclass
class Job:
    """The parts of a run in this process. `setup.prepare` builds it, `fit` trains, `summary.summarize` tests.

    budget: what ends its training
    checkpoint: to resume from, or None; start_step: the steps it has done
    endings: exit codes of other processes of the run that this one started and that failed, by rank
    abandon: called with such exit codes, in a thread, where this process does not notice; does not return
    trained: whether training ended by itself, rather than by an error
    """

    folder: RunFolder
    components: build.Components
    options: TrainerPlan
    budget: StepBudget
    splits: Splits
    layout: Layout
    loader: TrainingLoader
    loop: LoopCallback
    evaluator: Evaluator
    kernels: KernelRecord
    device: torch.device
    precision: PrecisionRecord
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

        Raises Interrupted or Paused where the run was left before its end, UnfinishedError where nothing says why.
        """
        os.environ[ALLOW] = json.dumps(list(self.folder.config.get("allow") or []))
        children = None
        try:
            with self._explained_errors():
                if self.options.distributed:
                    children = ChildProcesses(self.folder.path, self.options.devices, self.options.world)
                trainer = self._trainer()
                if children is not None:
                    children.start(self.abandon)
                trainer.fit(self.learner, self.loader, ckpt_path=self.checkpoint)
                self.trained = True
        finally:
            if children is not None:
                self.endings |= children.join(failed=not self.trained)
            self.loader.close()
        self.check_finished()

    def check_finished(self) -> None:
        """Return if the run is over; the only place that decides it, in every process of a run.

        Raises Interrupted after a signal that reached any of the processes, Paused where a callback left the run, and
        UnfinishedError where steps are missing and nothing says why.
        """
        state = self.state
        self.interrupts.check()
        if state.pause:
            raise Paused(state.pause)
        if not state.finished:
            raise UnfinishedError(f"training ended after step {state.step} of {state.total}, and nothing says why")

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
        patch_trainer(trainer)
        run_after_loop(trainer, partial(self.loop.evaluate_end, trainer, self.learner))
        return trainer

    @contextlib.contextmanager
    def _explained_errors(self) -> Iterator[None]:
        """Replace errors of training that do not name their cause."""
        try:
            yield
        except (MisconfigurationException, ModuleNotFoundError) as error:
            # A callback that cannot work with this run, or not without another package.
            if self.state.step == self.state.start_step and self.loop.callbacks.lightning:
                raise UserError(f"a Lightning callback refuses: {error}") from error
            raise
        except (RuntimeError, OSError, EOFError) as error:
            if stopped := self.loader.stopped():
                raise TimeoutError(stopped) from error
            raise


def lightning_trainer(
    plan: TrainerPlan,
    *,
    total: int,
    epochs: int,
    precision: str,
    device_type: str,
    callbacks: list[pl.Callback],
    logger: Logger | None,
    io: Any,
    root: Path,
) -> pl.Trainer:
    """Return Lightning's trainer. It draws, saves and validates nothing itself: `LoopCallback` does.

    epochs: -1, or the number of epochs if Lightning callbacks need it
    logger: for the values of Lightning callbacks, or None
    """
    profiler = None
    if plan.profile:
        from pytorch_lightning.profilers import SimpleProfiler

        profiler = SimpleProfiler(dirpath=root, filename="profile")
    # `LoopCallback` logs, evaluates, saves and shows progress. The loader knows the share of each process, so that no
    # sampler is wrapped, and `Interrupts` and the random streams take the place of Lightning's.
    return pl.Trainer(
        accelerator="gpu" if device_type == "cuda" else "cpu",
        devices=plan.devices,
        num_nodes=plan.num_nodes,
        strategy=_strategy(plan),
        precision=_PRECISIONS[precision],
        max_steps=total,
        max_epochs=epochs,
        accumulate_grad_batches=plan.accumulate,
        callbacks=callbacks,
        plugins=[io],
        default_root_dir=root,
        logger=logger or False,
        log_every_n_steps=plan.log_every,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
        limit_val_batches=0,
        num_sanity_val_steps=0,
        deterministic=plan.deterministic or None,
        **{"profiler": profiler, **plan.extra},
    )


def _strategy(plan: TrainerPlan) -> Any:
    timeout = timedelta(seconds=plan.timeout)
    if plan.sharded:
        # FSDP2: every process holds a part of each weight; checkpoints are whole.
        return ModelParallelStrategy(
            data_parallel_size=plan.world,
            tensor_parallel_size=1,
            save_distributed_checkpoint=False,
            timeout=timeout,
        )
    if plan.distributed:
        return DDPStrategy(gradient_as_bucket_view=True, timeout=timeout)
    return "auto"
