"""The one LightningModule: a model, an objective, an optimizer plan and a schedule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from blockyard.contracts import Batch, Objective, OptimizerBuilder, Schedule, iter_blocks
from blockyard.engine.callbacks.nan_guard import Guard


@dataclass(frozen=True)
class Settings:
    """What training is told beside the parts.

    total: updates in the whole run; clip: largest gradient norm, or None
    half: whether gradients are scaled for fp16; sharded: whether weights are spread over processes
    """

    total: int
    clip: float | None = None
    half: bool = False
    sharded: bool = False
    compile: bool = False


_PLAIN = frozenset({"_current_fx_name", "update", "norm", "_loss", "_sum", "_count"})


class Learner(pl.LightningModule):
    """Trains `model`. Nothing in a step waits for the device, except on a CPU, where waiting is free.

    The learning rate is set before each update as a function of its number, so it has no state.
    The gradient norm is taken once per update, and serves clipping, the guard and the log.
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
        self.optimizer_plan = optimizer
        self.schedule = schedule
        self.settings = settings
        self.loader: Callable[[int], Any] | None = None  # batches from an update on
        self.key: Callable[[int], int] | None = None  # for what the objective draws at an update
        self.update = 0  # the number of the update in work, from 0
        self.guard = Guard(tolerant=settings.half)
        self.norm: Tensor | None = None  # of the last update's gradients, before clipping
        self._loss: Tensor | None = None  # of the last batch
        self._sum: Tensor | None = None
        self._count = 0
        self._configured = False

    def __setattr__(self, name: str, value: Any) -> None:
        """Skip torch's search for parameters where the name says there is none.

        Lightning sets `_current_fx_name` some forty times a step.
        """
        if name in _PLAIN:
            object.__setattr__(self, name, value)
        else:
            super().__setattr__(name, value)

    def configure_model(self) -> None:
        """Shard and compile, block by block. Called by Lightning before the optimizer is made."""
        if self._configured:
            return
        self._configured = True
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

    def train_dataloader(self) -> Any:
        """Everything from the update the run stands at. Lightning asks after it has read the checkpoint."""
        assert self.loader is not None
        return self.loader(self.trainer.global_step)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """The loss of one batch, weighted where it is a part of an update with rows of different lengths."""
        weight = batch.weight
        batch = self.objective.prepare(batch, None if self.key is None else self.key(self.update))
        prediction = self.model(**batch.arguments())
        loss = self.objective.loss(prediction, batch.target)
        if weight is not None:
            # A mean over nothing is NaN; a part that asks for nothing counts for nothing.
            loss = torch.where(weight > 0, loss * weight, torch.zeros_like(loss))
        self._loss = loss.detach()
        self._sum = self._loss if self._sum is None else self._sum + self._loss
        self._count += 1
        return loss

    def take_loss(self) -> Tensor | None:
        """The mean loss since the last call, on the device; None where there was no step."""
        if self._sum is None:
            return None
        mean = self._sum / self._count
        self._sum, self._count = None, 0
        return mean

    def tally(self) -> tuple[float, int]:
        """Sum and number of the losses since `take_loss`, to be saved; every process must call."""
        if self._sum is None:
            return 0.0, self._count
        # One process saves for all: the mean of the sums, which each of them then goes on from.
        alone = self._trainer is None or self._trainer.world_size == 1
        total = self._sum if alone else self.trainer.strategy.reduce(self._sum.float(), reduce_op="mean")
        return float(total), self._count

    def load_tally(self, total: float, count: int) -> None:
        """The inverse of `tally`."""
        self._sum = torch.tensor(total, device=self.device) if count else None
        self._count = count

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """The plan's optimizer; each group remembers its full learning rate."""
        optimizer = self.optimizer_plan.build(self.model)
        for group in optimizer.param_groups:
            group.setdefault("initial_lr", group["lr"])
        if self.settings.half:
            # Fused optimizers unscale inside their step; the norm has to be known before it.
            optimizer._step_supports_amp_scaling = False
        return optimizer

    def learning_rate(self) -> float:
        """The rate of the last update's first group."""
        optimizer = self.trainer.optimizers[0]
        return float(optimizer.param_groups[0]["lr"])

    def optimizer_step(
        self,
        epoch: int,
        batch_idx: int,
        optimizer: Any,
        optimizer_closure: Callable[[], Any] | None = None,
    ) -> None:
        """Set the rate, then run the closure (forward, backward, `on_before_optimizer_step`) and update."""
        factor = self.schedule.factor(self.update, self.settings.total)
        for group in optimizer.param_groups:
            group["lr"] = group["initial_lr"] * factor
        optimizer.step(closure=optimizer_closure)
        self.update += 1

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        """Measure the gradients, and end the run where they are no numbers, before they do harm."""
        gradients = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients, foreach=True)
        self.norm = norm.full_tensor() if isinstance(norm, DTensor) else norm
        assert self._loss is not None
        self.guard.look(self.update, self._loss, self.norm)

    def configure_gradient_clipping(self, optimizer: Any, *args: Any, **settings: Any) -> None:
        """Scale the gradients down to the largest norm allowed."""
        if self.settings.clip is None:
            return
        assert self.norm is not None
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        torch.nn.utils.clip_grads_with_norm_(parameters, self.settings.clip, self.norm, foreach=True)

    def transfer_batch_to_device(self, batch: Batch, device: torch.device, dataloader_idx: int) -> Batch:
        """Without waiting where the memory is pinned; nothing to do on a CPU."""
        return batch if device.type == "cpu" else batch.to(device, non_blocking=True)
