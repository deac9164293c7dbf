"""Smear: a gated share of the vector of the token before is added to each token, in front of the blocks.

Source: Jordan et al. 2024, modded-nanogpt (github.com/KellerJordan/modded-nanogpt), and karpathy/nanochat
    nanochat/gpt.py, smear_gate and smear_lambda; after the smear of keys of Olsson et al. 2022, In-context Learning and
    Induction Heads (arXiv 2209.11895)
Reference: the formula, token by token
Equation: x_t + l sigmoid(w x_t[: G]) x_(t-1), with G = 24 channels or all if there are fewer, trained l and w, at first
    zero; the first token of a document or sequence has no token before it
Cost: O(N D) time, G + 1 parameters; decoding keeps the vector of the last token

It acts on the embedded tokens with their added positions, before the norm of embeddings (model.embed_norm), as in
modded-nanogpt; nanochat has it behind that norm. Class and register tokens are not smeared.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from blockyard.contracts import Context, Role, Seq
from blockyard.token_mixer._caches import InputCache
from blockyard.weight_init import Init

CHANNELS = 24  # channels of a token that its gate reads


class Smear(nn.Module):
    """Adds the token before. Raises ValueError for tokens without an order."""

    roles: ClassVar[dict[str, Role]] = {"gate": "fixed", "weight": "fixed"}  # a wider model has no more of them

    def __init__(self, ctx: Context) -> None:
        super().__init__()
        if not ctx.tokens.axes:
            raise ValueError(
                "model.smear adds the token before, and these tokens are a set without an order; use model.smear=false"
            )
        self.gate = nn.Parameter(torch.empty(min(CHANNELS, ctx.dim)))
        self.weight = nn.Parameter(torch.empty(1))

    def init_weights(self, init: Init) -> None:
        """Set both to zero, so that the model starts as it is without a smear."""
        init.zeros("gate")
        init.zeros("weight")

    def init_cache(self, batch_size: int) -> InputCache:
        """Return an empty cache of the vector of the last token."""
        return InputCache(batch_size, 1)

    def forward(self, x: Tensor, seq: Seq, cache: InputCache | None = None) -> Tensor:
        """x (B, N, D) -> (B, N, D). cache: the token in front of these."""
        line = x
        if cache is not None:
            line, _ = cache.append(x, seq)  # (B, M, D)
        # Shifted by one: the first token of a sequence has a vector of zeros before it.
        before = F.pad(line, (0, 0, 1, 0))[:, -x.shape[1] - 1 : -1]  # (B, N, D)
        if seq.segment is not None:
            same = seq.segment == F.pad(seq.segment, (1, 0), value=-1)[:, :-1]
            before = before * same[..., None]
        gate = (x[..., : len(self.gate)] * self.gate.to(x.dtype)).sum(-1, keepdim=True).sigmoid()  # (B, N, 1)
        return x + self.weight.to(x.dtype) * gate * before  # (B, N, D)
