"""Numbers: which precision, and on a CPU the faster one by measurement.

The flag of a CPU does not say whether bf16 is faster: casts cost more than they save in a narrow
model. So `auto` times both, and takes bf16 only where it clearly pays.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import torch
from torch import nn

from blockyard.contracts import Batch, Objective
from blockyard.engine.timing import choose

_DTYPES = {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}


def autocast(device: torch.device, precision: str) -> AbstractContextManager[object]:
    """The context in which a forward pass of this precision runs."""
    dtype = _DTYPES.get(str(precision))
    return torch.autocast(device.type, dtype=dtype or torch.bfloat16, enabled=dtype is not None)


def faster_on_cpu(model: nn.Module, objective: Objective, batch: Batch) -> dict[str, Any]:
    """Which of fp32 and bf16 autocast trains `model` faster here: precision, seconds of each, cached."""
    cpu = torch.device("cpu")
    ways = {name: partial(autocast, cpu, name) for name in ("32", "bf16-mixed")}
    return choose("precision", ways, model, objective, batch)
