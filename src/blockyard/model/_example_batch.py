"""A batch of zeros in the shape a model was built for, to measure its cost or to record its kernels."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor, nn

from blockyard.contracts import Context, DataSpec, TokenSpec
from blockyard.ops import kernel


def example(ctx: Context, device: torch.device | str, batch: int = 1) -> dict[str, Tensor]:
    """Returns the arguments of a forward pass: full sequences, with lengths, segments, pairs and source of the data."""
    tokens, data, arguments = ctx.tokens, ctx.data, {}
    with torch.device(device):
        arguments["inputs"] = _zeros(tokens, data, batch)
        if tokens.variable:
            arguments["lengths"] = torch.full((batch,), arguments["inputs"].shape[1])
        if tokens.pairs is not None:
            size = (batch, tokens.max_len, tokens.max_len, len(tokens.pairs))
            arguments["pairs"] = torch.zeros(size, dtype=torch.uint8)
        if data.packed:
            arguments["segment"] = torch.zeros((batch, tokens.max_len), dtype=torch.long)
        if data.source is not None:
            arguments["source"] = _zeros(ctx.source_tokens, data.source, batch)
            if ctx.source_tokens.variable:
                arguments["source_lengths"] = torch.full((batch,), arguments["source"].shape[1])
    return arguments


def full(ctx: Context) -> Context:
    """Returns the context whose `example` has sequences without padding, and so no lengths."""
    source = None if ctx.source is None else replace(ctx.source, variable=False)
    return replace(ctx, tokens=replace(ctx.tokens, variable=False), source=source)


def _zeros(tokens: TokenSpec, data: DataSpec, batch: int) -> Tensor:
    if tokens.vocabulary is not None:
        return torch.zeros((batch, tokens.max_len), dtype=torch.long)
    if tokens.ahead and tokens.patch is not None:
        return torch.zeros((batch, tokens.max_len, math.prod(tokens.patch)), dtype=torch.long)
    return torch.zeros((batch, *data.shape), dtype=torch.float32 if tokens.codes is None else torch.long)


def record_kernels(model: nn.Module, inputs: Tensor | None, **arguments: Tensor | None) -> list[kernel.Record]:
    """Returns the kernels of a forward pass over a batch, or over `example` where `inputs` is None."""
    if inputs is not None:
        return kernel.record(model, inputs, **arguments)
    ctx = model.ctx
    assert isinstance(ctx, Context)
    return kernel.record(model, **example(ctx, next(model.parameters()).device))
