"""Mixed precision: the autocast context of a precision, and its name."""

from __future__ import annotations

from contextlib import AbstractContextManager

import torch

_DTYPES = {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}


def autocast(device: torch.device, precision: str) -> AbstractContextManager[object]:
    """Returns the context in which a forward pass of this precision runs."""
    dtype = _DTYPES.get(str(precision))
    return torch.autocast(device.type, dtype=dtype or torch.bfloat16, enabled=dtype is not None)
