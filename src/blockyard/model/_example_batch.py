"""A batch of zeros in the shape a model was built for, to measure its cost or to record its kernels."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from blockyard.contracts import Context, DataSpec, Inputs, TokenSpec


def example(ctx: Context, device: torch.device | str, batch: int = 1) -> Inputs:
    """Return inputs of a model of `ctx`: full sequences, with lengths, segments, pairs and source of the data."""
    tokens = ctx.tokens
    data = ctx.data
    facts: dict[str, Any] = {}
    with torch.device(device):
        inputs = _zeros(tokens, data, batch)
        if tokens.variable:
            facts["lengths"] = torch.full((batch,), inputs.shape[1])
        if tokens.pairs is not None:
            size = (batch, tokens.max_len, tokens.max_len, len(tokens.pairs))
            facts["pairs"] = torch.zeros(size, dtype=torch.uint8)
        if data.packed:
            facts["segment"] = torch.zeros((batch, tokens.max_len), dtype=torch.long)
        if data.source is not None:
            source = facts["source"] = _zeros(ctx.source_tokens, data.source, batch)
            if ctx.source_tokens.variable:
                facts["source_lengths"] = torch.full((batch,), source.shape[1])
    return Inputs(inputs, **facts)


def full(ctx: Context) -> Context:
    """Return the context with sequences of one length, for an `example` without padding."""
    source = None if ctx.source is None else replace(ctx.source, variable=False)
    return replace(ctx, tokens=replace(ctx.tokens, variable=False), source=source)


def _zeros(tokens: TokenSpec, data: DataSpec, batch: int) -> Tensor:
    if tokens.vocabulary is not None:
        return torch.zeros((batch, tokens.max_len), dtype=torch.long)
    if tokens.ahead and tokens.patch is not None:
        return torch.zeros((batch, tokens.max_len, math.prod(tokens.patch)), dtype=torch.long)
    dtype = torch.float32 if tokens.codes is None else torch.long
    return torch.zeros((batch, *data.shape), dtype=dtype)
