"""Numbers: which precision, and on a CPU the faster one by measurement.

The flag of a CPU does not say whether bf16 is faster: casts cost more than they save in a narrow
model. So `auto` times both, and takes bf16 only where it clearly pays.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn

from blockyard.contracts import Batch, Objective
from blockyard.engine.timing import choose
from blockyard.ops.autocast import autocast


def faster_on_cpu(model: nn.Module, objective: Objective, batch: Batch) -> dict[str, Any]:
    """Which of fp32 and bf16 autocast trains `model` faster here: precision, seconds of each, cached."""
    cpu = torch.device("cpu")
    ways = {name: partial(autocast, cpu, name) for name in ("32", "bf16-mixed")}
    return choose("precision", ways, model, objective, batch)
