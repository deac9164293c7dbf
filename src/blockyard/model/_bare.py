"""The model of bare: tokens go straight to the head."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from blockyard.contracts import Context, Parts, Rate, TokenMixer
from blockyard.model._compatibility import check_placed
from blockyard.model._example_batch import example
from blockyard.model._positions import place, placing_parts
from blockyard.ops import kernel


class Bare(nn.Module):
    """forward(inputs, lengths) -> (B, V) or (B, N, V)."""

    def __init__(self, ctx: Context, parts: Parts, *, dropout: Rate) -> None:
        super().__init__()
        self.ctx = ctx
        self.embedder, self.position = placing_parts(ctx, parts)
        self.dropout = nn.Dropout(dropout)
        self.head = parts.head(ctx)
        self.head.tie(self.embedder)
        check_placed(ctx, self.position, "model=bare mixes nothing")

    @property
    def mixers(self) -> list[TokenMixer]:
        """There are none."""
        return []

    def forward(self, inputs: Tensor, lengths: Tensor | None = None, segment: Tensor | None = None) -> Tensor:
        """Predictions for a batch."""
        return self.steps(inputs, lengths, segment)["prediction"]

    def steps(self, inputs: Tensor, lengths: Tensor | None = None, segment: Tensor | None = None) -> dict[str, Any]:
        """Every intermediate of a forward pass by name: embedded, placed (B, N, D), seq, prediction."""
        x, seq = self.embedder(inputs, lengths, segment, 0)
        if torch.is_autocast_enabled(inputs.device.type if inputs.device.type != "meta" else "cpu"):
            x = x.float()
        placed = self.dropout(place(self.ctx, self.position, x, seq))  # (B, N, D)
        return {"embedded": x, "placed": placed, "seq": seq, "prediction": self.head(placed, seq)}

    def kernels(self, inputs: Tensor | None = None, lengths: Tensor | None = None) -> list[kernel.Record]:
        """Nothing attends, so that there is nothing to say."""
        if inputs is None:
            return kernel.record(self, **example(self.ctx, next(self.parameters()).device))
        return kernel.record(self, inputs, lengths)
