"""The one LightningModule: a model, an objective, an optimizer builder and a schedule.

The way of a batch: the loader prepares it (`engine.loader`), `training_step` calls the model and the loss, Lightning
calls backward and `optimizer_step`, and `LoopCallback` does what is due after the step. There is no
`validation_step`: training, testing and `blockyard eval` share one evaluation, `blockyard.evaluate.loop`.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from blockyard.contracts import Batch, HasAuxiliary, Objective, OptimizerBuilder, Schedule, auxiliary_loss, iter_blocks
from blockyard.engine.block_checkpoints import checkpoint_blocks
from blockyard.engine.callbacks.nan_guard import NanGuard
from blockyard.engine.learner_settings import Settings, StepState
from blockyard.engine.loss_mean import LossMean
from blockyard.ops.projection import deferred
from blockyard.ops.ring import Ring, sharing


class Learner(pl.LightningModule):
    """Trains `model`. Nothing in a step waits for the device, except on a CPU, where waiting is free.

    The learning rate is a function of the step's number, so it has no state; a scheduler that a Lightning callback
    installs takes over. The gradient norm is computed once per step, for clipping, the guard and the log.
    """

    def __init__(
        self,
        model: nn.Module,
        objective: Objective,
        optimizer: OptimizerBuilder,
        schedule: Schedule,
        settings: Settings,
    ) -> None:
        super().__init__()
        self.model = model
        self.objective = objective
        self.optimizer_builder = optimizer
        self.schedule = schedule
        self.settings = settings
        self.step = StepState()
        self.losses = LossMean()
        self.auxiliaries = LossMean()
        self.auxiliary = tuple(module for module in model.modules() if isinstance(module, HasAuxiliary))
        self.guard = NanGuard(tolerant=settings.half)
        # Gradients are computed before fp16's scale; FSDP has the whole weight of the head only inside its forward.
        self.defers = objective.takes_projection and not (settings.half or settings.sharded)
        self.ring: Ring | None = None
        self._configured = False

    def __setattr__(self, name: str, value: Any) -> None:
        # Lightning sets `_current_fx_name` some forty times a step; torch would search for a parameter each time.
        if name == "_current_fx_name":
            object.__setattr__(self, name, value)
        else:
            super().__setattr__(name, value)

    def configure_model(self) -> None:
        """Checkpoint, shard and compile, block by block. Called by Lightning before the optimizer is built."""
        if self._configured:
            return
        self._configured = True
        if self.settings.context:
            group = torch.distributed.new_group(timeout=timedelta(seconds=self.settings.timeout))
            self.ring = Ring(torch.distributed.get_rank(), torch.distributed.get_world_size(), group)
        if self.settings.checkpoint:
            checkpoint_blocks(self.model)
        if self.settings.sharded:
            from torch.distributed.fsdp import fully_shard

            assert self._device_mesh is not None
            mesh = self._device_mesh["data_parallel"]
            for block in iter_blocks(self.model):
                fully_shard(block, mesh=mesh)
            fully_shard(self.model, mesh=mesh)
        if self.settings.compile:
            for block in iter_blocks(self.model):
                block.compile()  # in place: the names of the weights stay

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """The builder's optimizer; each group remembers its full learning rate as `initial_lr`."""
        optimizer = self.optimizer_builder.build(self.model)
        for group in optimizer.param_groups:
            group.setdefault("initial_lr", group["lr"])
        if self.settings.half:
            # Fused optimizers unscale inside their step; the norm has to be known before it.
            optimizer._step_supports_amp_scaling = False
        return optimizer

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """The loss of a prepared batch, weighted where it is a micro-batch of sequences of different lengths.

        Losses that modules have of their own are added to what is returned, and to no metric.
        """
        with deferred(self.defers), sharing(self.ring):
            prediction = self.model(batch)
        target, weight = batch.target, batch.weight
        if self.ring is not None:
            target, share = self.ring.targets(target)
            weight = share if weight is None else weight * share
        loss = self.objective.loss(prediction, target)
        auxiliary = auxiliary_loss(self.auxiliary)
        # A mean over nothing is NaN; a batch without a target, or a part of one, counts for nothing.
        counts = self.objective.any_target(target) if weight is None else weight > 0
        loss = torch.where(counts, loss if weight is None else loss * weight, torch.zeros_like(loss))
        self.step.loss = loss.detach()
        self.losses.add(self.step.loss)
        if auxiliary is None:
            return loss
        self.auxiliaries.add(auxiliary.detach())
        return loss + auxiliary

    def optimizer_step(
        self,
        epoch: int,
        batch_idx: int,
        optimizer: Any,
        optimizer_closure: Callable[[], Any] | None = None,
    ) -> None:
        """Run the closure (forward, backward, `on_before_optimizer_step`), step, and set the next step's rate."""
        self.step.lr = float(optimizer.param_groups[0]["lr"])
        optimizer.step(closure=optimizer_closure)
        self.start_step(self.step.number + 1, optimizer)

    def start_step(self, number: int, optimizer: Any) -> None:
        """Number the next step, set what it trains, and its learning rate unless a callback installed a scheduler."""
        self.number_step(number)
        if number < self.settings.total and not self.trainer.lr_scheduler_configs:
            factor = self.schedule.factor(number, self.settings.total)
            for group in optimizer.param_groups:
                group["lr"] = group["initial_lr"] * factor

    def number_step(self, number: int) -> None:
        """Number the next step and set what it trains."""
        self.step.number = number
        self.settings.thaw.set(number)

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        """Measure the gradient norm, and end the run before the step if it is not finite."""
        gradients = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients, foreach=True)
        self.step.norm = norm.full_tensor() if isinstance(norm, DTensor) else norm
        assert self.step.loss is not None
        self.guard.check(self.step.number, self.step.loss, self.step.norm)

    def configure_gradient_clipping(self, optimizer: Any, *args: Any, **settings: Any) -> None:
        """Clip the gradients to `settings.clip`, with the norm measured before the step."""
        if self.settings.clip is None:
            return
        assert self.step.norm is not None
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        torch.nn.utils.clip_grads_with_norm_(parameters, self.settings.clip, self.step.norm, foreach=True)

    def transfer_batch_to_device(self, batch: Batch, device: torch.device, dataloader_idx: int) -> Batch:
        """Without waiting where the memory is pinned; nothing to do on a CPU."""
        return batch if device.type == "cpu" else batch.to(device, non_blocking=True)
