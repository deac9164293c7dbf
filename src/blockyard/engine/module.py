"""The one LightningModule: a model, an objective, an optimizer builder and a schedule.

The way of a batch: the loader prepares it (`engine.loader`), `training_step` calls the model and the loss, Lightning
calls backward and `optimizer_step`, and `LoopCallback` does what is due after the step. There is no
`validation_step`: training, testing and `blockyard eval` share one evaluation, `blockyard.evaluate.loop`. The complete
module for a Trainer of the user's own is `plain_trainer.TrainerModule`.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.utils.checkpoint import checkpoint

from blockyard.contracts import (
    AfterStep,
    Batch,
    HasAuxiliary,
    Objective,
    OptimizerBuilder,
    Schedule,
    auxiliary_loss,
    iter_blocks,
)
from blockyard.engine.faults.nan_guard import NanGuard
from blockyard.engine.lightning.patches import CheapHookName, unscale_before_step
from blockyard.ops.projection import deferred
from blockyard.ops.ring import Ring, sharing
from blockyard.weights.parts import NEVER, Thaw
from blockyard.weights.teacher import Teacher

# Gradient checkpointing: the inside of a block is not kept for the backward pass but computed again in it.
#
# Source: Chen et al. 2016, Training Deep Nets with Sublinear Memory Cost (arXiv 1604.06174), section 4.1
# Reference: torch.utils.checkpoint.checkpoint(use_reentrant=False)
#
# Gradients have the same bits: random numbers are drawn again, and statistics that a forward pass updates, such as
# those of batch norms, are put back after the second one. Auxiliary losses are those of the first.


def checkpoint_blocks(model: nn.Module) -> None:
    """Make every block of a model compute its inside again in the backward pass."""
    for block in iter_blocks(model):
        # A bound method, so that a copy of the model computes with its own weights.
        block.forward = types.MethodType(_forward, block)


def _forward(block: nn.Module, *arguments: Any, **settings: Any) -> Any:
    forward = partial(type(block).forward, block)
    if not (block.training and torch.is_grad_enabled()):
        return forward(*arguments, **settings)
    has_state = next(block.buffers(), None) is not None or any(isinstance(m, HasAuxiliary) for m in block.modules())
    kept: dict[str, Any] = {"context_fn": partial(_contexts, block)} if has_state else {}
    return checkpoint(forward, *arguments, use_reentrant=False, **kept, **settings)


def _contexts(block: nn.Module) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    return nullcontext(), _buffers_kept(block)


@contextmanager
def _buffers_kept(block: nn.Module) -> Iterator[None]:
    before = [(buffer, buffer.clone()) for buffer in block.buffers()]
    try:
        yield
    finally:
        auxiliary_loss(block.modules())  # those of the second pass are in no loss
        with torch.no_grad():
            for buffer, value in before:
                buffer.copy_(value)


# The mean training loss between two rows of the log, kept on the device.


class LossMean:
    """Sum and number of the batch losses since the last `take`; reading them is the only wait for the device."""

    def __init__(self) -> None:
        self._sum: Tensor | None = None
        self._count = 0

    def add(self, loss: Tensor) -> None:
        """Add a detached loss. The sum is in float32, the dtype in which a checkpoint stores it."""
        loss = loss.float()
        self._sum = loss if self._sum is None else self._sum + loss
        self._count += 1

    def take(self) -> Tensor | None:
        """The mean since the last call, on the device; None where there was no batch."""
        if self._sum is None:
            return None
        mean = self._sum / self._count
        self._sum, self._count = None, 0
        return mean

    def state(self, strategy: object = None) -> tuple[float, int]:
        """Sum and number, to be saved. With a Lightning strategy of several processes all of them must call."""
        if self._sum is None:
            return 0.0, self._count
        # One process saves for all: the mean of the sums, from which each of them then continues.
        total = self._sum if strategy is None else strategy.reduce(self._sum, reduce_op="mean")  # type: ignore[attr-defined]
        return float(total), self._count

    def load_state(self, total: float, count: int, device: torch.device) -> None:
        """The inverse of `state`."""
        self._sum = torch.tensor(total, device=device) if count else None
        self._count = count


# What a learner is set to besides its components, and the step that it is in.


@dataclass(frozen=True)
class LearnerSettings:
    """Training settings in addition to the components.

    total: steps in the whole run; clip: largest gradient norm, or None
    half: whether gradients are scaled for fp16; sharded: whether weights are spread over processes
    compile: whether each block is compiled; checkpoint: whether it is computed again in the backward pass
    context: whether every sequence is cut among the processes; timeout: seconds that they then wait for each other
    thaw: when frozen parts are trained
    """

    total: int
    clip: float | None = None
    half: bool = False
    sharded: bool = False
    compile: bool = False
    checkpoint: bool = False
    context: bool = False
    timeout: float = 300.0
    thaw: Thaw = NEVER


@dataclass
class StepState:
    """The step in progress. A plain object, because setting an attribute of a torch module costs a microsecond.

    number: of the step, from 0; loss: of the last batch; norm: of its gradients, before clipping
    lr: learning rate of the first parameter group in the last step
    """

    number: int = 0
    loss: Tensor | None = None
    norm: Tensor | None = None
    lr: float = 0.0


class Together(Protocol):
    """Takes the steps of a learner together with those of others, in place of the learner itself."""

    def losses(self, learner: Learner, batch: Batch) -> tuple[Tensor, Tensor | None]:
        """What `learner.losses_of(batch)` returns."""
        ...

    def backward(self, learner: Learner, loss: Tensor) -> None:
        """Add the gradients of the losses that were returned last to those of the learner's weights."""
        ...


class Learner(CheapHookName):
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
        settings: LearnerSettings,
        teacher: Teacher | None = None,
    ) -> None:
        super().__init__()
        self.teacher = teacher
        self.model = model
        self.objective = objective
        self.optimizer_builder = optimizer
        self.schedule = schedule
        self.settings = settings
        self.step = StepState()
        self.losses = LossMean()
        self.auxiliaries = LossMean()
        self.auxiliary = tuple(module for module in model.modules() if isinstance(module, HasAuxiliary))
        self.after_step = {path: module for path, module in model.named_modules() if isinstance(module, AfterStep)}
        self.guard = NanGuard(tolerant=settings.half)
        # Gradients are computed before fp16's scale; FSDP has the whole weight of the head only inside its forward.
        # What a teacher is compared with are all logits.
        self.defers = objective.takes_projection and teacher is None and not (settings.half or settings.sharded)
        self.ring: Ring | None = None
        self.together: Together | None = None
        self._configured = False

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

            assert self.device_mesh is not None
            mesh = self.device_mesh["data_parallel"]
            for block in iter_blocks(self.model):
                fully_shard(block, mesh=mesh)
            fully_shard(self.model, mesh=mesh)
        if self.settings.compile:
            for model in (self.model, *([] if self.teacher is None else [self.teacher.model])):
                for block in iter_blocks(model):
                    block.compile()  # in place: the names of the weights stay

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """The builder's optimizer; each group remembers its full learning rate as `initial_lr`."""
        optimizer = self.optimizer_builder.build(self.model)
        for group in optimizer.param_groups:
            group.setdefault("initial_lr", group["lr"])
        if self.settings.half:
            unscale_before_step(optimizer)  # the norm has to be known before the step
        return optimizer

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """The loss of a prepared batch. Losses that modules have of their own are added, and count in no metric."""
        if self.together is None:
            reads = not torch.compiler.is_compiling()
            loss, auxiliary = self.losses_of(batch, reads=reads)
        else:
            loss, auxiliary = self.together.losses(self, batch)
        self.step.loss = loss.detach()
        self.losses.add(self.step.loss)
        if auxiliary is None:
            return loss
        self.auxiliaries.add(auxiliary.detach())
        return loss + auxiliary

    def losses_of(
        self, batch: Batch, defers: bool | None = None, *, reads: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """The loss of a prepared batch, weighted where it is a micro-batch of sequences of different lengths; and the
        sum of the losses that modules have of their own, None where there are none.

        defers: whether the head may leave many logits to the loss; None is as the objective and the settings allow
        reads: whether the value of a tensor may be read, which on a CPU takes less time than a choice between tensors;
            inside a transform of torch.func it cannot be
        """
        with deferred(self.defers if defers is None else defers), sharing(self.ring):
            prediction = self.model(batch)
        target, weight = batch.target, batch.weight
        if self.ring is not None:
            assert target is not None
            target, share = self.ring.targets(target)
            weight = share if weight is None else weight * share
        loss = self.objective.loss(prediction, target)
        if self.teacher is not None:
            loss = self.objective.distilled(loss, prediction, self.teacher(batch), target)
        auxiliary = auxiliary_loss(self.auxiliary)
        # A mean over nothing is NaN; a batch without a target, or a part of one, counts for nothing.
        counts = self.objective.any_target(target) if weight is None else weight > 0
        loss = loss if weight is None else loss * weight
        if reads and counts.device.type == "cpu" and counts:
            return loss, auxiliary
        return torch.where(counts, loss, torch.zeros_like(loss)), auxiliary

    def backward(self, loss: Tensor, *args: Any, **settings: Any) -> None:
        """Add the gradients to those of the weights."""
        if self.together is None:
            loss.backward(*args, **settings)
        else:
            self.together.backward(self, loss)

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
        for module in self.after_step.values():
            module.after_step()
        self.start_step(self.step.number + 1, optimizer)

    def take_step(
        self, batch: Batch, optimizer: torch.optim.Optimizer, context: Callable[[], AbstractContextManager[Any]]
    ) -> None:
        """Take the step of a prepared batch without Lightning's loop, in the order of that loop and with its bits.

        context: makes what the forward pass and the loss are computed in, such as autocast; an optimizer may compute
            them several times in a step
        """

        def closure() -> Tensor:
            with context():
                loss = self.training_step(batch, 0)
            optimizer.zero_grad()
            self.backward(loss)
            self.on_before_optimizer_step(optimizer)
            self.configure_gradient_clipping(optimizer)
            return loss

        self.optimizer_step(0, 0, optimizer, closure)

    def start_step(self, number: int, optimizer: Any) -> None:
        """Number the next step, set what it trains, and its learning rate unless a callback installed a scheduler."""
        self.number_step(number)
        if number < self.settings.total and not self.trainer.lr_scheduler_configs:
            factor = self.schedule.factor(number, self.settings.total)
            for group in optimizer.param_groups:
                group["lr"] = group["initial_lr"] * factor
            self.optimizer_builder.start_step(optimizer, factor)

    @contextmanager
    def evaluated_weights(self, optimizers: Sequence[Any]) -> Iterator[None]:
        """While inside, the model has the weights that are evaluated and saved."""
        others = [optimizer for optimizer in optimizers if not self.optimizer_builder.exchanged(optimizer)]
        self.use_evaluated_weights(others)
        try:
            yield
        finally:
            self.use_trained_weights(others)

    def use_evaluated_weights(self, optimizers: Sequence[Any]) -> None:
        """Give the model the weights that are evaluated and saved, where those that are trained are others."""
        for optimizer in optimizers:
            if not self.optimizer_builder.exchanged(optimizer):
                self.optimizer_builder.exchange(optimizer)

    def use_trained_weights(self, optimizers: Sequence[Any]) -> None:
        """Give the model the weights that are trained, where those of a checkpoint are others."""
        for optimizer in optimizers:
            if self.optimizer_builder.exchanged(optimizer):
                self.optimizer_builder.exchange(optimizer)

    def number_step(self, number: int) -> None:
        """Number the next step and set what it trains."""
        self.step.number = number
        self.settings.thaw.set(number)

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        """Measure the gradient norm, and end the run before the step if it is not finite."""
        self.measure_gradients(optimizer)
        assert self.step.loss is not None
        assert self.step.norm is not None
        self.guard.check(self.step.number, self.step.loss, self.step.norm)

    def measure_gradients(self, optimizer: Any) -> None:
        """Set `step.norm` to the norm of all gradients together."""
        gradients = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients, foreach=True)
        self.step.norm = norm.full_tensor() if isinstance(norm, DTensor) else norm

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
