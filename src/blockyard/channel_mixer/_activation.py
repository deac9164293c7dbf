"""Activations by name."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "identity": lambda x: x,
    "sigmoid": torch.sigmoid,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),  # the sigmoid closest to the normal distribution of gelu
    "relu": F.relu,
    "relu2": lambda x: torch.square(F.relu(x)),
    "silu": F.silu,
    "tanh": torch.tanh,
}
