"""Multi-head latent attention (MLA): keys and values are maps of a small latent vector, and only that is cached.

Source: DeepSeek-AI 2024, DeepSeek-V2 (arXiv 2405.04434), section 2.1 and appendix C
Reference: transformers models/deepseek_v3, DeepseekV3Attention
Equation: c = RMSNorm(x W_c) of `rank` channels, k_r = R(x W_r) one for all heads; in each head
    k = [c W_K; k_r], v = c W_V, q = [x W_Q; R(x W_QR)], y = softmax(q k^T / sqrt(K + K_r)) v
    absorbed: q_c = (x W_Q) W_K^T of `rank` channels, y = softmax((q_c c^T + q_r k_r^T) / sqrt(K + K_r)) c W_V
Cost: O(N^2 D) time; a cache of rank + K_r numbers a token, whatever the number of heads

    x --> c, k_r --> cache
          |   |
          |   +---------------+          Only k_r and its queries have a position: the latent vector has none, so that
          +--> keys, values --+--> y     keys need not be made again. Absorbed, the queries of a decoding step are
    x --> queries ------------+          compared with the latent vectors themselves: keys and values of one head that
                                         all query heads share.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from blockyard.contracts import Context, Memory, Positive, Rate, Role, Seq, TokenMixer, Traits, Width
from blockyard.ops.attend import attend, prepare
from blockyard.ops.cache import KVCache
from blockyard.ops.linear import Linear, linear, residual
from blockyard.ops.mask import Visibility
from blockyard.ops.rotate import rotate
from blockyard.token_mixer._checks import check_call, check_context, check_decodes
from blockyard.weight_init import Init


class LatentCache(KVCache):
    """The latent vectors of the tokens so far, with the rotated channels of their keys: (B, 1, M, rank + K_r)."""

    kind: ClassVar[str] = "cache of latent vectors"

    def __init__(self, batch_size: int, width: int) -> None:
        super().__init__(batch_size, 1, width, 0)

    def extend(self, latents: Tensor, seq: Seq) -> tuple[Tensor, Seq]:
        """Store latents (B, 1, N, rank + K_r). Return the latents of all tokens so far and their facts."""
        all_latents, _, k_seq = self.append(latents, latents[..., :0], seq)
        return all_latents, k_seq


class LatentNorm(nn.RMSNorm):
    """RMS normalisation of a latent vector, in the dtype of its input."""

    roles: ClassVar[dict[str, Role]] = {"weight": "vector"}

    def __init__(self, width: int) -> None:
        super().__init__(width, eps=1e-6)

    def init_weights(self, init: Init) -> None:
        """Set the gain to one."""
        init.ones("weight")

    def forward(self, x: Tensor) -> Tensor:
        """(..., width) -> (..., width)."""
        return F.rms_norm(x, self.normalized_shape, self.weight.to(x.dtype), self.eps)


class LatentAttention(TokenMixer):
    """Position schemes rotate the `rotated_dim` channels of queries and keys, and may add to the scores.

    Options:
        rank: channels of the latent vector of keys and values; null means model.dim / 4
        query_rank: channels of a latent vector in front of the queries; null maps the token itself
        key_dim: channels of queries and keys in each head that do not rotate; null means model.dim / model.heads
        rotated_dim: channels that rotate; null means half as many as model.dim / model.heads, in pairs for each axis
        value_dim: channels of values in each head; null means model.dim / model.heads
        dropout: dropout rate on the attention weights
        absorbed: decoding steps read the latent vectors themselves; false recomputes all keys and values at each step
        score_scale: factor on the scores; null is 1 / sqrt(key_dim + rotated_dim)
    """

    traits = Traits(
        causal=True, padding=True, packing=True, equivariant=True, ports=frozenset({"queries_and_keys", "scores"})
    )
    key_option: ClassVar[str] = "token_mixer.rotated_dim"
    incidental: ClassVar[frozenset[str]] = frozenset({"absorbed"})

    def __init__(
        self,
        ctx: Context,
        *,
        rank: Width | None = None,
        query_rank: Width | None = None,
        key_dim: Width | None = None,
        rotated_dim: Width | None = None,
        value_dim: Width | None = None,
        dropout: Rate = 0.0,
        absorbed: bool = True,
        score_scale: Positive | None = None,
    ) -> None:
        super().__init__()
        check_context(self, ctx)
        self.causal = ctx.causal
        self.heads = ctx.heads
        self.dropout = dropout
        self.absorbed = absorbed
        self.key_dim = key_dim or ctx.head_dim
        self.value_dim = value_dim or ctx.head_dim
        pairs = 2 * max(1, ctx.tokens.axes)  # a rotation needs a pair of channels for each axis
        self.key_width = self.rotated_dim = rotated_dim or max(pairs, ctx.head_dim // 2 // pairs * pairs)
        self.rank = rank or max(1, ctx.dim // 4)
        self.head_dim = self.key_dim + self.rotated_dim
        grows = key_dim is None
        self.scale = ctx.parametrization.factor("scores", ctx) * (score_scale or self.head_dim**-0.5)
        if score_scale is not None and grows:  # a number is for heads of the base width
            self.scale *= ctx.head_ratio**-0.5
        self.scale *= 1.0 if grows else ctx.head_ratio**0.5
        queries = ctx.heads * self.head_dim
        self.widths = [queries if query_rank is None else query_rank, self.rank, self.rotated_dim]
        self.proj_in = linear(ctx, ctx.dim, sum(self.widths))
        self.query_norm: nn.Module = nn.Identity()
        self.proj_query: nn.Module = nn.Identity()
        if query_rank is not None:
            self.query_norm = LatentNorm(query_rank)
            self.proj_query = _from_latent(ctx, query_rank, query_rank, queries)
        self.latent_norm = LatentNorm(self.rank)
        keys = ctx.heads * self.key_dim
        self.proj_latent = _from_latent(ctx, self.rank, rank, keys + ctx.heads * self.value_dim, content=keys)
        self.proj_out = residual(ctx, ctx.heads * self.value_dim, ctx.dim)

    def forward(self, x: Tensor, seq: Seq, cache: LatentCache | None = None, memory: Memory | None = None) -> Tensor:
        """x (B, N, D) -> (B, N, D)."""
        check_call(self, self.traits, seq, cache, memory)
        return self.proj_out(self.mix(self.proj_in(x), seq, cache))  # (B, N, D)

    def mix(self, h: Tensor, seq: Seq, cache: LatentCache | None = None) -> Tensor:
        """Attention between the projections: h (B, N, queries + rank + K_r) -> (B, N, H values)."""
        q, c, k_r = h.split(self.widths, dim=-1)
        q = self.proj_query(self.query_norm(q)).unflatten(-1, (self.heads, -1)).transpose(1, 2)  # (B, H, N, K + K_r)
        q, q_r = q.split([self.key_dim, self.rotated_dim], dim=-1)
        q_r, k_r = rotate(q_r, k_r[:, None], seq, seq)  # (B, H, N, K_r), (B, 1, N, K_r)
        latents = torch.cat([self.latent_norm(c)[:, None], k_r], dim=-1)  # (B, 1, N, rank + K_r)
        k_seq = seq
        if cache is not None:
            latents, k_seq = cache.extend(latents, seq)
        if self.absorbed and k_seq is not seq:
            return self._absorbed(q, q_r, latents, seq, k_seq)
        c, k_r = latents.split([self.rank, self.rotated_dim], dim=-1)
        keys, v = self.proj_latent(c[:, 0]).split([self.heads * self.key_dim, self.heads * self.value_dim], dim=-1)
        keys, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in (keys, v))  # (B, H, M, ...)
        k = torch.cat([keys, k_r.expand(-1, self.heads, -1, -1)], dim=-1)  # (B, H, M, K + K_r)
        y = self._attend(torch.cat([q, q_r], dim=-1), k, v, seq, k_seq)  # (B, H, N, values)
        return y.transpose(1, 2).flatten(2)  # (B, N, H values)

    def _absorbed(self, q: Tensor, q_r: Tensor, latents: Tensor, seq: Seq, k_seq: Seq) -> Tensor:
        """Attend to the latent vectors as keys and values of one head: (B, N, H values)."""
        # q (c W_K)^T = (q W_K^T) c^T: with W_K moved to the query, keys are not made of every latent vector again.
        keys = self.heads * self.key_dim
        to_keys, to_values = self.proj_latent.weight.to(q.dtype).split([keys, self.heads * self.value_dim])
        q = torch.einsum("bhnk,hkr->bhnr", q, to_keys.unflatten(0, (self.heads, -1)))  # (B, H, N, rank)
        y = self._attend(torch.cat([q, q_r], dim=-1), latents, latents[..., : self.rank], seq, k_seq)  # (B, H, N, rank)
        y = torch.einsum("bhnr,hvr->bnhv", y, to_values.unflatten(0, (self.heads, -1)))  # (B, N, H, values)
        return y.flatten(2)  # (B, N, H values)

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, seq: Seq, k_seq: Seq) -> Tensor:
        rate = self.dropout if self.training else 0.0
        return attend(q, k, v, seq, k_seq, Visibility(self.causal), dropout=rate, scale=self.scale)

    def init_cache(self, batch_size: int) -> LatentCache:
        """Return an empty cache. Raises ValueError for a bidirectional model, whose outputs depend on the future."""
        check_decodes(self.causal)
        return LatentCache(batch_size, self.rank + self.rotated_dim)

    def prepare(self, x: Tensor, seq: Seq) -> None:
        """Build the masks of a sequence once for all layers, if it needs any."""
        rate = self.dropout if self.training else 0.0
        width = max(self.head_dim, self.value_dim)
        prepare(seq, Visibility(self.causal), self.heads, width, x, rate)


def _from_latent(ctx: Context, width: int, fixed: int | None, d_out: int, content: int = 0) -> Linear:
    """Return a map of a normalised latent vector.

    fixed: the width as an option; None for a width that grows with the model
    """
    gain = 1.0 if ctx.gain is None or not content else ctx.gain
    if fixed is not None:
        return Linear(width, d_out, bias=False, std=width**-0.5, role="input", content=content, gain=gain)
    std = ctx.init_std * (ctx.dim / width) ** 0.5
    return Linear(width, d_out, bias=False, std=std, role="hidden", content=content, gain=gain)
