"""Mixed precision: the autocast context of a precision, and full precision inside it.

Full precision is for operations that half precision would break, and for the residual stream.
"""

from __future__ import annotations

from contextlib import AbstractContextManager

import torch
from torch import Tensor

_DTYPES = {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}


def autocast(device: torch.device, precision: str) -> AbstractContextManager[object]:
    """Return the context in which a forward pass of this precision runs."""
    dtype = _DTYPES.get(str(precision))
    return torch.autocast(device.type, dtype=dtype or torch.bfloat16, enabled=dtype is not None)


def full_precision(like: Tensor) -> torch.autocast:
    """Return a context that disables autocast on the device of `like`: matmuls keep the types they are given."""
    return torch.autocast(_device(like), enabled=False)


def as_stream(x: Tensor) -> Tensor:
    """Return x in float32 if autocast is on.

    An embedder that ends in a projection returns half precision there. The residual stream, to which every block adds,
    must not be kept in it.
    """
    if torch.is_autocast_enabled(_device(x)):
        return x.float()
    return x


def _device(x: Tensor) -> str:
    """Return the device type for autocast, which does not know the meta device."""
    return "cpu" if x.device.type == "meta" else x.device.type
