"""How much of the attention to a source lies on the part of it that a question asks for.

Source: Torralba, Isola and Freeman 2024, Foundations of Computer Vision, section 26.6: the token of an answer attends
    to the patches of the object in question
Equation: sum_{j in the region} w_j / sum_{j of the source} w_j, beside the share of its patches among all
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def region_patches(region: Tensor, grid: tuple[int, ...]) -> Tensor:
    """Returns which patches of a grid hold a pixel of a region, (M,) bool. region: (height, width) bool."""
    return F.adaptive_max_pool2d(region[None].float(), (grid[0], grid[1]))[0].flatten() > 0


def region_share(weights: Tensor, patches: Tensor) -> tuple[Tensor, float]:
    """Returns the share of each head's attention on the source that lies on `patches` (M,), (H,), and their share.

    weights: (H, M), of one query over the patches of the source
    """
    on_source = weights.sum(1).clamp_min(torch.finfo(weights.dtype).tiny)
    return weights[:, patches].sum(1) / on_source, float(patches.float().mean())
