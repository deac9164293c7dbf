"""The mask token: a learned vector in place of tokens that are hidden from the model.

Source: Devlin et al. 2019, BERT (arXiv 1810.04805), section 3.1; of image patches Xie et al. 2022, SimMIM
    (arXiv 2111.09886), section 3.2
Reference: transformers ViTMAEDecoder.mask_token, ViTEmbeddings.mask_token

It stands there before positions are added, so that a hidden token still has its place.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from blockyard.contracts import Context, Seq
from blockyard.weight_init import Init


class MaskToken(nn.Module):
    """One vector for all hidden tokens. ctx: that of the embedder, whose vectors it replaces."""

    no_weight_decay: ClassVar[frozenset[str]] = frozenset({"vector"})  # as class and register tokens

    def __init__(self, ctx: Context) -> None:
        super().__init__()
        self.vector = nn.Parameter(torch.empty(1, ctx.dim))

    def init_weights(self, init: Init) -> None:
        """A normal vector."""
        init.normal("vector")

    def forward(self, x: Tensor, seq: Seq, hidden: Tensor) -> Tensor:
        """x (B, N, D), hidden (B, N) bool -> (B, N, D); `seq.features` of hidden tokens become zero.

        Raises ValueError for another number of tokens.
        """
        if hidden.shape != x.shape[:2]:
            raise ValueError(f"hidden of shape {tuple(hidden.shape)}: the model has tokens {tuple(x.shape[:2])}")
        if seq.features is not None:
            seq.features = seq.features.masked_fill(hidden[..., None], 0.0)
        return torch.where(hidden[..., None], self.vector.to(x.dtype), x)


def mask_token(ctx: Context, width: int) -> MaskToken | None:
    """Returns the mask token of a model whose tokens may be hidden, and None for others.

    width: of the codes that the position scheme appends
    """
    return MaskToken(replace(ctx, dim=ctx.dim - width)) if ctx.tokens.hides else None


def hide(token: MaskToken | None, x: Tensor, seq: Seq, hidden: Tensor | None) -> Tensor:
    """Returns x (B, N, D) with the mask token where `hidden` (B, N) says so; `seq` keeps x and `hidden`.

    Raises ValueError where a model without one is to hide tokens.
    """
    if token is None and hidden is not None:
        raise ValueError("hidden tokens: this model has no mask token; use an objective that hides tokens")
    if token is None:
        return x
    seq.embedded, seq.hidden = x, hidden
    return x if hidden is None else token(x, seq, hidden)
