"""The module for a `pytorch_lightning.Trainer` of the user's own; `plain_trainer_data` has its data module.

A run has a loop of its own (`callbacks.loop`); it resumes to the bit and survives a kill. Whoever wants Lightning's
loop with Lightning's callbacks, loggers and strategies takes these two instead: `blockyard.lightning` builds them.
Model, data order, random streams and metrics equal a run's, so that on one process `Trainer.fit` ends with the
weights of `blockyard train`, to the bit, and `Trainer.test` prints its metrics.

Lightning decides here, and a run decides itself there: how long the training is, when it is evaluated and saved,
whether it goes on after values that are not finite, and the precision.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, Self

import pytorch_lightning as pl
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler

from blockyard.config.build import Components
from blockyard.config.check import check
from blockyard.config.compose import Composed
from blockyard.config.tree import Node
from blockyard.contracts import Batch
from blockyard.engine.callbacks.base import RunCallback, StateDict
from blockyard.engine.callbacks.checkpoint import Checkpoint
from blockyard.engine.faults.causality_probe import check_foreign
from blockyard.engine.faults.small_maps import guard_small_maps
from blockyard.engine.module import Learner, LearnerSettings
from blockyard.engine.plain_trainer_data import TrainerData, seed_of
from blockyard.engine.system.randomness import reseed
from blockyard.engine.trainer import TrainerPlan
from blockyard.errors import UserError
from blockyard.evaluate.loop import PassMetrics
from blockyard.runs.checkpoint import BadCheckpointError, load_content, load_weights
from blockyard.runs.folder import CONFIG
from blockyard.runs.load import load
from blockyard.weights.parts import NEVER
from blockyard.weights.teacher import Teacher, load_teacher, prepare_tokenizers

log = logging.getLogger("blockyard")


class TrainerModule(Learner):
    """A model, its objective, optimizer and schedule as a complete LightningModule.

    It logs `train/loss` at every step, and `val/NAME` and `test/NAME` for every metric, named as in a run's metrics.
    `lr` may be set, as `LearningRateFinder` does. A checkpoint of a Trainer has the config and the fitted tokenizer,
    so that `load_from_checkpoint` needs nothing else; it takes the folder of a run as well.
    """

    def __init__(self, components: Components, model: nn.Module, teacher: Teacher | None = None) -> None:
        plan: TrainerPlan = components.node("trainer")
        settings = LearnerSettings(
            total=1, clip=plan.gradient_clip, compile=plan.compile, checkpoint=plan.checkpoint_blocks
        )
        super().__init__(model, components.objective, components.optimizer, components.schedule, settings, teacher)
        self.components, self.plan = components, plan
        self.save_hyperparameters({"config": components.config})
        self._metrics: PassMetrics | None = None

    @property
    def lr(self) -> float:
        """The learning rate at the schedule's factor 1. Groups of another rate keep their share of it."""
        return float(self.optimizer_builder.lr)  # type: ignore[attr-defined]

    @lr.setter
    def lr(self, value: float) -> None:
        share = value / self.lr
        self.optimizer_builder.lr = value  # type: ignore[attr-defined]
        for optimizer in self._optimizers():
            for group in optimizer.param_groups:
                group["initial_lr"] *= share

    def trainer_arguments(self) -> dict[str, Any]:
        """Return the arguments that make a `pytorch_lightning.Trainer` train as long and as exactly as a run."""
        plan = self.plan
        device = plan.device_type()
        on_gpu = device == "cuda"
        precision = str(plan.precision)
        if precision == "auto":
            precision = "bf16-mixed" if on_gpu else "32"
        validation: dict[str, Any] = {}
        if plan.eval_every:
            # Lightning counts batches, and a run steps; without the second option it starts anew in each epoch.
            validation = {"val_check_interval": plan.eval_every * plan.accumulate, "check_val_every_n_epoch": None}
        return {
            "accelerator": "gpu" if on_gpu else "cpu",
            "devices": plan.devices,
            "num_nodes": plan.num_nodes,
            "strategy": plan.strategy,
            "precision": "32-true" if precision == "32" else precision,
            "max_steps": -1 if plan.max_steps is None else plan.max_steps,
            "max_epochs": -1 if plan.max_epochs is None else plan.max_epochs,
            "accumulate_grad_batches": plan.accumulate,
            "log_every_n_steps": plan.log_every,
            "deterministic": plan.deterministic,
            **validation,
            **plan.extra,
        }

    # -- training ----------------------------------------------------------------------------------

    def setup(self, stage: str) -> None:
        """Adapt to the precision and the strategy of the Trainer; load the teacher where only the config names it.

        Raises UserError where the teacher is not there any more, or is another one.
        """
        if stage == "fit" and self.teacher is None:  # of a module from a checkpoint, which has no teacher
            self.teacher = load_teacher(self.components)
        half = self.trainer.precision == "16-mixed"
        # fp16 needs a GPU; bf16 is computed wrongly on a CPU for some small maps.
        if "16" in str(self.trainer.precision) and not half:
            guard_small_maps(self.model)
            if self.teacher is not None:
                guard_small_maps(self.teacher.model)
        alone = isinstance(self.trainer.strategy, pl.strategies.SingleDeviceStrategy | pl.strategies.DDPStrategy)
        self.defer_logits = self.objective.takes_projection and self.teacher is None and alone and not half

    def configure_callbacks(self) -> list[pl.Callback]:
        """The Lightning callbacks of the config."""
        named = self.components.node("callbacks")
        return [callback for callback in named.values() if isinstance(callback, pl.Callback)]

    def configure_optimizers(self) -> Any:
        """The optimizer of a run, and its schedule over the steps of the Trainer.

        Raises UserError if the Trainer has no end: a schedule depends on it.
        """
        total = steps_of(self.trainer)
        for remark in self.schedule.remarks(total):
            log.warning("%s", remark)
        init = self.components.init
        thaw = NEVER if init is None else init.thaw(self.model, total)
        # As fp16 in a run: gradients are unscaled before they are clipped.
        self.settings = replace(self.settings, total=total, thaw=thaw, half=self.trainer.precision == "16-mixed")
        optimizer: Any = super().configure_optimizers()
        rates = ScheduleRates(optimizer, self)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": rates, "interval": "step"}}

    def on_train_start(self) -> None:
        """Refuse loaders for another number of processes; put back the weights that are trained."""
        layout = getattr(getattr(self.trainer.train_dataloader, "dataset", None), "layout", None)
        if layout is not None and layout.world != self.trainer.world_size:
            raise UserError(
                f"the loader is for {layout.world} processes and the Trainer has {self.trainer.world_size}; "
                "pass the data module itself: fit(module, datamodule=data)"
            )
        self.use_trained_weights(self._optimizers())
        for config in self.trainer.lr_scheduler_configs:
            if isinstance(config.scheduler, ScheduleRates):
                config.scheduler.apply()

    def on_train_batch_start(self, batch: Batch, batch_idx: int) -> None:
        """Number the step, and set the random streams of this batch."""
        trainer = self.trainer
        self.number_step(trainer.global_step)
        # The number of the batch over all epochs, as a run counts: the stream is then the same.
        number = trainer.current_epoch * int(trainer.num_training_batches) + batch_idx
        reseed(self.device, seed_of(self.components), "train", number, trainer.global_rank)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """The loss of a prepared batch, logged as train/loss; see `Learner.training_step`."""
        loss = super().training_step(batch, batch_idx)
        mean = self.losses.take()
        assert mean is not None
        self.log("train/loss", mean, prog_bar=True, batch_size=len(batch))
        auxiliary = self.auxiliaries.take()
        if auxiliary is not None:
            self.log("train/auxiliary", auxiliary, batch_size=len(batch))
        return loss

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        """Nothing: whether training goes on after values that are not finite, callbacks of the Trainer decide."""

    def configure_gradient_clipping(
        self, optimizer: Any, gradient_clip_val: float | None = None, gradient_clip_algorithm: str | None = None
    ) -> None:
        """Clip as the Trainer says, or else as the config does."""
        if gradient_clip_val is not None:
            self.clip_gradients(optimizer, gradient_clip_val, gradient_clip_algorithm)
        elif self.settings.clip is not None:
            self.measure_gradients(optimizer)
            super().configure_gradient_clipping(optimizer)

    # -- evaluation --------------------------------------------------------------------------------

    def on_validation_start(self) -> None:
        """Put the weights that are evaluated into the model, and begin the metrics."""
        self.use_evaluated_weights(self._optimizers())
        self._begin(self.trainer.val_dataloaders)

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Count the predictions of a prepared batch."""
        self._count(batch)

    def on_validation_epoch_end(self) -> None:
        """Log val/NAME for each metric."""
        self._log("val")

    def on_validation_end(self) -> None:
        """Put the weights that are trained back, after the callbacks have saved the others."""
        if self.trainer.state.fn == "fit":
            self.use_trained_weights(self._optimizers())

    def on_fit_end(self) -> None:
        """Leave the weights that are evaluated in the model, for `test`, `predict` and later files."""
        self.use_evaluated_weights(self._optimizers())

    def on_test_start(self) -> None:
        """Begin the metrics."""
        self._begin(self.trainer.test_dataloaders)

    def test_step(self, batch: Batch, batch_idx: int) -> None:
        """Count the predictions of a prepared batch."""
        self._count(batch)

    def on_test_epoch_end(self) -> None:
        """Log test/NAME for each metric."""
        self._log("test")

    def predict_step(self, batch: Batch, batch_idx: int) -> Predicted:
        """The outputs of the model, with the index of each sample."""
        assert batch.sample is not None
        return Predicted(batch.sample, self.model(batch))

    def _begin(self, loader: Any) -> None:
        slices = self.components.data.spec.slices
        split = getattr(getattr(loader, "dataset", None), "split", None)
        shared = self.trainer.world_size > 1
        self._metrics = PassMetrics(self.objective, split, slices, self.device, shared=shared)

    def _count(self, batch: Batch) -> None:
        assert self._metrics is not None
        self._metrics.update(self.model(batch), batch)

    def _log(self, part: str) -> None:
        assert self._metrics is not None
        for name, value in self._metrics.compute().items():
            # As a float32 tensor a metric that is computed in float64 would lose digits.
            self.log(f"{part}/{name}", torch.tensor(value, dtype=torch.float64, device=self.device))
        self._metrics = None

    def _optimizers(self) -> list[Any]:
        if self._trainer is None:
            return []
        return list(self._trainer.optimizers)

    # -- checkpoints -------------------------------------------------------------------------------

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keep the states of the tokenizers."""
        states = {name: tokenizer.state() for name, tokenizer in self.components.tokenizers.items()}
        checkpoint.update({"source_tokenizer": None, **states})

    @classmethod
    def load_from_checkpoint(  # type: ignore[override]
        cls,
        checkpoint_path: str | os.PathLike[str],
        *,
        which: str = "best",
        outputs: str | os.PathLike[str] = "outputs",
        allow: tuple[str, ...] | list[str] = (),
    ) -> Self:
        """The module of a run, with its weights, or of a checkpoint that a Trainer saved; in evaluation mode.

        checkpoint_path: a run's folder, name or id, or `last`; or a .ckpt file, also one of a run
        which, outputs, allow: as in `blockyard.load`
        Raises UserError for a missing or damaged one, and where it uses packages that `allow` does not name.
        """
        path = Path(checkpoint_path)
        if path.suffix != ".ckpt":
            loaded = load(checkpoint_path, which=which, outputs=outputs, allow=allow)
            return cls(loaded.components, loaded.model)
        if (path.parent.parent / CONFIG).is_file():
            loaded = load(path.parent.parent, which=path.stem, allow=allow)
            return cls(loaded.components, loaded.model)
        return cls._of_trainer(path, allow)

    @classmethod
    def _of_trainer(cls, path: Path, allow: tuple[str, ...] | list[str]) -> Self:
        if not path.is_file():
            raise UserError(f"{path} is neither a checkpoint of a Trainer nor a run")
        content = load_content(path, mmap=False)
        config = (content.get("hyper_parameters") or {}).get("config")
        if not isinstance(config, dict):
            raise BadCheckpointError(path, "it has no config of blockyard")
        components = checked_components(config, allow, path)
        names = ("tokenizer", "source_tokenizer")
        for name in names:
            if state := content.get(name):
                getattr(components, name).load_state(state)
        model = components.model(seed_of(components))
        load_weights(model, content, path)
        return cls(components, model.eval())


def unserved(components: Components) -> Iterator[str]:
    """Yield the options of a config that change a run and would change nothing here, one sentence each."""
    plan: TrainerPlan = components.node("trainer")
    if plan.strategy in ("fsdp", "context"):
        yield f"trainer.strategy={plan.strategy} is a strategy of runs; leave it out and give the Trainer a strategy"
    if plan.attention != "auto":
        yield f"trainer.attention={plan.attention} is set for the process of a run; use torch.nn.attention.sdpa_kernel"
    if components.data.spec.mixed:
        yield "data=mixture says what each step of a run takes, by the number of the step; train with `blockyard train`"
    if plan.profile:
        yield "trainer.profile=true writes into the folder of a run; give the Trainer profiler='simple'"
    if plan.threads != "auto":
        yield f"trainer.threads={plan.threads} is set for the process of a run; use torch.set_num_threads"
    if plan.require_flash:
        yield "trainer.require_flash=true is checked by the loop of a run; leave it out"
    for name in ("extrapolate", "loops", "write", "inspect"):
        if getattr(plan, name):
            yield f"trainer.{name} is evaluated at the end of a run; leave it out"
    if plan.max_seconds is not None:
        yield f"trainer.max_seconds={plan.max_seconds:g} is counted by the loop of a run; give the Trainer max_time"
    if plan.max_flops is not None:
        yield f"trainer.max_flops={plan.max_flops:g} is counted before the first step of a run; use trainer.max_steps"
    if plan.peak_flops is not None:
        yield f"trainer.peak_flops={plan.peak_flops:g} is compared with the FLOPs of a run; leave it out"
    for name in ("first_batch", "first_context"):
        if getattr(plan, name) is not None:
            yield f"trainer.{name} is for the batches of a run, by the number of the step; leave it out"
    if components.init is not None and components.init.parent is not None:
        yield "init.parent continues a run, which `blockyard train resume=RUN` does; use init.from"
    for name, callback in components.node("callbacks").items():
        observes = isinstance(callback, Checkpoint) or "*" in getattr(callback, "incidental", ())
        if isinstance(callback, RunCallback) and not observes:
            yield f"callbacks.{name} is for the loop of a run; leave it out and give the Trainer a Lightning callback"


class ScheduleRates(LRScheduler):
    """A learner's schedule as a scheduler of torch: the learning rates of the step to come, from its number alone."""

    def __init__(self, optimizer: Any, learner: Learner) -> None:
        self._learner = learner
        super().__init__(optimizer)

    def step(self, epoch: int | None = None) -> None:
        """Go on to the next step."""
        self.last_epoch += 1
        self.apply()

    def apply(self) -> None:
        """Set the rates of the step to come; after the last step they stay."""
        self._learner.set_rates(self.last_epoch, self.optimizer)

    def get_last_lr(self) -> list[float | Tensor]:
        """Return the rate of each group."""
        return [group["lr"] for group in self.optimizer.param_groups]

    def state_dict(self) -> StateDict:
        """Return the number of the step to come; the rest follows from the config."""
        return {"last_epoch": self.last_epoch}


def steps_of(trainer: pl.Trainer) -> int:
    """Return the steps of a fit. Raises UserError if it has no end.

    `Trainer.estimated_stepping_batches` would make the loader, and Lightning would not restore its state then.
    """
    data = getattr(trainer, "datamodule", None)
    total: float = math.inf
    if isinstance(data, TrainerData):
        batches, limit = len(data.train_dataloader()), trainer.limit_train_batches
        if isinstance(limit, float):  # a share of the epoch
            batches = int(batches * limit)
        elif limit:
            batches = min(batches, limit)
        steps_per_epoch = -(-batches // trainer.accumulate_grad_batches)
        if trainer.max_steps >= 0:
            total = trainer.max_steps
        if trainer.max_epochs is not None and trainer.max_epochs >= 0:
            total = min(total, trainer.max_epochs * steps_per_epoch)
    else:
        total = trainer.estimated_stepping_batches
    if total == math.inf:
        raise UserError("a schedule needs the number of steps; give the Trainer max_steps or max_epochs")
    return int(total)


class Predicted(NamedTuple):
    """The result of `predict_step` for a batch.

    sample: (B,) int64, the indices in the test split; -1 for dummies at the end of some of several processes
    output: of the model, as `Objective.loss` takes it
    """

    sample: Tensor
    output: Any


def checked_components(config: Node, allow: tuple[str, ...] | list[str], path: Path) -> Components:
    """The components of a config from elsewhere. Raises UserError with every problem of it."""
    needed = [name for name in config.get("allow") or () if name not in allow]
    if needed:
        raise UserError(f"{path} uses components of {', '.join(map(str, needed))}; if you trust it, allow={needed}")
    config = config | {"allow": list(allow)}
    issues = check(Composed(config, {}), training=False, starts=False)
    if issues:
        raise UserError(f"{path} cannot be rebuilt: " + "; ".join(map(str, issues)))
    return Components(config)


def lightning_pair(config: Node) -> tuple[TrainerModule, TrainerData]:
    """The module and the data module of a checked config, with its data read and its first weights.

    Raises UserError for options that only the loop of a run has, all of them together, and for missing data.
    """
    components = Components(config)
    problems = list(unserved(components))
    if problems:
        raise UserError("\n  - ".join(problems))
    init = components.init
    if init is not None:
        init.prepare_tokenizers(components)
    if components.objective.distillation is not None:
        prepare_tokenizers(components)
    if not components.data.missing():
        components.data.prepare()
    splits = components.load()
    for remark in components.remarks(splits):
        log.warning("%s", remark)
    model = components.model(seed_of(components))
    if init is not None:
        init.load(components, model)
    check_foreign(components, model, splits.train)
    teacher = load_teacher(components)
    for note in () if teacher is None else teacher.notes:
        log.warning("%s", note)
    return TrainerModule(components, model, teacher), TrainerData(components, splits)
