"""A batch of zeros of the shape a model was built for, where somebody asks about its cost or its kernels."""

from __future__ import annotations

import torch
from torch import Tensor

from blockyard.contracts import Context


def example(ctx: Context, device: torch.device | str, batch: int = 1) -> dict[str, Tensor]:
    """What a model of `ctx` is called with: full rows, with the lengths, segments and source that its data brings."""
    tokens, data, found = ctx.tokens, ctx.data, {}
    with torch.device(device):
        if tokens.vocabulary is None:
            found["inputs"] = torch.zeros((batch, *data.shape))
        else:
            found["inputs"] = torch.zeros((batch, tokens.max_len), dtype=torch.long)
        if tokens.variable:
            found["lengths"] = torch.full((batch,), tokens.max_len)
        if data.packed:
            found["segment"] = torch.zeros((batch, tokens.max_len), dtype=torch.long)
        if data.source is not None:
            found["source"] = torch.zeros((batch, *data.source), dtype=torch.long)
            if tokens.variable:
                found["source_lengths"] = torch.full((batch,), data.source[0])
    return found
