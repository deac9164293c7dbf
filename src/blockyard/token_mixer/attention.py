"""Multi-head attention; with fewer key heads, grouped-query and multi-query attention.

Source: Vaswani et al. 2017, Attention Is All You Need (arXiv 1706.03762), eq. 1; Ainslie et al. 2023, GQA
    (arXiv 2305.13245); kv_every after Brandon et al. 2024, Cross-Layer Attention (arXiv 2405.12981), section 3; gate
    after Qiu et al. 2025, Gated Attention for Large Language Models (arXiv 2505.06708), section 2.2, position G1;
    exclusive after Zhai 2026, Exclusive Self Attention (arXiv 2603.09078); tied_kv after Google 2026, Gemma 4
    (attention_k_eq_v); conv after So et al. 2021, Primer (arXiv 2109.08668), section 4.2. The sources of the other
    options are in _query_key_norms.py, _scores.py, _values.py and _projections.py
Reference: torch.nn.MultiheadAttention; timm layers/attention.py; for kv_every transformers Gemma3nTextAttention; for
    gate transformers Qwen3NextAttention, and x-transformers Attention(gate_values=True, gate_values_headwise=True)
Equation: y = softmax(Q K^T / sqrt(K)) V; with exclusive, y - (y v^T) v / |v|^2 for the token's own value v in each
    head; with a gate, sigmoid(x W) y; with tied_kv, V = x W_K before its norm and rotation
Cost: O(N^2 D) time, O(N) memory with a fused kernel. A layer that reads the keys and values of an earlier one has
    neither a projection nor a cache for them

    kv_every=2     layer 0    q k v --> attention, cache
                                | |
                   layer 1    q +-+---> attention
                   layer 2    q k v --> attention, cache
                                | |
                   layer 3    q +-+---> attention
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from blockyard.contracts import (
    ChoiceOptions,
    Context,
    DepthOrZero,
    Heads,
    Memory,
    Positive,
    Rate,
    Seq,
    TokenMixer,
    Traits,
    Width,
)
from blockyard.ops.attend import attend, prepare
from blockyard.ops.cache import KVCache
from blockyard.ops.linear import linear, residual
from blockyard.ops.mask import FULL, Visibility
from blockyard.ops.rotate import rotate
from blockyard.ops.shaping import CAPPED
from blockyard.token_mixer._caches import ConvolvedCache, EmptyCache
from blockyard.token_mixer._checks import check_call, check_context, check_decodes, key_heads
from blockyard.token_mixer._mimetic import Shares, check_mimetic, fill
from blockyard.token_mixer._projections import ALL, Projection, Projections, TokenMap, check_projections, one_product
from blockyard.token_mixer._query_key_norms import SAME_NORMS, QueryKeyNorm, key_norm, query_norm
from blockyard.token_mixer._scores import Scores, ScoreScale, Sink
from blockyard.token_mixer._short_conv import Kernel, ShortConv, last_inputs
from blockyard.token_mixer._values import GatedValueResidual, ValueEmbedding, Values, declared, value_sources
from blockyard.weight_init import Init

OutputGate = Literal["none", "head", "channel"]

KEYS_AND_VALUES = "keys_and_values"  # in `Seq.carry`; under a window its size is added to the name
FULL_LAYER = "put a layer with token_mixer.kv_every=1 in front of it, or use token_mixer.kv_every=2"


class SharedKeys(NamedTuple):
    """Keys and values (B, H', M, K) of an earlier layer, read in place of a layer's own.

    seq: the facts of the keys; None if keys and queries have the same facts
    """

    k: Tensor
    v: Tensor
    seq: Seq | None


class Attention(TokenMixer):
    """Every token reads from every token it may see.

    Options:
        num_kv_heads: number of key and value heads; null means as many as query heads, 1 is multi-query
        key_dim: width of queries and keys in each head; null means model.dim / model.heads
        value_dim: width of values in each head; null means model.dim / model.heads
        output_dim: project the joined heads to this width before the projection to model.dim, a bottleneck of that
            rank; null means a single projection
        qk_norm: norm of queries and keys before rotation, with a trained gain. head (true is the same) RMS-normalises
            each head, full all heads together; layer is a layer norm of each head; cosine gives vectors of length one
            and each head a trained factor on its scores; sphere gives vectors of length one after rotation, a trained
            factor on each channel, and scores times sqrt(key_dim); false is none
        bias: use biases in the projections
        project: parts with a projection, of queries, keys, values and output; a part that is left out is the token
            itself, or the joined heads
        fused: compute queries, keys and values in one product; false computes three products of a third of the width
        map: a channel mixer, as a node; queries, keys and values each get one in front of their projection
        dropout: dropout rate on the attention weights
        gate: factors in (0, 1) on the output of attention, computed from the token: none, one for each head, or one
            for each channel
        conv: tokens that a short causal convolution of queries, keys and values reads; 0 leaves it out
        score_scale: factor on the scores: null is 1 / sqrt(key_dim); a number replaces it; learned adds a trained
            factor for each head; log_n multiplies that by the logarithm of the number of keys that a token sees
        softcap: bound on the scores, by a tanh, before position biases; null is none
        sink: a logit of each head that takes weight and gives no value: none; zero, with which a token may read almost
            nothing; or learned
        exclusive: remove from the output of each head its component along the token's own value
        tied_kv: values are the keys before their norm and rotation, without a projection of their own
        value_residual: how values are joined with the values of the first layer: none; mixed is their mean; learned a
            sum with two trained numbers for each layer; gated a weight for each token and head
        value_embedding: layers that add trained vectors of the token ids to their values: none, all, or every second
            layer, counted back from the last one (alternate)
        mimetic: initial weights with products near the identity. [a, b] such as [0.7, 0.4] gives queries and keys a
            product near a (noise + identity), and values and output one near b (noise - identity); null draws each
            projection by itself
        kv_every: one in so many layers computes keys and values, and the layers up to the next one read them; 1 is
            all; 0 is none, for a member of a cycle that reads the keys and values of another member
    """

    traits: Traits = Traits(
        causal=True,
        padding=True,
        packing=True,
        cross=True,
        equivariant=True,
        ports=frozenset({"queries_and_keys", "scores"}),
        gives=frozenset({KEYS_AND_VALUES}),
    )
    same_values: ClassVar[dict[str, dict[str, bool]]] = {"qk_norm": SAME_NORMS}
    window: int | None = None  # as in `ops.attend`; set by subclasses
    strict: bool = False
    chunked: bool = False  # `window` is the size of chunks

    def __init__(
        self,
        ctx: Context,
        *,
        num_kv_heads: Heads | None = None,
        key_dim: Width | None = None,
        value_dim: Width | None = None,
        output_dim: Width | None = None,
        qk_norm: QueryKeyNorm = False,
        bias: bool = False,
        project: tuple[Projection, ...] = ALL,
        fused: bool = True,
        map: TokenMap | None = None,  # noqa: A002 - as a map is called everywhere
        dropout: Rate = 0.0,
        gate: OutputGate = "none",
        conv: Kernel = 0,
        score_scale: ScoreScale = None,
        softcap: Positive | None = None,
        sink: Sink = "none",
        exclusive: bool = False,
        tied_kv: bool = False,
        value_residual: GatedValueResidual = "none",
        value_embedding: ValueEmbedding = "none",
        mimetic: Shares | None = None,
        kv_every: DepthOrZero = 1,
    ) -> None:
        super().__init__()
        options = {
            "window": self.window,
            "exclusive": exclusive,
            "conv": conv,
            "value_residual": value_residual,
            "value_embedding": value_embedding,
            "kv_every": kv_every,
        }
        self.traits = _with_carry(self.traits, options)
        check_context(self, ctx)
        self.causal = ctx.causal
        self.heads = ctx.heads
        self.kv_heads = kv_heads = key_heads(ctx, num_kv_heads)
        self.head_dim = key_dim or ctx.head_dim
        self.value_dim = value_dim or ctx.head_dim
        self.key_width = self.head_dim
        self.dropout = dropout
        self.exclusive = exclusive
        self.tied_kv = tied_kv
        self.biased = bias
        values_width = 0 if tied_kv else kv_heads * self.value_dim
        self.widths = [ctx.heads * self.head_dim, kv_heads * self.head_dim, values_width]  # q, k, v
        self._check_values(kv_every)
        if conv and kv_every != 1:
            raise ValueError(
                f"token_mixer.kv_every={kv_every}: layers that read earlier keys have none to convolve; use conv=0"
            )
        # Before the projection is built: a layer that reads earlier keys sets its widths of keys and values to zero.
        self.value_sources = self._value_sources(ctx, value_residual, value_embedding, kv_every)
        self.gate_width = {"none": 0, "head": ctx.heads, "channel": ctx.heads * self.value_dim}[gate]
        # The product of the token with proj_in is cut into q, k, v, the gate of the values and the gate of the output.
        self.parts = list(self.widths)
        if self.value_sources is not None and self.value_sources.gated:
            self.parts.append(kv_heads)
        if self.gate_width:
            self.parts.append(self.gate_width)
        self.conv = ShortConv(sum(self.widths), conv) if conv else None
        output_width = ctx.heads * self.value_dim if output_dim is None else output_dim
        check_projections(
            ctx,
            dict(zip(ALL, (*self.widths, output_width), strict=True)),
            project=project,
            fused=fused,
            token_map=map,
            tied_kv=tied_kv,
            bias=bias,
        )
        self.projections: Projections | None = None
        if one_product(project, fused, map):
            self.proj_in = linear(ctx, ctx.dim, sum(self.parts), bias=bias, content=sum(self.widths[:2]))
        else:
            self.projections = Projections(ctx, self.parts, bias=bias, project=project, token_map=map)
        self.q_norm = query_norm(qk_norm, ctx.heads, self.head_dim)
        self.k_norm = nn.Identity() if self.takes_keys else key_norm(qk_norm, kv_heads, self.head_dim)
        self.scores = Scores(
            ctx,
            ctx.heads,
            self.head_dim,
            grows=key_dim is None,
            cosine=qk_norm == "cosine",
            sphere=qk_norm == "sphere",
            score_scale=score_scale,
            softcap=softcap,
            sink=sink,
        )
        self.scale = self.scores.scale
        width = ctx.heads * self.value_dim
        self.join: nn.Module = nn.Identity()
        if output_dim is not None and output_dim != ctx.dim:
            self.join = linear(ctx, width, output_dim, content=0)
            width = output_dim
        self.proj_out: nn.Module = nn.Identity()
        if "output" in project:
            self.proj_out = residual(ctx, width, ctx.dim, bias=bias)
        self.mimetic = None if mimetic is None else (ctx, (mimetic[0], mimetic[1]))
        if mimetic is not None:
            # `fill` writes proj_in.weight (3D, D) and proj_out.weight (D, D): each of these options changes a shape.
            check_mimetic(
                ctx,
                {
                    "token_mixer.num_kv_heads": kv_heads != ctx.heads,
                    "token_mixer.key_dim": self.head_dim != ctx.head_dim,
                    "token_mixer.value_dim": self.value_dim != ctx.head_dim,
                    "token_mixer.output_dim": output_dim is not None,
                    "token_mixer.project": len(project) < len(ALL),
                    "token_mixer.fused=false": not fused,
                    "token_mixer.map": map is not None,
                    "token_mixer.tied_kv=true": tied_kv,
                    "token_mixer.kv_every": kv_every != 1,
                    "token_mixer.gate or value_residual=gated": len(self.parts) > 3,
                },
            )

    def init_weights(self, init: Init) -> None:
        """Initialise all projections together if `mimetic` is set; otherwise each initialises itself."""
        if self.mimetic is not None:
            fill(init, *self.mimetic)

    @property
    def shapes_scores(self) -> str | None:
        """The operation between products and softmax that not every kernel has, or None."""
        return CAPPED if self.scores.cap is not None else None

    @classmethod
    def traits_for(cls, options: ChoiceOptions) -> Traits:
        """Return the traits, with the tensors that layers share. A layer that shares by an option reads no memory."""
        return _with_carry(cls.traits, options)

    @classmethod
    def has(cls, method: str, options: ChoiceOptions) -> bool:
        """Return whether the mixer has a method. It has `mix` only with one fused projection in and one out."""
        named = {"project": "project", "fused": "fused", "map": "token_map"}
        settings: dict[str, Any] = {named[name]: value for name, value in options.items() if name in named}
        plain = one_product(**settings) and "output" in options.get("project", ALL)
        return super().has(method, options) and (method != "mix" or plain)

    def matrices(self) -> list[Tensor]:
        """Return the projection (width, D) of each part, the identity for a part without one."""
        if self.projections is not None:
            return self.projections.matrices()
        return list(self.proj_in.weight.detach().split(self.parts))

    def _check_values(self, kv_every: int) -> None:
        """Raise ValueError if tied_kv is set and keys cannot be the values."""
        if self.tied_kv and self.value_dim != self.head_dim:
            raise ValueError(
                f"token_mixer.tied_kv=true: keys of {self.head_dim} channels cannot be values of {self.value_dim}; use "
                "equal key_dim and value_dim, or tied_kv=false"
            )
        if self.tied_kv and kv_every == 0:
            raise ValueError(
                "token_mixer.kv_every=0: these layers have no keys, so tied_kv has no effect; leave it out"
            )

    def _value_sources(
        self, ctx: Context, residual: GatedValueResidual, embedding: ValueEmbedding, kv_every: int
    ) -> Values | None:
        """Set the tensors that this layer gives and takes. Return the module that changes its values, or None."""
        name = shared_name(self.window)
        shape = (self.kv_heads, self.head_dim, self.value_dim)
        if kv_every == 0 and (residual, embedding) != ("none", "none"):
            raise ValueError(
                "token_mixer.kv_every=0: these layers have no values of their own, so value_residual and "
                "value_embedding have no effect; leave them out"
            )
        earlier = ctx.given.get(name)
        self.takes_keys = kv_every == 0 or (earlier is not None and ctx.layer % kv_every != 0)
        if self.takes_keys:
            if earlier is None:
                raise ValueError(
                    f"token_mixer.kv_every=0: layer {ctx.layer} reads the {name.replace('_', ' ')} of an earlier "
                    f"layer, and none gives them; {FULL_LAYER}"
                )
            if earlier != shape:
                raise ValueError(
                    f"token_mixer.kv_every={kv_every}: layer {ctx.layer} reads keys and values of {shape[0]} heads of "
                    f"{shape[1]} and {shape[2]} channels, and an earlier layer gives {earlier[0]} of {earlier[1]} and "
                    f"{earlier[2]}; use the same num_kv_heads, key_dim and value_dim"
                )
            self.takes = self.takes_placed = frozenset({name})
            self.widths = [self.widths[0], 0, 0]
            return None
        self.gives = {name: shape}
        if kv_every > 1:
            self.must_be_taken = frozenset({name})
        return value_sources(self, ctx, self.kv_heads, self.value_dim, residual, embedding)

    def forward(self, x: Tensor, seq: Seq, cache: KVCache | None = None, memory: Memory | None = None) -> Tensor:
        """x (B, N, D) -> (B, N, D). With `memory`, keys and values come from it and nothing is causal."""
        check_call(self, self.traits, seq, cache, memory)
        if memory is None:
            return self.proj_out(self._mix_tokens(x, seq, cache))  # (B, N, D)
        if cache is not None:
            raise ValueError("cross-attention keeps no cache; pass either cache or memory")
        return self.proj_out(self._cross(x, seq, memory))  # (B, N, D)

    def mix(self, h: Tensor, seq: Seq, cache: KVCache | None = None) -> Tensor:
        """Attention between the projections: h (B, N, queries + keys + values) -> (B, N, H values or output)."""
        return self._mix_parts(self._convolved(h, seq, cache).split(self.parts, dim=-1), seq, cache)

    def _mix_tokens(self, x: Tensor, seq: Seq, cache: KVCache | None) -> Tensor:
        """Project and attend: x (B, N, D) -> (B, N, H values or output)."""
        if self.projections is None:
            return self.mix(self.proj_in(x), seq, cache)
        parts = self.projections(x, seq)
        if self.conv is not None:
            return self.mix(torch.cat(parts, dim=-1), seq, cache)  # the convolution runs over q, k and v side by side
        return self._mix_parts(parts, seq, cache)

    def _mix_parts(self, parts: Sequence[Tensor], seq: Seq, cache: KVCache | None) -> Tensor:
        """Attend: queries, keys, values and gates, (B, N, width) each -> (B, N, H values or output)."""
        q, k, v, *gates = parts
        if self.takes_keys:
            return self.join(self._gated(self._read(q, seq), parts[-1]))
        q = self._heads(q, self.head_dim)  # (B, H, N, K)
        k = self._heads(k, self.head_dim)  # (B, H', N, K)
        v = k if self.tied_kv else self._heads(v, self.value_dim)  # (B, H', N, values)
        q = self.q_norm(q)
        k = self.k_norm(k)
        if self.value_sources is not None:
            gate = self._heads(gates[0], 1) if self.value_sources.gated else None  # (B, H', N, 1)
            v = self.value_sources(v, seq, gate)
        q, k = rotate(q, k, seq, seq)  # (B, H, N, K), (B, H', N, K)
        k_seq = seq
        if cache is not None:
            k, v, k_seq = cache.append(k, v, seq)  # 2 x (B, H', M, K)
        if seq.given is not None:  # after the cache, so that later layers read all keys
            seq.give(shared_name(self.window), SharedKeys(k, v, None if k_seq is seq else k_seq))
        return self.join(self._gated(self._attended(q, k, v, seq, k_seq), parts[-1]))

    def _convolved(self, h: Tensor, seq: Seq, cache: Any) -> Tensor:
        """h (B, N, parts) -> the same, its queries, keys and values after the short convolution, if there is one."""
        if self.conv is None:
            return h
        qkv = h[..., : sum(self.widths)]
        y = self.conv(qkv, seq, None if cache is None else cache.inputs)
        if cache is not None:
            cache.inputs = last_inputs(cache.inputs, qkv.detach(), self.conv.kernel - 1)
        return torch.cat([y, h[..., sum(self.widths) :]], dim=-1)  # (B, N, parts)

    def _gated(self, y: Tensor, gate: Tensor) -> Tensor:
        """y (B, N, H values) -> the same, times sigmoid(gate) if there is a gate. gate: (B, N, H | H values)."""
        if not self.gate_width:
            return y
        gate = gate.sigmoid()
        if self.gate_width == y.shape[-1]:
            return y * gate
        return (y.unflatten(-1, (self.heads, -1)) * gate[..., None]).flatten(2)  # (B, N, H values)

    def _attended(self, q: Tensor, k: Tensor, v: Tensor, seq: Seq, k_seq: Seq) -> Tensor:
        """Self-attention: (B, N, H values). The last N keys belong to the tokens of the queries."""
        # After the rotation, which keeps lengths: a factor of each channel would not commute with it.
        q = self.scores.scaled(q, seq, self._key_seq(k_seq), self.visibility)
        y = self._attend(q, k, v, seq, k_seq, self.visibility)
        if not self.exclusive:
            return y
        unit_v = F.normalize(v[:, :, -len(seq) :].transpose(1, 2), dim=-1)  # (B, N, H', values)
        unit_v = unit_v.repeat_interleave(self.heads // self.kv_heads, dim=2)  # (B, N, H, values)
        by_head = y.unflatten(-1, (self.heads, -1))  # (B, N, H, values)
        along = (by_head * unit_v).sum(-1, keepdim=True) * unit_v  # (B, N, H, values)
        return (by_head - along).flatten(2)  # (B, N, H values)

    def _read(self, h: Tensor, seq: Seq) -> Tensor:
        """Attend from queries h (B, N, H K) to the keys and values of an earlier layer: (B, N, H values)."""
        shared: SharedKeys = seq.carry[shared_name(self.window)]
        q = self.q_norm(self._heads(h, self.head_dim))  # (B, H, N, K)
        q, _ = rotate(q, q, seq, seq)  # the earlier layer has rotated its keys
        k_seq = seq if shared.seq is None else shared.seq
        return self._attended(q, shared.k, shared.v, seq, k_seq)

    @property
    def visibility(self) -> Visibility:
        """The keys that a query may see in the sequence itself."""
        return Visibility(self.causal, self.window, self.strict)

    def init_cache(self, batch_size: int) -> KVCache | EmptyCache | ConvolvedCache:
        """Return an empty cache. It stays empty in a layer that reads the keys and values of an earlier one.

        Raises ValueError for a bidirectional model, whose outputs depend on the future.
        """
        check_decodes(self.causal)
        if self.takes_keys:
            return EmptyCache()
        cache = self._key_cache(batch_size)
        if self.conv is None:
            return cache
        return ConvolvedCache(cache)

    def _key_cache(self, batch_size: int) -> KVCache:
        return KVCache(batch_size, self.kv_heads, self.head_dim, self.value_dim)

    def prepare(self, x: Tensor, seq: Seq) -> None:
        """Build the masks of a sequence once for all layers, if it needs any."""
        rate = self.dropout if self.training else 0.0
        width = max(self.head_dim, self.value_dim)
        k_seq = self._key_seq(seq)
        prepare(seq, self.visibility, self.heads, width, x, rate, k_seq=k_seq, shaping=self.scores.shaping)

    def _cross(self, x: Tensor, seq: Seq, memory: Memory) -> Tensor:
        """Attend from x to the memory: (B, N, H values or output)."""
        (q,) = self._projected(x, seq, 0)  # (B, N, H K)
        k, v = self._memory_keys(memory)  # (B, H', M, K), (B, H', M, values)
        q = self.q_norm(self._heads(q, self.head_dim))  # (B, H, N, K)
        q, k = rotate(q, k, seq, memory.seq)
        q = self.scores.scaled(q, seq, memory.seq, FULL)
        y = self._attend(q, k, v, seq, memory.seq, FULL)  # (B, N, H values)
        if self.gate_width:
            (gate,) = self._projected(x, seq, -1)
            y = self._gated(y, gate)
        return self.join(y)

    def _memory_keys(self, memory: Memory) -> tuple[Tensor, Tensor]:
        """Return keys (B, H', M, K) and values (B, H', M, values) of the memory."""
        # A decoder reads the same memory at every step: in inference its keys are computed once.
        reuse = not (torch.is_grad_enabled() or self.training or torch.compiler.is_compiling())
        stored = memory.seq.memo.get(self) if reuse else None
        if stored is not None and stored[0] is memory.x:
            return stored[1], stored[2]
        k, v = self._projected(memory.x, memory.seq, 1, 2)  # (B, M, H' K), (B, M, H' values)
        k = self._heads(k, self.head_dim)
        v = k if self.tied_kv else self._heads(v, self.value_dim)  # tied values are the keys before their norm
        k = self.k_norm(k)
        if reuse:
            memory.seq.memo[self] = (memory.x, k, v)
        return k, v

    def _projected(self, x: Tensor, seq: Seq, *indices: int) -> Sequence[Tensor]:
        """Return some adjacent parts of the projection: (B, N, D) -> (B, N, width) each."""
        if self.projections is not None:
            return [self.projections.part(index, x, seq) for index in indices]
        first = indices[0] % len(self.parts)  # -1 is the last part
        widths = self.parts[first : first + len(indices)]
        start = sum(self.parts[:first])
        part_rows = slice(start, start + sum(widths))
        weight = self.proj_in.weight[part_rows]
        bias = None if self.proj_in.bias is None else self.proj_in.bias[part_rows]
        return F.linear(x, weight, bias).split(widths, dim=-1)

    def _key_seq(self, seq: Seq) -> Seq:
        """Return the facts of all keys from the facts of the sequence's own keys; for subclasses with further keys."""
        return seq

    def _attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        seq: Seq,
        k_seq: Seq,
        visibility: Visibility,
    ) -> Tensor:
        """Attend and join the heads: (B, N, H values)."""
        rate = self.dropout if self.training else 0.0
        shaping = self.scores.shaping
        y = attend(q, k, v, seq, k_seq, visibility, dropout=rate, scale=self.scale, shaping=shaping)
        return y.transpose(1, 2).flatten(2)  # (B, N, H values)

    def _heads(self, x: Tensor, width: int) -> Tensor:
        return x.unflatten(-1, (-1, width)).transpose(1, 2)  # (B, H, N, width)


def _with_carry(traits: Traits, options: ChoiceOptions) -> Traits:
    """Return the traits with the tensors that layers give and take under these options."""
    traits = declared(traits, options)
    name = shared_name(options.get("window"))
    if options.get("exclusive"):  # a query has no own value in a memory
        traits = replace(traits, cross=False)
    if options.get("conv"):  # a set and a memory have no neighbours to convolve
        traits = replace(traits, cross=False, equivariant=False, axes=traits.axes - {0})
    every = options.get("kv_every", 1)
    if every == 0:
        return replace(traits, cross=False, gives=traits.gives - {KEYS_AND_VALUES}, takes=frozenset({name}))
    gives = traits.gives - {KEYS_AND_VALUES} | {name}
    return replace(traits, cross=traits.cross and every == 1, gives=gives)


def shared_name(window: int | None) -> str:
    """Return the name of shared keys and values in `Seq.carry`. Layers share only within one window size."""
    if window is None:
        return KEYS_AND_VALUES
    return f"{KEYS_AND_VALUES}_of_a_window_of_{window}"
