"""Ends a run whose loss or gradients are no numbers, before the update, and forbids saving after."""

from __future__ import annotations

import math

import torch
from torch import Tensor


class NotFinite(RuntimeError):  # noqa: N818 - it says what happened
    """The loss or the gradient norm became infinite or NaN."""

    def __init__(self, step: int, what: str) -> None:
        super().__init__(f"{what} at step {step}; the update was not made and nothing was saved")
        self.step = step


class Guard:
    """Looks at every update's loss and gradient norm.

    On a CPU the answer is known at once and the update is not made. On a GPU asking would stop the
    pipeline at every step: the first bad update's number is kept on the device, and `settle`, called
    before anything is logged or saved, raises. What is on the disk is always from before.

    tolerant: fp16 training skips updates with infinite gradients by itself; only the loss counts
    """

    def __init__(self, *, tolerant: bool = False) -> None:
        self.tolerant = tolerant
        self._first: Tensor | None = None  # number of the first bad update, -1 while there is none

    def look(self, update: int, loss: Tensor, norm: Tensor) -> None:
        """Judge update number `update` (from 0). Raises NotFinite on a CPU."""
        if norm.device.type == "cpu":
            if not self.tolerant and not math.isfinite(norm.item()):
                what = "the gradient norm" if math.isfinite(loss.item()) else "the loss"
                value = norm if math.isfinite(loss.item()) else loss
                raise NotFinite(update + 1, f"{what} is {value.item()}")
            if not math.isfinite(loss.item()) and not torch.distributed.is_initialized():
                raise NotFinite(update + 1, f"the loss is {loss.item()}")
            return
        bad = ~torch.isfinite(loss if self.tolerant else norm + loss)
        if self._first is None:
            self._first = torch.full_like(bad, -1, dtype=torch.int64)
        self._first = torch.where(bad & (self._first < 0), update + 1, self._first)

    def settle(self) -> None:
        """Raises NotFinite if any update so far was bad."""
        if self._first is not None:
            step = int(self._first)
            if step >= 0:
                raise NotFinite(step, "the loss or the gradient norm is not finite")
