"""Logits that a head leaves to the loss: not computed yet, or computed without their factor and bound."""

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
BYTES_A_COMPILED_LOGIT = 4  # in bfloat16, and the gradient in bfloat16
GPU_CHUNK = 2**28  # logits of a chunk on a GPU: 1 GiB in float32
FEWEST_COMPILED = 2**20  # logits of a micro-batch; a loss of fewer is not worth the seconds that its compilation takes
ALIGNED = 64  # the tensor cores of a GPU multiply matrices whose sides are multiples of it at their full rate


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

    def without_last(self, tokens: int) -> Projection:
        """Return the projection without the last tokens of each sequence. x: (B, N, D)."""
        return self._replace(x=self.x[:, :-tokens])

    def raw_logits(self) -> RawLogits:
        """Return the product alone, padded to a multiple of `ALIGNED` outputs."""
        weight, bias = self.weight, self.bias
        missing = -len(weight) % ALIGNED
        if missing:
            weight = F.pad(weight, (0, 0, 0, missing))
            bias = None if bias is None else F.pad(bias, (0, missing))
        return RawLogits(F.linear(self.x, weight, bias), len(self.weight), self.scale, self.softcap)


class RawLogits(NamedTuple):
    """Logits before their factor and bound, which a compiled loss applies while it reads them.

    raw: (..., W) with W >= num_classes; outputs from `num_classes` on are padding
    scale: factor on the logits; softcap: bound of their size, or None
    """

    raw: Tensor
    num_classes: int
    scale: float = 1.0
    softcap: float | None = None

    def without_last(self, tokens: int) -> RawLogits:
        """Return the logits without the last tokens of each sequence. raw: (B, N, W)."""
        return self._replace(raw=self.raw[:, :-tokens])

    def logits(self) -> Tensor:
        """Return the logits: (..., num_classes)."""
        raw = self.raw
        if self.num_classes < raw.shape[-1]:
            raw = raw[..., : self.num_classes]
        return soft_cap(raw, self.scale, self.softcap)


def soft_cap(logits: Tensor, scale: float, softcap: float | None) -> Tensor:
    """Return scale z, or softcap tanh(scale z / softcap), of logits z of any shape."""
    if softcap is not None:
        return softcap * torch.tanh(logits * (scale / softcap))
    return logits if scale == 1.0 else logits * scale


class _State:
    """The form in which heads may leave logits to the loss, and the form of the loss."""

    deferred = False
    compiled = False
    raw = False


@contextmanager
def deferred(allowed: bool = True) -> Iterator[None]:
    """Let a head return a `Projection` in place of many logits inside this context, if `allowed`."""
    before = _State.deferred
    _State.deferred = allowed
    try:
        yield
    finally:
        _State.deferred = before


@contextmanager
def compiled_loss(enabled: bool = True, *, raw_logits: bool = True) -> Iterator[None]:
    """Compute the loss of many logits as one compiled function inside this context, if `enabled`.

    raw_logits: let heads leave factor and bound of the logits to that function
    """
    before = _State.compiled, _State.raw
    _State.compiled = enabled
    _State.raw = enabled and raw_logits
    try:
        yield
    finally:
        _State.compiled, _State.raw = before


def compiles(num_logits: int) -> bool:
    """Return whether the loss of so many logits is compiled: inside `compiled_loss`, if they are many."""
    return _State.compiled and num_logits >= FEWEST_COMPILED


def leaves_raw(x: Tensor, outputs: int) -> bool:
    """Return whether a head leaves factor and bound of the logits of x (..., D) to a loss that is compiled."""
    return _State.raw and compiles(x.numel() // x.shape[-1] * outputs)


def most_logits(device: torch.device) -> int:
    """Return the least number of logits that a head on this device leaves to the loss."""
    if device.type != "cuda" or not torch.cuda.is_available():
        return LOGITS
    bytes_a_logit = BYTES_A_COMPILED_LOGIT if _State.compiled else BYTES_A_LOGIT
    return int(torch.cuda.get_device_properties(device).total_memory * SHARE_OF_GPU / bytes_a_logit)


def logits_of_chunk(device: torch.device) -> int:
    """Return the number of logits that a loss by chunks computes at a time on this device."""
    return GPU_CHUNK if device.type == "cuda" else LOGITS // 2


def defers(x: Tensor, outputs: int) -> bool:
    """Return whether a head leaves the logits of x (..., D) to the loss: inside `deferred`, if they are many."""
    return _State.deferred and x.numel() // x.shape[-1] * outputs >= most_logits(x.device)
