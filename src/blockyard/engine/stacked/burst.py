"""Steps that runs take together while nothing is due in any of them: no log, no evaluation, no checkpoint.

Lightning and the hooks around a step cost each run as much as a small model does. Between two steps at which something
is due, these steps go without: batches are read, losses and gradients computed, clipped and applied here, and the
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

# One optimizer for stacked weights.

_SAME = ("lr", "betas", "eps", "weight_decay", "amsgrad", "maximize", "fused", "foreach", "capturable")


class StackedAdamW:
    """AdamW over stacked weights in place of the AdamW of each learner, whose states become parts of stacked ones.

    Its arithmetic goes element by element, so that the weights of each learner get the bits of its own optimizer.
    """

    def __init__(self, own: Sequence[torch.optim.AdamW], weights: StackedWeights) -> None:
        self._own = own
        groups: list[dict[str, Any]] = []
        self._steps: list[list[Tensor]] = []  # for each weight, the counters of the learners
        stacks = weights.by_parameter()
        for number, group in enumerate(own[0].param_groups):
            groups.append({"params": [stacks[id(weight)] for weight in group["params"]]})
            groups[-1] |= {name: group[name] for name in _SAME}
            assert all(len(each.param_groups[number]["params"]) == len(group["params"]) for each in own)
        self._optimizer = torch.optim.AdamW(groups)
        for number, joined in enumerate(self._optimizer.param_groups):
            for index, stack in enumerate(joined["params"]):
                states = [each.state[each.param_groups[number]["params"][index]] for each in own]
                if not states[0]:  # without a gradient so far
                    continue
                joint = self._optimizer.state[stack]
                joint["step"] = states[0]["step"].clone()
                for name in states[0]:
                    if name != "step":
                        joint[name] = torch.stack([state[name] for state in states])
                        for learner, state in enumerate(states):
                            state[name] = joint[name][learner]
                self._steps.append([joint["step"], *(state["step"] for state in states)])

    @staticmethod
    def fits(own: Sequence[torch.optim.Optimizer]) -> TypeGuard[Sequence[torch.optim.AdamW]]:
        """Whether one step can serve all: optimizers of this class with equal options after as many steps."""
        if any(type(each) is not torch.optim.AdamW for each in own):
            return False
        options = [[[group[name] for name in _SAME] for group in each.param_groups] for each in own]
        # Of its own parameters: the state may be shared with another optimizer.
        counts = [
            [
                float(each.state[weight]["step"])
                for group in each.param_groups
                for weight in group["params"]
                if each.state.get(weight)
            ]
            for each in own
        ]
        return all(each == options[0] for each in options) and all(each == counts[0] for each in counts)

    @property
    def alike(self) -> bool:
        """Whether all have one rate and one decay still: schedules that begin alike may differ later."""
        rates = [[(group["lr"], group["weight_decay"]) for group in each.param_groups] for each in self._own]
        return all(each == rates[0] for each in rates)

    def apart(self) -> Sequence[torch.optim.Optimizer]:
        """The optimizers of the learners, after the steps that were taken together."""
        self.close()
        return self._own

    def step(self, gradients: dict[int, Tensor | None]) -> None:
        """Take a step. gradients: by the `id` of the stacked weight"""
        for group, first in zip(self._optimizer.param_groups, self._own[0].param_groups, strict=True):
            group["lr"], group["weight_decay"] = first["lr"], first["weight_decay"]
            for stack in group["params"]:
                stack.grad = gradients[id(stack)]
        self._optimizer.step()

    def close(self) -> None:
        """Give the optimizers of the learners the number of steps."""
        for joint, *own in self._steps:
            for each in own:
                each.copy_(joint)


# The steps.


@dataclass
class Taker:
    """A run that takes steps: its learner, the loop around its steps, and what `StackedMember` knows of both."""

    learner: Learner
    loop: LoopCallback

    @property
    def trainer(self) -> Any:
        """Lightning's."""
        return self.learner.trainer

    @property
    def quiet(self) -> int:
        """The number of steps from the one in progress on after which nothing is due."""
        if self.trainer.lr_scheduler_configs:
            return 0
        return self.loop.quiet_steps()

    def parts(self) -> list[torch.optim.Optimizer]:
        """The optimizers that its optimizer consists of."""
        optimizer = self.trainer.optimizers[0]
        return optimizer.parts if type(optimizer) is CombinedOptimizer else [optimizer]


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
        for own in zip(*(taker.parts() for taker in takers), strict=True):
            self._optimizers.append(StackedAdamW(own, weights) if StackedAdamW.fits(own) else list(own))

    @property
    def interrupted(self) -> bool:
        """Whether a signal stops one of the runs."""
        return any(taker.loop.interrupts.signum is not None for taker in self._takers)

    def apply(self, result: StackedResult) -> bool:
        """Take the step that `result` belongs to. Returns whether it did: not where a value is not finite, on a CPU."""
        gradients = {name: stack for name, stack in result.gradients.items() if stack is not None}
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
        finite = torch.isfinite(values)
        if values.device.type == "cpu":
            return bool(finite.all())
        numbers = torch.tensor([taker.learner.step.number + 1 for taker in self._takers], device=values.device)
        first = torch.where(finite, -1, numbers)
        self._bad = first if self._bad is None else torch.where(self._bad < 0, first, self._bad)
        return True

    def _step(self, gradients: dict[str, Tensor | None]) -> None:
        by_stack = {id(stack): gradients.get(name) for name, stack in self._weights.weights.items()}
        spread = False
        for number, each in enumerate(self._optimizers):
            if isinstance(each, StackedAdamW):
                if each.alike:
                    each.step(by_stack)
                    continue
                each = self._optimizers[number] = list(each.apart())
            if not spread:
                self._weights.spread(gradients)
                spread = True
            for own in each:
                own.step()

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
        for each in self._optimizers:
            if isinstance(each, StackedAdamW):
                each.close()
        losses = torch.stack(self._losses).unbind(1)  # (steps,) for each learner
        auxiliaries = torch.stack(self._auxiliaries).unbind(1) if self._auxiliaries else ()
        for number, taker in enumerate(self._takers):
            learner = taker.learner
            for loss in losses[number]:
                learner.losses.add(loss)
            for auxiliary in auxiliaries[number] if auxiliaries else ():
                learner.auxiliaries.add(auxiliary)
            if self._bad is not None:
                learner.guard.note(self._bad[number])
            learner.step.lr = float(taker.trainer.optimizers[0].param_groups[0]["lr"])
            taker.loop.skip(self._taken)
            count_steps(taker.trainer, self._taken)


def draw_as_alone(taker: Taker) -> None:
    """Set the random generators as they are in the step in progress of a run that takes it alone."""
    reseed(taker.learner.device, taker.loop.intervals.seed, "train", taker.loop.batches, taker.trainer.global_rank)
