"""Seeds every random generator before each batch from (seed, stream, batch, rank).

Random numbers that are a function of those four have no state to save: a resumed run draws the same as an
uninterrupted one, even if other code drew from the generators in between. Draws aside restore them.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from blockyard.data.splits.order import mix


def reseed(device: torch.device, seed: int, stream: str, batch: int, rank: int = 0) -> None:
    """Seed Python's, NumPy's and torch's generators (the CPU's and `device`'s)."""
    number = mix(stream, seed, batch, rank)
    torch.random.default_generator.manual_seed(number)
    random.seed(number)
    np.random.seed(number & 0xFFFFFFFF)
    if device.type == "cuda":
        torch.cuda.manual_seed(number)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Restore the states of Python's, NumPy's and torch's generators when the context ends."""
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []
    python, numpy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=devices):
        yield
    random.setstate(python)
    np.random.set_state(numpy)
