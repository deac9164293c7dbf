"""Gated attention unit: one head of squared-ReLU attention between the two halves of a gated MLP.

Source: Hua et al. 2022, Transformer Quality in Linear Time (arXiv 2202.10447), section 3.1 and eq. 4
Reference: the pseudo-code in the paper's appendix; lucidrains' FLASH-pytorch, GAU
Equation: W_o (u * A v), A_ij = relu(q_i k_j / n_i + b_ij)^2 over the n_i tokens that token i sees
Cost: O(N^2 (S + E) + N D E) time with S query and E hidden channels; O(N^2) memory

Use it with block=single as the paper does: it includes its own channel mixing. Queries and keys are the same S
channels with different scales and offsets. The paper divides by the sequence length. Dividing by the number of visible
tokens is the same without masks, and gives a padded sequence the outputs of the sequence alone. The trained bias b of
the scores is a position scheme: t5_bias, bias_table or bias_offset. The unit has one head and uses the
bias of the first head of the scheme; with model.heads=1 and a key_dim of its own the scheme has no others.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from blockyard.contracts import ChoiceOptions, Context, Expansion, Memory, Rate, Role, Seq, TokenMixer, Traits, Width
from blockyard.ops import kernel, mask
from blockyard.ops.cache import KVCache
from blockyard.ops.linear import linear, residual
from blockyard.ops.mask import Visibility
from blockyard.ops.rotate import rotate
from blockyard.token_mixer._checks import check_call, check_context, check_decodes
from blockyard.token_mixer._values import ValueEmbedding, ValueResidual, declared, value_sources
from blockyard.weight_init import Init


class Offsets(nn.Module):
    """Queries and keys from the same channels, each with its own gain and offset per channel."""

    no_weight_decay: ClassVar[frozenset[str]] = frozenset({"gain", "offset"})
    roles: ClassVar[dict[str, Role]] = {"gain": "vector", "offset": "vector"}

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.empty(2, width))
        self.offset = nn.Parameter(torch.empty(2, width))

    def init_weights(self, init: Init) -> None:
        """Draw gains around one, so that queries and keys differ; zero offsets."""
        gain = torch.empty(self.gain.shape).normal_(1.0, 0.02, generator=init.generator("gain"))
        init.copy("gain", gain)
        init.zeros("offset")

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x (B, N, S) -> q, k (B, 1, N, S)."""
        both = x[:, None] * self.gain[:, None] + self.offset[:, None]  # (B, 2, N, S)
        return both[:, :1], both[:, 1:]


class GatedAttentionUnit(TokenMixer):
    """Always one head; model.heads has no effect beyond the default of key_dim.

    Options:
        expansion: hidden width E as a multiple of model.dim
        key_dim: width S of queries and keys; null means model.dim / model.heads
        bias: use biases in the projections
        dropout: dropout rate on the attention weights
        value_residual: how values are joined with the values of the first layer: none; mixed is their mean; learned a
            sum with two trained numbers for each layer
        value_embedding: layers that add trained vectors of the token ids to their values: none, all, or every second
            layer, counted back from the last one (alternate)
    """

    traits = Traits(
        causal=True, padding=True, packing=True, equivariant=True, ports=frozenset({"queries_and_keys", "scores"})
    )
    fused: ClassVar[bool] = False
    fades = "its weights are squared scores, whose random part before training is a mean over the channels"

    def __init__(
        self,
        ctx: Context,
        *,
        expansion: Expansion = 2.0,
        key_dim: Width | None = None,
        bias: bool = True,
        dropout: Rate = 0.0,
        value_residual: ValueResidual = "none",
        value_embedding: ValueEmbedding = "none",
    ) -> None:
        super().__init__()
        options = {"value_residual": value_residual, "value_embedding": value_embedding}
        self.traits = declared(self.traits, options)
        check_context(self, ctx)
        self.causal = ctx.causal
        self.key_width: int = key_dim or ctx.head_dim
        self.dropout = nn.Dropout(dropout)
        self.hidden = max(1, round(expansion * ctx.dim))
        # Scores are sums over the channels: in a wider model they shall be as large.
        self.scale = 1.0 if key_dim else 1.0 / ctx.head_ratio
        self.proj_in = linear(ctx, ctx.dim, 2 * self.hidden + self.key_width, bias=bias)
        self.value_sources = value_sources(self, ctx, 1, self.hidden, value_residual, value_embedding)
        self.offsets = Offsets(self.key_width)
        self.proj_out = residual(ctx, self.hidden, ctx.dim, bias=bias)

    @classmethod
    def traits_for(cls, options: ChoiceOptions) -> Traits:
        """Return the traits under `value_residual` and `value_embedding`."""
        return declared(cls.traits, options)

    def forward(self, x: Tensor, seq: Seq, cache: KVCache | None = None, memory: Memory | None = None) -> Tensor:
        """x (B, N, D) -> (B, N, D)."""
        check_call(self, self.traits, seq, cache, memory)
        return self.proj_out(self.mix(self.proj_in(x), seq, cache))

    def mix(self, h: Tensor, seq: Seq, cache: KVCache | None = None) -> Tensor:
        """Gated attention between the projections: (B, N, 2 E + S) -> (B, N, E)."""
        gate, v, shared = F.silu(h).split([self.hidden, self.hidden, self.key_width], dim=-1)
        q, k = self.offsets(shared)  # 2 x (B, 1, N, S)
        q, k = rotate(q, k, seq, seq)
        v = v[:, None]  # (B, 1, N, E)
        k_seq = seq
        if self.value_sources is not None:
            v = self.value_sources(v, seq)
        if cache is not None:
            k, v, k_seq = cache.append(k, v, seq)
        see = mask.table(seq, k_seq, Visibility(self.causal))  # (B|1, 1, N, M) or None
        seen = len(k_seq) if see is None else see.sum(-1, keepdim=True).clamp(min=1)  # (B|1, 1, N, 1)
        q = q if self.scale == 1.0 else q * self.scale
        scores = q @ k.transpose(-1, -2) / seen  # (B, 1, N, M)
        bias = mask.bias_table(seq, k_seq, heads=1)
        weights = F.relu(scores if bias is None else scores + bias).square()  # (B, 1, N, M)
        if see is not None:
            weights = weights * see  # a weight of zero hides a key: there is no softmax to renormalise
        kernel.note("eager", [kernel.EAGER])
        return gate * (self.dropout(weights).to(v.dtype) @ v)[:, 0]  # (B, N, E)

    def init_cache(self, batch_size: int) -> KVCache:
        """Return an empty cache. Raises ValueError for a bidirectional model, whose outputs depend on the future."""
        check_decodes(self.causal)
        return KVCache(batch_size, 1, self.key_width, self.hidden)
