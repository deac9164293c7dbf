"""Ends a run before a step with a loss or gradients that are not finite, and never lets such weights be saved."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor


class NotFiniteError(RuntimeError):
    """The loss or the gradient norm became infinite or NaN."""

    def __init__(self, step: int, what: str, taken: bool = False) -> None:
        end = "nothing was saved" if taken else "the step was not taken and nothing was saved"
        super().__init__(f"{what} at step {step}; {end}")
        self.step = step


def check_weights(model: nn.Module, step: int) -> None:
    """Raise NotFiniteError if a weight of `model` is not finite after `step`: an optimizer or a callback may do that.

    A model that is saved once is resumed, evaluated and compared ever after.
    """
    for name, weight in model.named_parameters():
        local = weight.to_local() if isinstance(weight, DTensor) else weight
        if not torch.isfinite(local.detach()).all():
            raise NotFiniteError(step, f"the weight {name} is not finite", taken=True)


class NanGuard:
    """Checks the loss and the gradient norm of every step.

    On a CPU the check is immediate and the step is not taken. On a GPU the check would stall the pipeline at every
    step: the number of the first bad step stays on the device, and `raise_if_bad`, called before anything is logged
    or saved, raises. Everything on the disk is from before.

    tolerant: fp16 training skips steps with infinite gradients by itself; only the loss counts
    """

    def __init__(self, *, tolerant: bool = False) -> None:
        self.tolerant = tolerant
        self._first: Tensor | None = None  # number of the first bad step, -1 while there is none

    def check(self, step: int, loss: Tensor, norm: Tensor) -> None:
        """Check step number `step` (from 0). Raises NotFiniteError on a CPU."""
        if norm.device.type == "cpu":
            if not self.tolerant and not math.isfinite(norm.item()):
                if math.isfinite(loss.item()):
                    raise NotFiniteError(step + 1, f"the gradient norm is {norm.item()}")
                raise NotFiniteError(step + 1, f"the loss is {loss.item()}")
            # Several processes have only the norm in common: one that raised alone would leave the others waiting.
            if not math.isfinite(loss.item()) and not torch.distributed.is_initialized():
                raise NotFiniteError(step + 1, f"the loss is {loss.item()}")
            return
        bad = ~torch.isfinite(loss if self.tolerant else norm + loss)
        self.note(torch.where(bad, step + 1, -1))

    def note(self, first: Tensor) -> None:
        """Note the number of the first bad step of some, () int64 on the device; -1 where all were good."""
        if self._first is None:
            self._first = first
        else:
            self._first = torch.where(self._first < 0, first, self._first)

    def raise_if_bad(self) -> None:
        """Raise NotFiniteError if any step so far was bad."""
        if self._first is not None:
            step = int(self._first)
            if step >= 0:
                raise NotFiniteError(step, "the loss or the gradient norm is not finite")
