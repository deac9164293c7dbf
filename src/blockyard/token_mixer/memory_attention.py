"""Memory attention: trained keys and values stand beside those of the row, the same for every row.

Source: Sukhbaatar et al. 2019, Augmenting Self-attention with Persistent Memory (arXiv 1907.01470), eq. 5 to 7
Reference: torch.nn.MultiheadAttention(add_bias_kv=True), which is one slot
Equation: softmax(Q [K_trained; K]^T / sqrt(K)) [V_trained; V]
Cost: O(N (N + slots) D) time, 2 slots D parameters

    With channel_mixer=none this is the paper's all-attention layer, whose slots do the feed-forward layer's work.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from blockyard.contracts import Context, Count, Rate, Seq, Traits
from blockyard.token_mixer.attention import Attention
from blockyard.weight_init import Init


class MemoryAttention(Attention):
    """The slots lie nowhere: no position scheme touches them, and every token sees all of them.

    It reads no memory of another row, beside which trained keys would have no source to go by. Slots do the work
    of a feed-forward layer's two matrices, and decay as these do. Being a small table for each head, and no single
    matrix, they are AdamW's where Muon takes the matrices.

    Options:
        slots: trained keys and values for each head of keys and values
        num_kv_heads: heads of keys and values; null means as many as queries, 1 is multi-query
        qk_norm: RMS-normalise queries and keys of the row in each head, with a learned gain, before rotation
        bias: biases in the projections
        dropout: rate on the attention weights while training
    """

    traits: ClassVar[Traits] = replace(Attention.traits, cross=False)

    def __init__(
        self,
        ctx: Context,
        *,
        slots: Count = 16,
        num_kv_heads: Count | None = None,
        qk_norm: bool = False,
        bias: bool = False,
        dropout: Rate = 0.0,
    ) -> None:
        super().__init__(ctx, num_kv_heads=num_kv_heads, qk_norm=qk_norm, bias=bias, dropout=dropout)
        self.slots = slots
        # As large as the keys and values that a normalised row projects to.
        self.std, self.gain = ctx.init_std * ctx.dim**0.5, 1.0 if ctx.gain is None else ctx.gain
        self.keys = nn.Parameter(torch.empty(self.kv_heads, slots, self.head_dim))  # (H', slots, K)
        self.values = nn.Parameter(torch.empty(self.kv_heads, slots, self.value_dim))  # (H', slots, values)

    def init_weights(self, init: Init) -> None:
        """Normal keys and values."""
        init.normal("keys", std=self.std)
        init.normal("values", std=self.std * self.gain)

    def _keys(self, seq: Seq) -> Seq:
        return with_slots(seq, self.slots)

    def _attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        seq: Seq,
        k_seq: Seq,
        causal: bool,
        window: int | None = None,
        strict: bool = False,
    ) -> Tensor:
        k, v = (
            torch.cat([own.to(given.dtype).expand(given.shape[0], -1, -1, -1), given], dim=2)
            for own, given in ((self.keys, k), (self.values, v))
        )  # 2 x (B, H', slots + M, ...)
        return super()._attend(q, k, v, seq, self._keys(k_seq), causal, window, strict)


def with_slots(seq: Seq, slots: int) -> Seq:
    """The facts of keys with `slots` before them, which are as a prefix: before all, real, of no document.

    Kept with `seq`, so that layers share the masks.
    """
    name = f"{slots} slots"
    if name in seq.memo:
        return seq.memo[name]
    first = torch.arange(-slots, 0, device=seq.index.device)
    longer = Seq(
        index=torch.cat([first, seq.index]),  # (slots + M,)
        coords=F.pad(seq.coords, (0, 0, slots, 0)),
        valid=None if seq.valid is None else F.pad(seq.valid, (slots, 0), value=True),
        segment=None if seq.segment is None else F.pad(seq.segment, (slots, 0), value=-1),
        num_prefix=slots + seq.num_prefix,
        position=seq.position,
        memo={"name": name, **{fact: seq.memo[fact] for fact in ("ends_with",) if fact in seq.memo}},
    )
    if not torch.compiler.is_compiling():
        seq.memo[name] = longer
    return longer
