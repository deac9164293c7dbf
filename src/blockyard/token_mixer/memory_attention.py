"""Memory attention: trained keys and values, the same for every sequence, in front of the keys of the sequence.

Source: Sukhbaatar et al. 2019, Augmenting Self-attention with Persistent Memory (arXiv 1907.01470), eq. 5 to 7
Reference: torch.nn.MultiheadAttention(add_bias_kv=True), which is one slot
Equation: softmax(Q [K_trained; K]^T / sqrt(K)) [V_trained; V]
Cost: O(N (N + slots) D) time, 2 slots D parameters

    With channel_mixer=none this is the paper's all-attention layer: slots replace the feed-forward layer.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from blockyard.contracts import Context, Length, Role, Seq
from blockyard.contracts.inherited_options import with_options_of
from blockyard.ops.mask import Visibility
from blockyard.token_mixer.attention import Attention
from blockyard.weight_init import Init


class MemoryAttention(Attention):
    """The slots have no position: no scheme acts on them, and every token sees all of them.

    It does not support cross-attention. Weight decay applies to the slots, as to the two matrices of a feed-forward
    layer. They are a small table for each head and not one matrix, so Muon leaves them to AdamW.

    Options:
        slots: number of trained keys and values per key head
    """

    traits = replace(Attention.traits, cross=False)
    roles: ClassVar[dict[str, Role]] = {"keys": "input", "values": "input"}

    @with_options_of(
        Attention, without=("key_dim", "value_dim", "output_dim", "project", "fused", "map", "mimetic", "kv_every")
    )
    def __init__(self, ctx: Context, *, slots: Length = 16, **options: Any) -> None:
        super().__init__(ctx, **options)
        self.slots = slots
        # The scale of the keys and values of a normalised sequence.
        self.std = ctx.init_std * ctx.dim**0.5
        self.gain = 1.0 if ctx.gain is None else ctx.gain
        self.keys = nn.Parameter(torch.empty(self.kv_heads, slots, self.head_dim))  # (H', slots, K)
        self.values = nn.Parameter(torch.empty(self.kv_heads, slots, self.value_dim))  # (H', slots, values)

    def init_weights(self, init: Init) -> None:
        """Draw normal keys and values."""
        init.normal("keys", std=self.std)
        init.normal("values", std=self.std * self.gain)

    def _key_seq(self, seq: Seq) -> Seq:
        """Return the facts of the slots and the sequence's own keys."""
        return with_slots(seq, self.slots)

    def _attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        seq: Seq,
        k_seq: Seq,
        visibility: Visibility,
    ) -> Tensor:
        """Attend to the slots and the given keys, and join the heads: (B, N, H values)."""
        k = torch.cat([self.keys.to(k.dtype).expand(k.shape[0], -1, -1, -1), k], dim=2)  # (B, H', slots + M, K)
        v = torch.cat([self.values.to(v.dtype).expand(v.shape[0], -1, -1, -1), v], dim=2)  # (B, H', slots + M, values)
        return super()._attend(q, k, v, seq, self._key_seq(k_seq), visibility)


def with_slots(seq: Seq, slots: int) -> Seq:
    """Return the facts of keys behind `slots` slots. Slots act as a prefix: first, valid, of no document."""
    # Stored in `seq.memo`, so that layers share the masks.
    name = f"{slots} slots"
    if name in seq.memo:
        return seq.memo[name]
    first = torch.arange(-slots, 0, device=seq.index.device)
    extended = Seq(
        index=torch.cat([first, seq.index]),  # (slots + M,)
        coords=F.pad(seq.coords, (0, 0, slots, 0)),
        valid=None if seq.valid is None else F.pad(seq.valid, (slots, 0), value=True),
        segment=None if seq.segment is None else F.pad(seq.segment, (slots, 0), value=-1),
        num_prefix=slots + seq.num_prefix,
        ties=seq.ties,
        shown=None if seq.shown is None else F.pad(seq.shown, (slots, 0), value=False),
        pairs=None if seq.pairs is None else tuple(F.pad(pair, (slots, 0)) for pair in seq.pairs),
        position=seq.position,
        memo={"name": name, "slots": slots, **{key: seq.memo[key] for key in ("ends_with",) if key in seq.memo}},
    )
    if not torch.compiler.is_compiling():
        seq.memo[name] = extended
    return extended
