"""Metrics that follow from a mean cross entropy, whose sums they share, or from the split alone."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torchmetrics import Metric

from blockyard.objective._metrics import MeanCrossEntropy, MeanNats


class _Derived(Metric):
    """A function of a mean cross entropy, whose sums it shares: updating this metric does nothing."""

    is_differentiable = False
    full_state_update = False

    def __init__(self, source: MeanCrossEntropy | MeanNats) -> None:
        super().__init__()
        self.source = source

    def update(self, prediction: Tensor, target: Tensor) -> None:
        """Does nothing: `source` is updated on its own."""


class Perplexity(_Derived):
    """The exponential of the mean cross entropy."""

    higher_is_better = False

    def compute(self) -> Tensor:
        """The perplexity, at least 1."""
        return self.source.compute().exp()


class Bits(_Derived):
    """The mean cross entropy in bits."""

    higher_is_better = False

    def compute(self) -> Tensor:
        """Nats over nats per bit."""
        return self.source.compute() / math.log(2)


class Given(Metric):
    """A value that the split has whatever is predicted."""

    is_differentiable = False
    full_state_update = False
    higher_is_better = False

    def __init__(self, value: float) -> None:
        super().__init__()
        self.value = value

    def update(self, prediction: Tensor, target: Tensor) -> None:
        """Does nothing."""

    def compute(self) -> Tensor:
        """The value."""
        return torch.tensor(self.value)


class BitsPerByte(_Derived):
    """Cross entropy in bits per byte of the text, comparable between tokenizers."""

    higher_is_better = False

    def __init__(self, source: MeanCrossEntropy, bytes_per_token: float) -> None:
        super().__init__(source)
        self.bytes_per_token = bytes_per_token

    def compute(self) -> Tensor:
        """Nats per token over bytes per token and nats per bit."""
        return self.source.compute() / (self.bytes_per_token * math.log(2))
