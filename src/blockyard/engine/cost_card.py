"""What a run costs: parameters, FLOPs, time, memory, and the attention kernels that were used.

Source: FLOPs are counted by torch.utils.flop_counter, two per multiply-add of every matmul,
convolution and attention, and 5 n log2 n for a Fourier transform of n numbers (half of it for real ones),
as FFTW reports it; elementwise work is not counted, and a causal row counts like a full one. Each gradient of a
convolution takes as many as the convolution itself, whatever its groups.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from blockyard.contracts import Batch, Objective, Split
from blockyard.ops.flops import counter
from blockyard.ops.kernel import record
from blockyard.ops.rng import undisturbed


def parameters(model: nn.Module) -> dict[str, int]:
    """How many numbers the model learns, and holds in all; shared ones count once."""
    every = list(model.parameters())
    return {
        "trainable": sum(p.numel() for p in every if p.requires_grad),
        "total": sum(p.numel() for p in every),
    }


def flops_per_sample(model: nn.Module, objective: Objective, batch: Batch) -> dict[str, int]:
    """FLOPs of one forward pass, and of forward and backward, per sample of `batch`.

    Runs both once on the device of `batch`; gradients are cleared, nothing random is disturbed.
    """
    batch = objective.prepare(batch)
    with undisturbed():
        with counter() as forward:
            prediction = model(**batch.arguments())
        loss = objective.loss(prediction, batch.target)
        with counter() as backward:
            loss.backward()
    model.zero_grad(set_to_none=True)
    once = forward.get_total_flops()
    both = once + backward.get_total_flops()
    return {"forward": once // len(batch), "training": both // len(batch)}


def two_rows(split: Split, batch_size: int) -> Batch:
    """What FLOPs are counted of: two rows, as wide as padding makes the first `batch_size` samples.

    Two, because batch norm over a map of one place wants more than one.
    """
    batch = split.batch(torch.arange(max(2, batch_size)) % min(batch_size, len(split)), None)
    return Batch(*(None if tensor is None else tensor[:2] for tensor in batch.tensors()))


def kernels(model: nn.Module, objective: Objective, split: Split, device: torch.device) -> list[dict[str, Any]]:
    """Layer by layer, the attention kernel a training step takes and why no faster one."""
    batch = objective.prepare(split.batch(torch.arange(min(2, len(split))), None).to(device))
    kept = [(buffer, buffer.clone()) for buffer in model.buffers()]
    with undisturbed():
        found = [dict(entry) for entry in record(model, **batch.arguments())]
    with torch.no_grad():
        for buffer, value in kept:  # running statistics, which a batch of two samples has no say in
            buffer.copy_(value)
    return found


def slow_layers(records: Sequence[dict[str, Any]]) -> list[str]:
    """The layers that attend without a flash kernel, each with the reason."""
    fast = ("flash", "cudnn", "flex")
    slow = [entry for entry in records if entry["kernel"] not in (*fast, "none")]
    return [f"{entry['layer']} takes {entry['kernel']} ({entry['reason']})" for entry in slow]


def speed(windows: Sequence[float], batch_size: int, tokens: int) -> dict[str, float | None]:
    """Median seconds of a step over the logged stretches, and samples and tokens per second from it.

    The first stretch pays for compilation and cold caches and is left out where there are others.
    """
    kept = windows[1:] or windows
    if not kept:
        return {"step_seconds": None, "samples_per_second": None, "tokens_per_second": None}
    median = statistics.median(kept)
    rate = batch_size / median
    return {"step_seconds": median, "samples_per_second": rate, "tokens_per_second": rate * tokens}


def load() -> float | None:
    """Processes that wanted a core of this machine over the last minute, this run's own among them."""
    try:
        return round(os.getloadavg()[0], 2)
    except (AttributeError, OSError):  # not every system counts them
        return None
