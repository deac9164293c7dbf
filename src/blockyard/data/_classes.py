"""The class of each sample of a split."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from blockyard.contracts import Split

_WRAPPED = ("texts", "series", "sequences", "images", "split")  # where splits keep what has the targets
_CHUNK = 1024


def known_classes(split: Any) -> Tensor | None:
    """Returns the class of each sample (n,) int64 where a split keeps them in memory, else None."""
    target = getattr(split, "target", None)
    if isinstance(target, Tensor) and target.ndim == 1 and not target.is_floating_point():
        return target.long()
    for name in _WRAPPED:
        inner = getattr(split, name, None)
        if inner is not None and not isinstance(inner, Tensor):
            classes = known_classes(inner)
            if classes is not None and len(classes) == len(split):
                return classes
    return None


def classes_of(split: Split) -> Tensor:
    """Returns the class of each sample (n,) int64; reads the samples where the split does not keep them."""
    classes = known_classes(split)
    if classes is not None:
        return classes
    parts = []
    for order in torch.arange(len(split)).split(_CHUNK):
        target = split.batch(order, None).target
        if not isinstance(target, Tensor) or target.ndim != 1 or target.is_floating_point():
            raise ValueError("the data has no class for each sample")
        parts.append(target)
    return torch.cat(parts)
