"""The one LightningModule: a model, an objective, an optimizer builder and a schedule.

The way of a batch: the loader prepares it (`engine.loader`), `training_step` calls the model and the loss, Lightning
calls backward and `optimizer_step`, and `LoopCallback` takes the actions that are due after the step. There is no
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

import pytorch_lightning as pl
import torch
from torch import Tensor, nn
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
from blockyard.engine.lightning.patches import unscale_before_step
from blockyard.engine.system.gradients import gradient_norm
from blockyard.ops.projection import compiled_loss, deferred
from blockyard.ops.ring import Ring, sharing
from blockyard.weights.parts import NEVER, Thaw
from blockyard.weights.teacher import Teacher


class Learner(pl.LightningModule):
    """Trains `model`. Nothing in a step waits for the device, except on a CPU, where waiting is free.

    The learning rate is a function of the step's number, so it has no state; a scheduler that a Lightning callback
    installs takes over. The gradient norm is computed once per step, for clipping, the guard and the log.

    expected_total: returns the steps of the whole run before the step of a number, in a run that time may end
    observers: called at every step with its number, when its gradients are complete and not yet clipped
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
        # The loss computes gradients of the head itself, before fp16's scale is known. FSDP has the whole weight of the
        # head only inside its forward, and a teacher is compared with all logits.
        impossible = teacher is not None or settings.half or settings.sharded
        self.defer_logits = objective.takes_projection and not impossible
        self.raw_logits = objective.takes_projection and teacher is None
        self.ring: Ring | None = None
        self.stacked: StackedSteps | None = None
        self.expected_total: Callable[[int], int] | None = None
        self.observers: list[Callable[[int], None]] = []
        self._configured = False

    def configure_model(self) -> None:
        """Checkpoint, shard and compile, block by block. Called by Lightning before the optimizer is built."""
        if self._configured:
            return
        self._configured = True
        if self.settings.context:
            # A group of its own, so that a process that hangs in the ring is noticed after the run's time limit.
            group = torch.distributed.new_group(timeout=timedelta(seconds=self.settings.timeout))
            self.ring = Ring(torch.distributed.get_rank(), torch.distributed.get_world_size(), group)
        if self.settings.checkpoint:
            checkpoint_blocks(self.model)
        if self.settings.sharded:
            from torch.distributed.fsdp import fully_shard

            assert self.device_mesh is not None
            mesh = self.device_mesh["data_parallel"]
            # Blocks first: the root takes the parameters that no block has taken.
            for block in iter_blocks(self.model):
                fully_shard(block, mesh=mesh)
            fully_shard(self.model, mesh=mesh)
        if self.settings.compile:
            # The cap and the scale of scores are numbers of FlexAttention's kernel. Where a second model of the process
            # has other ones, the compiler would make them inputs, which FlexAttention does not take.
            torch._dynamo.config.specialize_float = True
            models = [self.model]
            if self.teacher is not None:
                models.append(self.teacher.model)
            for model in models:
                for block in iter_blocks(model):
                    block.compile()  # in place: the names of the weights stay

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the builder's optimizer; each group remembers its full learning rate as `initial_lr`."""
        optimizer = self.optimizer_builder.build(self.model)
        for group in optimizer.param_groups:
            group.setdefault("initial_lr", group["lr"])
        if self.settings.half:
            unscale_before_step(optimizer)  # the norm has to be known before the step
        return optimizer

    # -- one training step, in its order -----------------------------------------------------------

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Return the loss of a prepared batch. Auxiliary losses of modules are added, and count in no metric."""
        if self.stacked is None:
            may_synchronize = not torch.compiler.is_compiling()
            with compiled_loss(self.compiles_loss, raw_logits=self.raw_logits):
                loss, auxiliary = self.loss_and_auxiliary(batch, may_synchronize=may_synchronize)
        else:
            loss, auxiliary = self.stacked.losses(self, batch)
        # Detached, because the graph of a step must not live until the next row of the log.
        self.step.loss = loss.detach()
        self.losses.add(self.step.loss)
        if auxiliary is None:
            return loss
        self.auxiliaries.add(auxiliary.detach())
        return loss + auxiliary

    @property
    def compiles_loss(self) -> bool:
        """Return whether a loss of many logits is compiled: on a GPU, where blocks are; a CPU gains nothing."""
        return self.settings.compile and self.device.type == "cuda"

    def loss_and_auxiliary(
        self, batch: Batch, *, defer_logits: bool | None = None, may_synchronize: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """Return the loss of a prepared batch, and the sum of the auxiliary losses of modules, None if there are none.

        The loss is weighted where the batch is a micro-batch of sequences of different lengths.

        defer_logits: let the head leave many logits to the loss; None is as the objective and the settings allow
        may_synchronize: read the count of targets on the host, faster on a CPU; False under torch.func
        """
        with deferred(self.defer_logits if defer_logits is None else defer_logits), sharing(self.ring):
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
        if weight is not None:
            loss = loss * weight
        if may_synchronize and counts.device.type == "cpu" and counts:
            return loss, auxiliary
        # A choice between tensors, because reading `counts` would wait for a GPU.
        return torch.where(counts, loss, torch.zeros_like(loss)), auxiliary

    def backward(self, loss: Tensor, *args: Any, **settings: Any) -> None:
        """Add the gradients of a loss to the gradients of the weights."""
        if self.stacked is None:
            loss.backward(*args, **settings)
        else:
            self.stacked.backward(self, loss)

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        """Measure the gradient norm, and end the run before the step if it is not finite."""
        self.measure_gradients(optimizer)
        assert self.step.loss is not None
        assert self.step.norm is not None
        self.guard.check(self.step.number, self.step.loss, self.step.norm)
        for observe in self.observers:
            observe(self.step.number)

    def measure_gradients(self, optimizer: Any) -> None:
        """Set `step.norm` to the norm of all gradients together."""
        self.step.norm = gradient_norm(p for group in optimizer.param_groups for p in group["params"])

    def configure_gradient_clipping(self, optimizer: Any, *args: Any, **settings: Any) -> None:
        """Clip the gradients to `settings.clip`, with the norm measured before the step."""
        if self.settings.clip is None:
            return
        assert self.step.norm is not None
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        # clip_grad_norm_ would compute the norm a second time.
        torch.nn.utils.clip_grads_with_norm_(parameters, self.settings.clip, self.step.norm, foreach=True)

    def optimizer_step(
        self,
        epoch: int,
        batch_idx: int,
        optimizer: Any,
        optimizer_closure: Callable[[], Any] | None = None,
    ) -> None:
        """Run the closure (forward, backward, norm, clipping), step, and set the learning rate of the next step."""
        # Read before the step, which ends with the rate of the next one.
        self.step.lr = float(optimizer.param_groups[0]["lr"])
        optimizer.step(closure=optimizer_closure)
        for module in self.after_step.values():
            module.after_step()
        self.start_step(self.step.number + 1, optimizer)

    def take_step(
        self, batch: Batch, optimizer: torch.optim.Optimizer, context: Callable[[], AbstractContextManager[Any]]
    ) -> None:
        """Take the step of a prepared batch without Lightning's loop, in the order of that loop and with its bits.

        context: makes the context of the forward pass and the loss, such as autocast; an optimizer may compute them
            several times in a step
        """

        def closure() -> Tensor:
            with context():
                loss = self.training_step(batch, 0)
            # Lightning's order: gradients of the last step are there during the forward pass.
            optimizer.zero_grad()
            self.backward(loss)
            self.on_before_optimizer_step(optimizer)
            self.configure_gradient_clipping(optimizer)
            return loss

        self.optimizer_step(0, 0, optimizer, closure)

    def start_step(self, number: int, optimizer: Any) -> None:
        """Number the next step, and set its learning rate unless a callback installed a scheduler."""
        self.number_step(number)
        if not self.trainer.lr_scheduler_configs:
            self.set_rates(number, optimizer)

    def number_step(self, number: int) -> None:
        """Number the next step and set its trained parts."""
        self.step.number = number
        self.settings.thaw.set(number)

    def set_rates(self, number: int, optimizer: Any) -> None:
        """Set the learning rates of step `number`; after the last step of the schedule they stay."""
        total = self.settings.total
        if self.expected_total is not None:
            total = self.expected_total(number)
        if number >= total:
            return
        factor = self.schedule.factor(number, total)
        for group in optimizer.param_groups:
            group["lr"] = group["initial_lr"] * factor
        # Weight decay may follow the schedule too.
        self.optimizer_builder.start_step(optimizer, factor)

    # -- weights that are evaluated, where others are trained --------------------------------------

    @contextmanager
    def evaluated_weights(self, optimizers: Sequence[Any]) -> Iterator[None]:
        """While inside, the model has the weights that are evaluated and saved."""
        # Inside another such block nothing is exchanged, and so nothing is exchanged back at its end.
        others = [optimizer for optimizer in optimizers if not self.optimizer_builder.exchanged(optimizer)]
        self.use_evaluated_weights(others)
        try:
            yield
        finally:
            self.use_trained_weights(others)

    def use_evaluated_weights(self, optimizers: Sequence[Any]) -> None:
        """Give the model the weights that are evaluated and saved, if others are trained."""
        for optimizer in optimizers:
            if not self.optimizer_builder.exchanged(optimizer):
                self.optimizer_builder.exchange(optimizer)

    def use_trained_weights(self, optimizers: Sequence[Any]) -> None:
        """Give the model the weights that are trained, if a checkpoint has others."""
        for optimizer in optimizers:
            if self.optimizer_builder.exchanged(optimizer):
                self.optimizer_builder.exchange(optimizer)

    def transfer_batch_to_device(self, batch: Batch, device: torch.device, dataloader_idx: int) -> Batch:
        """Without waiting where the memory is pinned; nothing to do on a CPU."""
        if device.type == "cpu":
            return batch
        return batch.to(device, non_blocking=True)


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


class StackedSteps(Protocol):
    """Computes the losses and gradients of a learner together with other learners, in place of the learner itself."""

    def losses(self, learner: Learner, batch: Batch) -> tuple[Tensor, Tensor | None]:
        """Return the loss and the auxiliary loss, as `learner.loss_and_auxiliary(batch)` does."""
        ...

    def backward(self, learner: Learner, loss: Tensor) -> None:
        """Add the gradients of the losses that were returned last to the gradients of the learner's weights."""
        ...


class LossMean:
    """Sum and number of the batch losses since the last `take`; reading them is the only wait for the device."""

    def __init__(self) -> None:
        self._sum: Tensor | None = None
        self._count = 0

    def add(self, loss: Tensor) -> None:
        """Add a detached loss. The sum is in float32, as a checkpoint stores it."""
        loss = loss.float()
        if self._sum is not None:
            loss = self._sum + loss
        self._sum = loss
        self._count += 1

    def take(self) -> Tensor | None:
        """Return the mean since the last call, on the device; None if there was no batch."""
        if self._sum is None:
            return None
        mean = self._sum / self._count
        self._sum = None
        self._count = 0
        return mean

    def state(self, strategy: object = None) -> tuple[float, int]:
        """Return sum and number, to be saved. With a Lightning strategy of several processes all of them must call."""
        if self._sum is None:
            return 0.0, self._count
        # One process saves for all: the mean of the sums, from which each of them then continues.
        total = self._sum
        if strategy is not None:
            total = strategy.reduce(total, reduce_op="mean")  # type: ignore[attr-defined]
        return float(total), self._count

    def load_state(self, total: float, count: int, device: torch.device) -> None:
        """The inverse of `state`."""
        self._sum = torch.tensor(total, device=device) if count else None
        self._count = count


def checkpoint_blocks(model: nn.Module) -> None:
    """Make every block of a model compute its inside again in the backward pass, instead of keeping it.

    Gradients have the same bits: random numbers are drawn again, and statistics that a forward pass updates, such as
    the running means of batch norms, are put back after the second one. Auxiliary losses are taken from the first.

    Source: Chen et al. 2016, Training Deep Nets with Sublinear Memory Cost (arXiv 1604.06174), section 4.1
    Reference: torch.utils.checkpoint.checkpoint(use_reentrant=False)
    """
    for block in iter_blocks(model):
        # A bound method, so that a copy of the model computes with its own weights.
        block.forward = types.MethodType(_checkpointed_forward, block)


def _checkpointed_forward(block: nn.Module, *arguments: Any, **settings: Any) -> Any:
    forward = partial(type(block).forward, block)
    if not (block.training and torch.is_grad_enabled()):
        return forward(*arguments, **settings)
    has_state = next(block.buffers(), None) is not None or any(isinstance(m, HasAuxiliary) for m in block.modules())
    if has_state:
        settings["context_fn"] = lambda: (nullcontext(), _restored_state(block))  # of the first pass, of the second
    return checkpoint(forward, *arguments, use_reentrant=False, **settings)


@contextmanager
def _restored_state(block: nn.Module) -> Iterator[None]:
    """Put the buffers back after the block, and drop the auxiliary losses that were computed in it."""
    before = [(buffer, buffer.clone()) for buffer in block.buffers()]
    try:
        yield
    finally:
        auxiliary_loss(block.modules())
        with torch.no_grad():
            for buffer, value in before:
                buffer.copy_(value)
