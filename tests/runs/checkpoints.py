"""Small checkpoints."""

from __future__ import annotations

import resource
import signal
from typing import Any

import pytest
import torch

from blockyard.runs.checkpoint_io import AtomicCheckpointIO


def tiny_content(step: int, size: int = 2000) -> dict[str, Any]:
    """What Lightning would save after a number of steps, with `size` weights."""
    weights = torch.full((size,), float(step))
    return {"global_step": step, "state_dict": {"model.w": weights, "model.n": torch.tensor(step)}, "loops": {"a": [1]}}


def checkpoint_io() -> AtomicCheckpointIO:
    """The checkpoint I/O of one run."""
    return AtomicCheckpointIO(identity="abc", seed=3)


def save_over_the_file_limit(path: str) -> None:
    """Saves twice, then sets the process's limit on file sizes below the third checkpoint's."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    io = checkpoint_io()
    io.save_checkpoint(tiny_content(1), path)
    io.save_checkpoint(tiny_content(2), path)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
    with pytest.raises(OSError, match="older ones are unchanged"):
        io.save_checkpoint(tiny_content(3, 100_000), path)
