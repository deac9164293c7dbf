"""Logits that are not computed yet: the last layer of a head and its inputs, for a loss that works by chunks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

LOGITS = 2**24  # of a micro-batch, from which a head leaves them to the loss: 64 MiB in float32
# A GPU computes all logits at a time twice as fast as by chunks (docs/performance.md), so that chunks only save memory
# there: all logits, with what the loss makes of them, may take this share of the memory of the device.
SHARE_OF_GPU = 1 / 8
BYTES_A_LOGIT = 10  # in bfloat16, in float32, and the gradient in float32
GPU_CHUNK = 2**28  # logits of a chunk on a GPU: 1 GiB in float32


class Projection(NamedTuple):
    """The logits of tokens: cap(scale (x W^T + b)), with cap of `soft_cap`.

    x: (..., D); weight: (V, D); bias: (V,) or None
    scale: factor on the logits; softcap: bound of their size, or None
    """

    x: Tensor
    weight: Tensor
    bias: Tensor | None = None
    scale: float = 1.0
    softcap: float | None = None

    def logits(self) -> Tensor:
        """Return all logits: (..., V)."""
        return soft_cap(F.linear(self.x, self.weight, self.bias), self.scale, self.softcap)


def soft_cap(logits: Tensor, scale: float, softcap: float | None) -> Tensor:
    """Return scale z, or softcap tanh(scale z / softcap), of logits z of any shape."""
    if softcap is not None:
        return softcap * torch.tanh(logits * (scale / softcap))
    return logits if scale == 1.0 else logits * scale


class _ProjectionState:
    """Return whether heads may leave the logits to the loss."""

    allowed = False


@contextmanager
def deferred(allowed: bool = True) -> Iterator[None]:
    """Let a head return a `Projection` in place of many logits inside this context, if `allowed`."""
    before = _ProjectionState.allowed
    _ProjectionState.allowed = allowed
    try:
        yield
    finally:
        _ProjectionState.allowed = before


def most_logits(device: torch.device) -> int:
    """Return the least number of logits that a head on this device leaves to the loss."""
    if device.type != "cuda" or not torch.cuda.is_available():
        return LOGITS
    return int(torch.cuda.get_device_properties(device).total_memory * SHARE_OF_GPU / BYTES_A_LOGIT)


def logits_of_chunk(device: torch.device) -> int:
    """Return the number of logits that a loss by chunks computes at a time on this device."""
    return GPU_CHUNK if device.type == "cuda" else LOGITS // 2


def defers(x: Tensor, outputs: int) -> bool:
    """Return whether a head leaves the logits of x (..., D) to the loss: inside `deferred`, if they are many."""
    return _ProjectionState.allowed and x.numel() // x.shape[-1] * outputs >= most_logits(x.device)
