"""Every random stream, set anew before each step from (seed, stream, step, rank).

A stream that is a function of those numbers has no state to save: a resumed run draws what the
undisturbed one would have drawn, whatever else drew from the same generators in between.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

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


@contextmanager
def undisturbed() -> Iterator[None]:
    """Whatever is drawn inside, the generators stand afterwards where they stood before."""
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []
    python, numpy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=devices):
        yield
    random.setstate(python)
    np.random.set_state(numpy)
