"""Which attention kernel a layer should take, from its settings alone."""

from __future__ import annotations

import torch
from torch import nn

from blockyard.contracts import Context, Position, TokenMixer
from blockyard.ops.flex import refusal
from blockyard.ops.kernel import EAGER, NO_DROPOUT, NO_GRADIENT
from blockyard.ops.mask import BIASED, OTHER_KEYS, PACKED, PADDED, STRICT, WINDOWED


def expected(
    ctx: Context,
    position: type[Position] | Position,
    device: str,
    dtype: torch.dtype,
    dropout: float = 0.0,
    mixer: TokenMixer | None = None,
) -> tuple[str, str]:
    """Returns the kernel that a forward pass over full sequences should take, and why none faster, without running it.

    mixer: its window, strict order, further keys and widths count too; None is plain attention
    """
    if not getattr(mixer, "fused", True):
        return "eager", EAGER
    reasons, width = [], max(getattr(mixer, "head_dim", ctx.head_dim), getattr(mixer, "value_dim", ctx.head_dim))
    biased = bool({"bias", "relate"} & position.acts_on)
    if biased:
        reasons.append(BIASED)
    if ctx.tokens.variable:
        reasons.append(PADDED)
    if ctx.data.packed:
        reasons.append(PACKED)
    if ctx.causal and getattr(mixer, "slots", None):
        reasons.append(OTHER_KEYS)
    if getattr(mixer, "window", None) is not None:
        reasons.append(WINDOWED)
    if getattr(mixer, "strict", False) and (reasons or not ctx.causal):
        reasons.append(STRICT)
    if reasons:
        refused = refusal(device, dtype, width, dropout)
        if refused is None:
            return "flex", "; ".join(reasons)
        reasons.append(refused)
    if device == "cuda":
        half = dtype in (torch.float16, torch.bfloat16)
        if half and not reasons and width <= 256:
            return "flash", ""
        if not half:
            reasons.append(f"flash takes float16 and bfloat16, not {str(dtype).removeprefix('torch.')}")
        return "efficient", "; ".join(reasons)
    if dropout:
        reasons.append(NO_DROPOUT)
    if biased and isinstance(position, nn.Module) and list(position.parameters()):
        reasons.append(NO_GRADIENT)
    slow = NO_DROPOUT in reasons or NO_GRADIENT in reasons
    return "math" if slow else "flash", "; ".join(reasons)
