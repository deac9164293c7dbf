"""Which attention kernel is used: chosen call by call, or one by name for all calls (`trainer.attention`).

auto     the fastest that can serve, as `ops.attend` describes
sdpa     torch's scaled_dot_product_attention, with a mask where one is needed
flex     FlexAttention, on CUDA
online   the online softmax by chunks of keys (`ops.online`), whose memory grows with N and not with N^2
eager    the formula, step by step: O(N^2) memory
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from blockyard.errors import UserError

Kernel = Literal["auto", "sdpa", "flex", "online", "eager"]


class _State:
    """The kernel in force."""

    kernel: Kernel = "auto"


def selected() -> Kernel:
    """Returns the name of the kernel in force; "auto" outside `attention_kernel`."""
    return _State.kernel


@contextmanager
def attention_kernel(name: Kernel) -> Iterator[None]:
    """Inside this context all attention takes the kernel of this name, and is refused where that cannot serve."""
    before = _State.kernel
    _State.kernel = name
    try:
        yield
    finally:
        _State.kernel = before


def refuse(name: str, layer: str, reason: str | None) -> None:
    """Raises UserError where there is a reason against a kernel that was chosen by name."""
    if reason is not None:
        where = f" in {layer}" if layer else ""
        raise UserError(f"trainer.attention={name} cannot serve{where}: {reason}; use trainer.attention=auto")
