"""Leaving autocast where half precision would lose what an operation promises."""

from __future__ import annotations

import torch
from torch import Tensor


def full_precision(like: Tensor) -> torch.autocast:
    """A context in which matmuls keep the types they are given, on the device of `like`."""
    return torch.autocast(like.device.type if like.device.type != "meta" else "cpu", enabled=False)
