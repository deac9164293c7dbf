"""Every random stream, set anew before each step from (seed, stream, step, rank).

A stream that is a function of those numbers has no state to save: a resumed run draws what the
undisturbed one would have drawn, whatever else drew from the same generators in between.
"""

from __future__ import annotations

import random

import numpy as np
import torch

from blockyard.data._order import mix


def reseed(device: torch.device, seed: int, stream: str, step: int, rank: int = 0) -> None:
    """Set Python's, NumPy's and torch's generators (the CPU's and `device`'s)."""
    number = mix(stream, seed, step, rank)
    torch.random.default_generator.manual_seed(number)
    random.seed(number)
    np.random.seed(number & 0xFFFFFFFF)
    if device.type == "cuda":
        torch.cuda.manual_seed(number)
