"""Logits that are not computed yet: the last layer of a head and what it reads, for a loss that works by chunks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

# Logits of a micro-batch from which a head leaves them to the loss: 64 MiB in float32, and 2 GiB on a GPU, where small
# products and many launches cost more than memory does.
LOGITS = 2**24
LOGITS_ON_GPU = 2**29


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
        """Returns all of them: (..., V)."""
        return soft_cap(F.linear(self.x, self.weight, self.bias), self.scale, self.softcap)


def soft_cap(logits: Tensor, scale: float, softcap: float | None) -> Tensor:
    """Returns scale z, or softcap tanh(scale z / softcap), of logits z of any shape."""
    if softcap is not None:
        return softcap * torch.tanh(logits * (scale / softcap))
    return logits if scale == 1.0 else logits * scale


class _ProjectionState:
    """Whether heads may leave the logits to the loss."""

    allowed = False


@contextmanager
def deferred(allowed: bool = True) -> Iterator[None]:
    """Inside this context a head may return a `Projection` in place of many logits, where `allowed`."""
    before = _ProjectionState.allowed
    _ProjectionState.allowed = allowed
    try:
        yield
    finally:
        _ProjectionState.allowed = before


def most_logits(device: torch.device) -> int:
    """Returns the number of logits from which a head on this device leaves them to the loss."""
    return LOGITS_ON_GPU if device.type == "cuda" else LOGITS


def defers(x: Tensor, outputs: int) -> bool:
    """Returns whether a head leaves the logits of x (..., D) to the loss: inside `deferred`, if they are many."""
    return _ProjectionState.allowed and x.numel() // x.shape[-1] * outputs >= most_logits(x.device)
