"""Steps that runs take together while nothing is due in any of them: no log, no evaluation, no checkpoint.

Lightning and the hooks around a step cost each run as much as a small model does. While nothing is due, the steps go
without them: batches are read, losses and gradients computed, clipped and applied here, and the
counters of each run and of its trainer then go on as if it had taken the steps itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

import torch
from torch import Tensor

from blockyard.contracts import Batch
from blockyard.engine.callbacks.loop import LoopCallback
from blockyard.engine.lightning.patches import count_steps, next_batch
from blockyard.engine.module import Learner
from blockyard.engine.stacked.step import StackedResult, StackedWeights
from blockyard.engine.system.randomness import reseed
from blockyard.optimizer._combined import CombinedOptimizer

_SAME = ("lr", "betas", "eps", "weight_decay", "amsgrad", "maximize", "fused", "foreach", "capturable")


class StackedAdamW:
    """AdamW over stacked weights in place of the AdamW of each learner. Its states become parts of stacked states.

    Its arithmetic goes element by element, so that the weights of each learner get the bits of its own optimizer.
    """

    def __init__(self, optimizers: Sequence[torch.optim.AdamW], weights: StackedWeights) -> None:
        self._optimizers = optimizers
        groups: list[dict[str, Any]] = []
        self._steps: list[list[Tensor]] = []  # for each weight, the counters of the learners
        stacks = weights.by_parameter()
        for number, group in enumerate(optimizers[0].param_groups):
            options = {name: group[name] for name in _SAME}
            groups.append({"params": [stacks[id(weight)] for weight in group["params"]], **options})
            counts = [len(optimizer.param_groups[number]["params"]) for optimizer in optimizers]
            assert counts == [len(group["params"])] * len(optimizers)
        self._stacked = torch.optim.AdamW(groups)
        for number, group in enumerate(self._stacked.param_groups):
            for index, stack in enumerate(group["params"]):
                states = []
                for optimizer in optimizers:
                    weight = optimizer.param_groups[number]["params"][index]
                    states.append(optimizer.state[weight])
                if not states[0]:  # without a gradient so far
                    continue
                stacked_state = self._stacked.state[stack]
                stacked_state["step"] = states[0]["step"].clone()
                for name in states[0]:
                    if name == "step":
                        continue
                    stacked_state[name] = torch.stack([state[name] for state in states])
                    for learner, state in enumerate(states):
                        # A view: a checkpoint of one learner reads its part without a copy back.
                        state[name] = stacked_state[name][learner]
                self._steps.append([stacked_state["step"], *(state["step"] for state in states)])

    @staticmethod
    def fits(optimizers: Sequence[torch.optim.Optimizer]) -> TypeGuard[Sequence[torch.optim.AdamW]]:
        """Return whether one step can serve all: AdamW with equal options after equally many steps."""
        if any(type(optimizer) is not torch.optim.AdamW for optimizer in optimizers):
            return False
        options = []
        step_counts = []
        for optimizer in optimizers:
            options.append([[group[name] for name in _SAME] for group in optimizer.param_groups])
            # Counted by parameter, not by entry of the state: that may be shared with another optimizer.
            weights = [weight for group in optimizer.param_groups for weight in group["params"]]
            states = [optimizer.state[weight] for weight in weights if optimizer.state.get(weight)]
            step_counts.append([float(state["step"]) for state in states])
        return options.count(options[0]) == len(options) and step_counts.count(step_counts[0]) == len(step_counts)

    @property
    def alike(self) -> bool:
        """Return whether all still have one rate and one decay: schedules that begin alike may differ later."""
        rates = []
        for optimizer in self._optimizers:
            rates.append([(group["lr"], group["weight_decay"]) for group in optimizer.param_groups])
        return rates.count(rates[0]) == len(rates)

    def apart(self) -> Sequence[torch.optim.Optimizer]:
        """Return the optimizers of the learners, after the steps that were taken together."""
        self.close()
        return self._optimizers

    def step(self, gradients: dict[int, Tensor | None]) -> None:
        """Take a step. gradients: by the `id` of the stacked weight"""
        for group, first in zip(self._stacked.param_groups, self._optimizers[0].param_groups, strict=True):
            group["lr"], group["weight_decay"] = first["lr"], first["weight_decay"]
            for stack in group["params"]:
                stack.grad = gradients[id(stack)]
        self._stacked.step()

    def close(self) -> None:
        """Give the optimizers of the learners the number of steps."""
        for stacked_count, *counts in self._steps:
            for count in counts:
                count.copy_(stacked_count)


@dataclass
class Taker:
    """A run that takes steps: its learner and the loop around its steps."""

    learner: Learner
    loop: LoopCallback

    @property
    def trainer(self) -> Any:
        """Return the trainer of Lightning."""
        return self.learner.trainer

    @property
    def quiet(self) -> int:
        """Return how many steps follow, from the one in progress on, with nothing due after them."""
        if self.trainer.lr_scheduler_configs:
            return 0
        return self.loop.quiet_steps()

    def parts(self) -> list[torch.optim.Optimizer]:
        """Return the optimizers that its optimizer consists of."""
        optimizer = self.trainer.optimizers[0]
        if type(optimizer) is CombinedOptimizer:
            return optimizer.parts
        return [optimizer]


class Burst:
    """Steps of several learners, one after another.

    takers: the runs, in the order of the stacked weights
    """

    def __init__(self, takers: Sequence[Taker], weights: StackedWeights) -> None:
        self._takers = list(takers)
        self._weights = weights
        self._taken = 0
        self._losses: list[Tensor] = []
        self._auxiliaries: list[Tensor] = []
        self._bad: Tensor | None = None  # (learners,) number of the first step that was not finite, or -1
        self._clip = takers[0].learner.settings.clip
        self._optimizers: list[StackedAdamW | list[torch.optim.Optimizer]] = []
        for optimizers in zip(*(taker.parts() for taker in takers), strict=True):
            if StackedAdamW.fits(optimizers):
                self._optimizers.append(StackedAdamW(optimizers, weights))
            else:
                self._optimizers.append(list(optimizers))

    @property
    def interrupted(self) -> bool:
        """Return whether a signal stops one of the runs."""
        return any(taker.loop.interrupts.signum is not None for taker in self._takers)

    def apply(self, result: StackedResult) -> bool:
        """Take the step of `result`; return False if a value is not finite on a CPU, and the step was not taken.

        The order is the one of `Learner.take_step`: guard, clip, step, rates. Each tensor has one axis more, in front.
        """
        gradients = {name: stack for name, stack in result.gradients.items() if stack is not None}
        # For each learner the norm of the norms of its gradients, as torch.nn.utils.get_total_norm computes it.
        norms = torch.stack([stack.flatten(1).norm(dim=1) for stack in gradients.values()]).norm(dim=0)
        if not self._finite(result.loss + norms):
            return False
        if self._clip is not None:
            factors = (self._clip / (norms + 1e-6)).clamp(max=1.0)  # as torch.nn.utils.clip_grads_with_norm_
            for stack in gradients.values():
                stack.mul_(factors.view(-1, *[1] * (stack.dim() - 1)))
        self._step(result.gradients)
        self._losses.append(result.loss)
        if result.auxiliary is not None:
            self._auxiliaries.append(result.auxiliary)
        for taker in self._takers:
            taker.learner.start_step(taker.learner.step.number + 1, taker.trainer.optimizers[0])
        self._taken += 1
        return True

    def _finite(self, values: Tensor) -> bool:
        """Return False for a value that is not finite on a CPU. On a GPU the step is only noted, as in `NanGuard`."""
        finite = torch.isfinite(values)
        if values.device.type == "cpu":
            return bool(finite.all())
        numbers = torch.tensor([taker.learner.step.number + 1 for taker in self._takers], device=values.device)
        first = torch.where(finite, -1, numbers)
        if self._bad is not None:  # the first bad step of a learner stays
            first = torch.where(self._bad < 0, first, self._bad)
        self._bad = first
        return True

    def _step(self, gradients: dict[str, Tensor | None]) -> None:
        by_stack = {id(stack): gradients.get(name) for name, stack in self._weights.weights.items()}
        spread = False
        for number, parts in enumerate(self._optimizers):  # one part of the optimizer of each learner
            if isinstance(parts, StackedAdamW):
                if parts.alike:
                    parts.step(by_stack)
                    continue
                parts = self._optimizers[number] = list(parts.apart())
            if not spread:
                self._weights.spread(gradients)
                spread = True
            for part in parts:
                part.step()

    def batches(self) -> Iterator[Batch | Exception]:
        """Read the next batch of each run; an error of one of them stands in its place."""
        for taker in self._takers:
            try:
                yield next_batch(taker.trainer)
            except Exception as error:
                yield error

    def close(self) -> None:
        """Let each run go on after the steps that were taken."""
        if not self._taken:
            return
        for parts in self._optimizers:
            if isinstance(parts, StackedAdamW):
                parts.close()
        losses = torch.stack(self._losses).unbind(1)  # (steps,) for each learner
        for number, taker in enumerate(self._takers):
            learner = taker.learner
            for loss in losses[number]:
                learner.losses.add(loss)
            for auxiliaries in self._auxiliaries:  # (learners,) for each step
                learner.auxiliaries.add(auxiliaries[number])
            if self._bad is not None:
                learner.guard.note(self._bad[number])
            learner.step.lr = float(taker.trainer.optimizers[0].param_groups[0]["lr"])
            taker.loop.skip(self._taken)
            count_steps(taker.trainer, self._taken)


def draw_as_alone(taker: Taker) -> None:
    """Set the random generators as they are in the step in progress of a run that takes it alone."""
    reseed(taker.learner.device, taker.loop.intervals.seed, "train", taker.loop.batches, taker.trainer.global_rank)
